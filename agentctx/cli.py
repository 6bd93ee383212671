"""The ``agentctx`` command: options in, library calls, exit codes out. No logic of its own.

Exit codes: 0 clean, 1 findings, 2 usage, 3 could not evaluate.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from agentctx import __version__
from agentctx.backends.secrecy import KEY_VARIABLE
from agentctx.commands import check
from agentctx.commands.doctor import doctor
from agentctx.commands.explain import explain
from agentctx.commands.init import init
from agentctx.commands.progress import JobsOption, progress
from agentctx.commands.run import run
from agentctx.commands.server_key import server_key
from agentctx.commands.sessions import SESSIONS_HELP, read_all
from agentctx.commands.terminal import complain, out, write_whole
from agentctx.errors import AgentctxError, UsageError

if TYPE_CHECKING:
    from agentctx.reports.turn import SessionReport

app = typer.Typer(
    name="agentctx",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command(short_help="Write an agentctx.toml to start from.")(init)
app.add_typer(check.app)
app.command(short_help="Compare two requests: where they part, and why.")(explain)
app.command(short_help="Replay recorded sessions on a live server.")(run)
app.command(short_help="Say what a server is, and what it tells of its cache.")(doctor)


class Format(StrEnum):
    """How a comparison is written."""

    table = "table"
    json = "json"
    markdown = "markdown"
    html = "html"


_SUFFIX = {".json": Format.json, ".md": Format.markdown, ".html": Format.html, ".htm": Format.html}


def _version(value: bool) -> None:
    if value:
        print(f"agentctx {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Keep an LLM agent's prompts cache-friendly, and prove it.

    A server keeps what it computed for a prompt and reuses it for the next one, as far as both begin alike: their common prefix. What an
    agent changes in front of the newest message is paid again. These commands say where, why, and how much.

    Start with a log of requests or a recorded session: `agentctx check log FILE`.

    Exit codes: 0 clean, 1 findings, 2 usage, 3 could not evaluate.
    """


Files = Annotated[
    list[str] | None,
    typer.Argument(metavar="FILE...", help=SESSIONS_HELP),
]
PolicyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        "-p",
        metavar="SPEC",
        help="What of the conversation the model reads in each turn; give it several times. Default: append-only, keep-last:5, "
        "clear-results:5, window:10 and summarize-budget:8000. `--list` describes all.",
    ),
]
CacheOption = Annotated[
    str | None,
    typer.Option(
        metavar="SPEC",
        help="How the server's cache works, such as paged:16 (vLLM), radix (SGLang), slot (llama-server); `--list` describes all. "
        "Default: paged:16.",
    ),
]
LayoutOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="How messages become a prompt: chatml (built in), a chat template's file, a GGUF or a model's folder. Default: chatml.",
    ),
]
ObserveOption = Annotated[
    str | None,
    typer.Option(
        metavar="TARGET",
        help="Run every turn for real: on `engine` (bundled), or on the server at a URL, as `agentctx run` does. A key is read from the "
        f"environment variable {KEY_VARIABLE}.",
    ),
]
FormatOption = Annotated[
    Format | None, typer.Option(help="Output format. Default: by the suffix of -o, else table.")
]
OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Write the result here; the table is printed all the same."
    ),
]
TurnsOption = Annotated[bool, typer.Option("--turns", help="Print every turn of every session and policy.")]
ListOption = Annotated[bool, typer.Option("--list", help="Describe policies and caches, and exit.")]


@app.command(short_help="Replay recorded sessions under history policies.")
def compare(
    files: Files = None,
    policy: PolicyOption = None,
    cache: CacheOption = None,
    layout: LayoutOption = None,
    observe: ObserveOption = None,
    format: FormatOption = None,
    output: OutputOption = None,
    turns: TurnsOption = False,
    jobs: JobsOption = None,
    list_specs: ListOption = False,
) -> None:
    """Replay recorded sessions under several history policies, and compare how many tokens a cache reuses.

    A history policy says what of the conversation the model reads in each turn: all of it, the newest tool results, a summary.

    Exit codes: 0 all was compared, 1 an observed turn was not as predicted, 2 usage, 3 files could not be read (the others are
    compared all the same).
    """
    from agentctx.compare import DEFAULT_POLICIES, Comparison, Setting
    from agentctx.compare import compare as run

    if list_specs:
        _list_specs()
        return
    if not files:
        raise UsageError("no session files given; name files or folders, for example examples/sessions")
    sessions, failed = read_all(files)
    specs = tuple(policy or DEFAULT_POLICIES)
    done = Comparison(())
    if sessions:
        with progress("replaying", len(sessions) * len(specs), remaining=True) as on_done:
            setting = Setting(cache, layout, observe, server_key())
            done = run(sessions, specs, setting, jobs=jobs, on_done=on_done)
    reports = done.reports
    notes = _notes(reports)
    title = _title(len(sessions), reports, observe)
    chosen = format or (_SUFFIX.get(output.suffix.lower(), Format.table) if output else Format.table)
    if chosen is not Format.table and output is None:
        print(_formatted(chosen, reports, title, notes), end="")
    elif reports:
        _print_comparison(reports, title, notes, turns=turns)
    if output is not None:
        write_whole(output, _formatted(chosen, reports, title, notes))
        out.print(f"wrote {output}", markup=False, highlight=False)
    for failure in done.failures:
        complain(failure)
    if failed or done.failures:
        parts = [_count(failed, "file", "could not be read"), _count(len(done.failures), "replay", "failed")]
        complain(f"{' and '.join(filter(None, parts))}; see above")
        raise typer.Exit(3)
    if any(report.mismatches for report in reports):
        raise typer.Exit(1)


def _count(number: int, what: str, how: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'} {how}" if number else ""


def _title(sessions: int, reports: Sequence[SessionReport], observe: str | None) -> str:
    under = f", cache {reports[0].cache}, layout {reports[0].layout}" if reports else ""
    return f"{sessions} session{'s' if sessions != 1 else ''}{under}" + (
        f", run on {observe}" if observe else ""
    )


def _formatted(form: Format, reports: Sequence[SessionReport], title: str, notes: Sequence[str]) -> str:
    """The comparison as a text of that format."""
    from agentctx.reports import tables

    if form is Format.json:
        return tables.comparison_json(reports, notes=notes)
    if form is Format.markdown:
        return tables.comparison_markdown(reports, notes=notes)
    if form is Format.html:
        from agentctx.reports.html import comparison_html

        return comparison_html(reports, title=title, notes=notes)
    recorder = Console(file=io.StringIO(), width=160, record=True)
    recorder.print(tables.comparison_table(reports, title=title))
    return recorder.export_text()


def _print_comparison(
    reports: Sequence[SessionReport], title: str, notes: Sequence[str], *, turns: bool
) -> None:
    """The table on the terminal, behind every turn when they are asked for."""
    from agentctx.reports.tables import comparison_table, session_line, turn_line

    for report in reports if turns else ():
        for line in map(turn_line, report.turns):
            out.print(line)
        out.print(session_line(report), markup=False, highlight=False)
        out.print()
    out.print(comparison_table(reports, title=title))
    for note in notes:
        out.print(note, markup=False, highlight=False)


def _notes(reports: Sequence[SessionReport]) -> list[str]:
    notes = []
    if any(report.stand_in for report in reports):
        notes.append(
            "* summaries are a deterministic extractive stand-in of the length given, not a model's text"
        )
    if any(not turn.exact for report in reports for turn in report.turns):
        notes.append(
            "token counts are those of the built-in layout and vocabulary: exact for the bundled engine, estimates for other models"
        )
    return notes


def _list_specs() -> None:
    from agentctx.caches.providers import providers
    from agentctx.caches.registry import KINDS
    from agentctx.policies import describe_policies

    out.print("policies", style="bold")
    for spec, about in describe_policies():
        out.print(f"  {spec:<34} {about}", markup=False, highlight=False)
    out.print("caches", style="bold")
    for kind in KINDS:
        # A kind with many options gets a line for them.
        gap = "\n" + " " * 37 if len(kind.usage) > 34 else " "
        out.print(f"  {kind.usage:<34}{gap}{kind.about}", markup=False, highlight=False)
    hosted = ", ".join(provider.id for provider in providers())
    out.print(
        f"  {'PROVIDER[:MODEL[,life=NAME]]':<34} hosted caches by their published rules: {hosted}",
        markup=False,
    )


def main() -> None:
    """Entry point: turns agentctx errors into a message and an exit code."""
    try:
        app()
    except AgentctxError as error:
        complain(error)
        sys.exit(error.exit_code)
