"""``agentctx init``"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentctx.commands.terminal import out, write_whole
from agentctx.errors import UsageError


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the project.")] = Path(),
) -> None:
    """Write agentctx.toml with every setting, commented, to start from. Never overwrites one."""
    from agentctx.checks.config import OWN, START, find_config

    file = folder / OWN
    known = find_config(folder)
    if known is not None and known.parent == folder.resolve():
        raise UsageError(f"{known} configures agentctx already")
    write_whole(file, START)
    out.print(f"wrote {file}", markup=False, highlight=False)
