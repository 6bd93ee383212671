"""Long work: a bar on standard error, and how many processes share it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from agentctx.commands.terminal import err

JobsOption = Annotated[
    int | None,
    typer.Option(
        "--jobs", "-j", min=1, metavar="N", help="Processes. Default: one per core when there is much to do."
    ),
]


@contextmanager
def progress(what: str, total: int, *, remaining: bool = False) -> Iterator[Callable[[], None]]:
    """A bar while the block runs, where there is a terminal; what it gives is called for each of ``total`` when it is done.

    ``remaining``: show the time that is left, too.
    """
    # Loaded here: most commands draw no bar.
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
    if remaining:
        columns.append(TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)
