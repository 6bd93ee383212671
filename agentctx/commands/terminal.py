"""What commands share: where they print, how they complain, how they write files."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.text import Text

from agentctx.errors import UsageError

# A table that is piped must not be squeezed into the 80 columns of a terminal that isn't there.
out = Console(soft_wrap=True) if sys.stdout.isatty() else Console(soft_wrap=True, width=200)
err = Console(stderr=True, soft_wrap=True)

_STYLES = {"!": "bold red", "~": "yellow", "?": "dim", "error": "bold red"}


def complain(error: object) -> None:
    """Say on standard error what went wrong."""
    err.print(f"error: {error}", style="bold red", markup=False, highlight=False)


def show(lines: Iterable[str]) -> None:
    """Print lines as they are. Those that begin with a finding's mark are coloured on a terminal."""
    for line in lines:
        out.print(Text(line, style=_STYLES.get(line.split(" ", 1)[0], "")), highlight=False)


def write_whole(path: Path, text: str) -> None:
    """Write a result whole or not at all: to a temporary file beside it, then rename. Raises ``UsageError`` where that can't be."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                stream.write(text)
            os.chmod(name, 0o644)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise UsageError(f"{path} can't be written: {error.strerror}; name another file") from error
