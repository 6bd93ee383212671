"""``agentctx init``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentctx.commands.terminal import out, write_whole
from agentctx.errors import UsageError


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", exists=True, file_okay=False, help="Folder of the project.")
    ] = Path(),
) -> None:
    """Write agentctx.toml with every setting, commented, to start from. Never overwrites one."""
    from agentctx.checks.config import OWN, START, find_config

    file = folder / OWN
    known = find_config(folder)
    if known is not None and known.parent == folder.resolve():
        raise UsageError(f"{known} configures agentctx already")
    write_whole(file, START)
    out.print(
        f"wrote {file}: fill in what is to be checked, then run `agentctx check`",
        markup=False,
        highlight=False,
    )
