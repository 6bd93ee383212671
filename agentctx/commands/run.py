"""``agentctx run --backend URL SESSION``"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from agentctx.backends.secrecy import KEY_VARIABLE
from agentctx.commands.server_key import server_key
from agentctx.commands.sessions import SESSIONS_HELP, read_all
from agentctx.commands.terminal import complain, out
from agentctx.errors import AgentctxError

if TYPE_CHECKING:
    from agentctx.replaying import Live
    from agentctx.reports.turn import SessionReport
    from agentctx.traces import Session


class FailOn(StrEnum):
    """What makes a run a finding."""

    mismatch = "mismatch"
    nothing = "nothing"


BackendOption = Annotated[
    str,
    typer.Option(
        "--backend",
        "-b",
        metavar="URL",
        help="What runs the turns: a llama-server's address, an OpenAI-style server's, which ends with /v1, or `engine` (bundled). "
        f"A key is read from the environment variable {KEY_VARIABLE}.",
    ),
]
PolicyOption = Annotated[
    str,
    typer.Option(
        "--policy",
        "-p",
        metavar="SPEC",
        help="What of the conversation the model reads in each turn; `agentctx compare --list` describes all.",
    ),
]
CacheOption = Annotated[
    str | None,
    typer.Option(
        metavar="SPEC",
        help="How the server's cache works; `agentctx compare --list` describes all. Default: what a llama-server says of "
        "itself, else paged:16.",
    ),
]
LayoutOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="How messages become a prompt: chatml (built in), a chat template's file, a GGUF or a model's folder. Default: a "
        "llama-server's own template, else chatml.",
    ),
]
SlotOption = Annotated[
    int | None,
    typer.Option(
        min=0, metavar="N", help="Send all turns to this slot of a llama-server. Default: it chooses."
    ),
]
FailOption = Annotated[
    FailOn,
    typer.Option(
        "--fail-on",
        help="What makes the exit code 1: turns whose cached tokens aren't the predicted ones, or nothing.",
    ),
]


def run(
    files: Annotated[list[str], typer.Argument(metavar="SESSION...", help=SESSIONS_HELP)],
    backend: BackendOption,
    policy: PolicyOption = "append-only",
    cache: CacheOption = None,
    layout: LayoutOption = None,
    slot: SlotOption = None,
    fail_on: FailOption = FailOn.nothing,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Replay recorded sessions on a live server: how many tokens of each prompt came out of its cache, beside how many were predicted.

    Each turn is really sent and answered with one token; the recorded reply takes the answer's place.

    Exit codes: 0 clean, 1 a turn was not as predicted (with --fail-on mismatch), 2 usage, 3 could not evaluate (no answer, no
    reported count).
    """
    from agentctx.policies import parse_policy
    from agentctx.replaying import connect
    from agentctx.reports.observed import run_json

    parse_policy(policy)
    sessions, failed = read_all(files)
    reports: list[SessionReport] = []
    with connect(backend, cache=cache, layout=layout, slot=slot, api_key=server_key()) as live:
        for session in sessions:
            report = _replayed(session, policy, live)
            failed += report is None
            if report is not None:
                reports.append(report)
                if not as_json:
                    _show(report, live)
        notes = live.notes
    if as_json:
        print(run_json(reports, backend=live.name, notes=notes), end="")
    else:
        for note in notes:
            out.print(note, markup=False, highlight=False)
    raise typer.Exit(_exit_code(reports, failed, fail_on))


def _replayed(session: Session, policy: str, live: Live) -> SessionReport | None:
    """The report of one session, or ``None`` after saying why there is none."""
    from agentctx.policies import parse_policy
    from agentctx.replaying import Replay

    try:
        live.forget()
        return Replay(
            session, parse_policy(policy), live.renderer, live.cache, policy_name=policy, live=live
        ).run()
    except AgentctxError as error:
        complain(f"{session.file}: session {session.id}: {error}")
        return None


def _show(report: SessionReport, live: Live) -> None:
    from agentctx.reports.observed import run_line, run_table

    out.print(
        run_table(report, title=f"{report.session} on {live.name}, {report.policy}, cache {report.cache}")
    )
    out.print(run_line(report), markup=False, highlight=False)
    for note in report.notes:
        out.print(note, markup=False, highlight=False)
    out.print()


def _exit_code(reports: list[SessionReport], failed: int, fail_on: FailOn) -> int:
    if fail_on is FailOn.mismatch and any(report.mismatches for report in reports):
        return 1
    return 3 if failed or any(report.unreported for report in reports) else 0
