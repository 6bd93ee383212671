"""The options of a baseline, and what they do: findings accepted, and the file written anew."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentctx.commands.terminal import err, write_whole
from agentctx.errors import UsageError

if TYPE_CHECKING:
    from agentctx.reports.check_result import CheckResult

BaselineOption = Annotated[
    Path | None,
    typer.Option(
        "--baseline",
        metavar="FILE",
        help="JSON file of findings that are known and accepted, each with a reason: they don't fail. "
        "Default of `agentctx check` alone: the configured file.",
    ),
]
UpdateOption = Annotated[
    bool,
    typer.Option("--update-baseline", help="Write what was found into the baseline; needs --reason."),
]
ReasonOption = Annotated[
    str,
    typer.Option("--reason", metavar="TEXT", help="Why the new findings of --update-baseline are accepted."),
]


def need_baseline(file: Path | None, reason: str, *, update: bool) -> None:
    """Refuse an update without a file or a reason. Raises ``UsageError``; called before anything is checked."""
    if update and (file is None or not reason.strip()):
        raise UsageError(
            "--update-baseline needs --reason TEXT, and --baseline FILE or a configured baseline"
        )


def allow_known(
    result: CheckResult, file: Path | None, reason: str, *, update: bool, root: Path = Path()
) -> None:
    """Allow what the baseline accepts, after what still fails is written into it if that was asked for.

    ``root``: the folder in which the check ran.
    """
    from agentctx.checks.baseline import apply_baseline, baseline_text, names_in, read_baseline

    if file is None:
        return
    names = names_in(result, file, root)
    if update:
        old = read_baseline(file) if file.exists() else []
        write_whole(file, baseline_text(result, old, names, reason))
        err.print(f"wrote {file}", markup=False, highlight=False)
    apply_baseline(result, read_baseline(file), names)
