"""The file of a history: append-only JSONL with a hash chain.

One record a line, ``{"chain":"<64 hex>","record":{…}}``. ``chain`` is SHA-256 over the chain value of the line before
and the bytes of the record as they stand in the file, so a changed, missing or reordered line is found. A crash can
only tear the last line: it has no newline, was never acknowledged, and is cut off on opening.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from pathlib import Path
from typing import IO, NamedTuple

from agentctx.errors import HistoryError, InputError
from agentctx.history.records import Record
from agentctx.messages import canonical_json

if os.name == "nt":  # pragma: no cover
    import msvcrt

    def _lock(file: IO[bytes]) -> None:
        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined,unused-ignore]
else:
    import fcntl

    def _lock(file: IO[bytes]) -> None:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)


_START = hashlib.sha256(b"agentctx history").hexdigest()
_PREFIX, _MIDDLE, _SUFFIX = b'{"chain":"', b'","record":', b"}"
_RECORD_AT = len(_PREFIX) + 64 + len(_MIDDLE)


class TornLineWarning(UserWarning):
    """The last line of a history file was incomplete and was cut off."""


class _Kept(NamedTuple):
    """What the file holds for good: so many records, in its first ``end`` bytes, with this chain value behind them."""

    records: int = 0
    end: int = 0
    chain: str = _START


class Journal:
    """One open history file, held by this process alone.

    With ``fsync`` every record is on the disk before :meth:`write` returns; without it a record survives the end of
    the process, but not of the machine.

    A write may be interrupted anywhere, by Ctrl-C or any other exception, and the interruption of an interruption too:
    ``_kept`` moves on in one assignment, and what a write left behind that did not come so far is cut off before
    anything else is done with the file.
    """

    def __init__(self, path: str | os.PathLike[str], *, fsync: bool = False) -> None:
        """Open or create ``path`` and lock it. Raises ``HistoryError`` when another writer holds it."""
        self.path = Path(path)
        self._fsync = fsync
        new = not self.path.exists()
        # Unbuffered append mode: a record is one write at the end of the file, whatever was read before.
        self._file: IO[bytes] = open(self.path, "a+b", buffering=0)  # noqa: SIM115
        try:
            _lock(self._file)
        except BaseException as error:
            self._file.close()
            if not isinstance(error, OSError):
                raise
            raise HistoryError(
                "another writer has this history open", item=str(self.path), remedy="close it there first"
            ) from None
        if new and fsync:
            _sync_directory(self.path.parent)
        self._kept = _Kept()
        self._writing = False  # there may be more in the file than what is kept
        self._broken: str | None = None

    @property
    def records(self) -> int:
        """How many records are kept."""
        return self._kept.records

    def read(self) -> list[tuple[int, Record]]:
        """All records with their line numbers, oldest first; a torn last line is cut off with a ``TornLineWarning``.

        Raises ``InputError`` naming the first line that is damaged; the file is then left as it is.
        """
        self._check_usable("read")
        self._file.seek(0)
        data = self._file.read()
        lines = data.split(b"\n")
        torn = lines.pop()
        records: list[tuple[int, Record]] = []
        chain = _START
        for number, line in enumerate(lines, 1):
            chain, record = self._checked(number, line, chain)
            records.append((number, record))
        self._kept = _Kept(len(records), len(data) - len(torn), chain)
        if torn:
            warnings.warn(
                f"{self.path}:{len(lines) + 1}: the last line is torn ({len(torn)} bytes) and was cut off",
                TornLineWarning,
                stacklevel=4,  # whoever opens the history
            )
            self._file.truncate(self._kept.end)
        return records

    def write(self, record: Record) -> None:
        """Append a record. When this returns the record is kept; when it raises ``HistoryError`` it is not.

        When it is interrupted, :attr:`records` says whether it is.
        """
        self._check_usable("written")
        body = canonical_json(record).encode()
        kept = self._kept
        chain = _next(kept.chain, body)
        line = b"".join((_PREFIX, chain.encode(), _MIDDLE, body, _SUFFIX, b"\n"))
        self._writing = True
        try:
            self._write_all(line)
            self._kept = _Kept(kept.records + 1, kept.end + len(line), chain)
        except BaseException as error:
            self._cut()
            if not isinstance(error, OSError) or self._kept is not kept:
                raise
            raise HistoryError(
                f"a record could not be written: {error.strerror or error}",
                item=str(self.path),
                remedy="the history is as it was before this step",
            ) from error
        self._writing = False

    def close(self) -> None:
        """Close the file and give up the lock."""
        try:
            if self._writing and not self._file.closed:
                self._cut()
        finally:
            self._broken = self._broken or "it was closed"
            self._file.close()

    def _write_all(self, line: bytes) -> None:
        view = memoryview(line)
        while view:
            view = view[self._file.write(view) :]
        if self._fsync:
            os.fsync(self._file.fileno())

    def _check_usable(self, how: str) -> None:
        if self._writing and not self._broken:
            self._cut()
        if self._broken:
            raise HistoryError(
                f"the file can't be {how} any more: {self._broken}",
                item=str(self.path),
                remedy="open it again",
            )

    def _cut(self) -> None:
        """Cut off what is not kept."""
        try:
            self._file.truncate(self._kept.end)
        except OSError as error:
            self._broken = str(error)
        self._writing = False

    def _checked(self, number: int, line: bytes, chain: str) -> tuple[str, Record]:
        """The chain value of a line, and its record."""
        whole = line.startswith(_PREFIX) and line[_RECORD_AT - len(_MIDDLE) : _RECORD_AT] == _MIDDLE
        body = line[_RECORD_AT : -len(_SUFFIX)]
        chain = _next(chain, body)
        if not whole or line[len(_PREFIX) : len(_PREFIX) + 64] != chain.encode():
            raise InputError(
                "the hash chain does not hold: this line was changed, or one before it is missing",
                file=str(self.path),
                line=number,
                remedy="restore the file from a copy; nothing was changed",
            )
        try:
            record = json.loads(body)
        except (ValueError, RecursionError):
            record = None
        if not isinstance(record, dict):
            raise InputError("not a record", file=str(self.path), line=number)
        return chain, record


def _next(chain: str, body: bytes) -> str:
    return hashlib.sha256(chain.encode() + body).hexdigest()


def _sync_directory(path: Path) -> None:
    if os.name == "nt":  # pragma: no cover
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
