"""AppendOnlyFile: JSON Lines that only grow, and lose one line at most when the writer is killed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from os import fspath
from typing import Any

from agentctx.errors import InputError
from agentctx.messages import canonical_json
from agentctx.traces.source import PathType


class AppendOnlyFile:
    """A file of our own formats, opened to append. Each line is flushed when it is written.

    ``sync=True`` also forces every line to the disk, so that it survives a power cut and not only a kill.
    ``cut_bytes`` is the length of the torn last line that was cut when the file was opened.
    Raises ``InputError`` when the file can't be written, or holds something else than a format of ours.
    """

    def __init__(self, path: PathType, *, sync: bool = False) -> None:
        self.path = fspath(path)
        self._sync = sync
        try:
            self.cut_bytes = _cut_torn_line(self.path)
            self._file = open(self.path, "ab")  # noqa: SIM115 (closed by close())
        except OSError as error:
            raise InputError(
                f"can't write to the file: {error.strerror}", file=self.path, remedy="choose another file"
            ) from error

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one record as one line."""
        # One write call per line: a kill between two calls can't leave half a line, only a kill inside one can.
        self._file.write(canonical_json(record).encode() + b"\n")
        self._file.flush()
        if self._sync:
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file. Writing after this is an error."""
        self._file.close()


def _cut_torn_line(path: str) -> int:
    """Cut the bytes behind the last line end, and return how many there were."""
    try:
        with open(path, "r+b") as file:
            first = file.readline(1 << 20)
            if not first:
                return 0
            if not first.startswith(b'{"agentctx":'):
                raise InputError(
                    "the file holds something else than agentctx traces",
                    file=path,
                    line=1,
                    remedy="write to a new file",
                )
            size = file.seek(0, os.SEEK_END)
            end = size
            while end > 0:
                start = max(0, end - (1 << 16))
                file.seek(start)
                found = file.read(end - start).rfind(b"\n")
                if found >= 0:
                    end = start + found + 1
                    break
                end = start
            if end < size:
                file.truncate(end)
            return size - end
    except FileNotFoundError:
        return 0
