"""Bytes of a trace or log: opened, decompressed and cut into lines, with memory bounded by one line.

A file may be plain, gzip or zstd; which one is told by its first bytes. One line (and one JSON document that
spans lines) may hold ``VALUE_LIMIT`` bytes; more is refused before it is read.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, BinaryIO, cast

from agentctx.errors import InputError
from agentctx.messages import JSON_DECODER

VALUE_LIMIT = 64 * 1024 * 1024
"""Largest line, and largest JSON document, that is read, in bytes after decompression (64 MiB)."""

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
BOM = b"\xef\xbb\xbf"
_BUFFER = 1 << 16

PathType = str | PathLike[str]


def stem(path: PathType) -> str:
    """The file's name without folders and endings: what a session is called whose recorder gave it no id."""
    return os.path.basename(fspath(path)).split(".", 1)[0] or "session"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a file: its 1-based number, its bytes without the line end, and whether it had a line end."""

    number: int
    data: bytes
    ended: bool


def _open_zstd(raw: BinaryIO, file: str) -> io.BufferedReader:
    try:
        import zstandard
    except ImportError as error:
        raise InputError(
            "the file is compressed with zstd and the zstandard package is missing",
            file=file,
            remedy="install agentctx-sdk[zstd] or decompress the file first",
        ) from error
    reader = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True, closefd=False)
    return io.BufferedReader(cast(io.RawIOBase, reader), _BUFFER)


def _decompression_errors() -> tuple[type[Exception], ...]:
    errors: list[type[Exception]] = [gzip.BadGzipFile, EOFError, zlib.error]
    try:
        import zstandard
    except ImportError:
        return tuple(errors)
    return (*errors, zstandard.ZstdError)


@contextmanager
def open_source(path: PathType) -> Iterator[io.BufferedReader]:
    """Open a file for reading its decompressed bytes.

    Raises ``InputError`` when the file can't be opened or its compression isn't available here.
    """
    file = fspath(path)
    try:
        raw = io.BufferedReader(io.FileIO(file, "rb"), _BUFFER)
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(f"can't open the file: {reason}", file=file, remedy="check the path") from error
    with raw:
        try:
            magic = raw.peek(4)[:4]
        except OSError as error:
            raise InputError(
                f"can't read the file: {error.strerror}", file=file, remedy="name a file"
            ) from error
        if magic.startswith(_GZIP_MAGIC):
            yield io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=raw, mode="rb")), _BUFFER)
        elif magic == _ZSTD_MAGIC:
            yield _open_zstd(raw, file)
        else:
            yield cast(io.BufferedReader, raw)


@contextmanager
def reading(file: str, line: int) -> Iterator[None]:
    """Turn what goes wrong while bytes are read into an ``InputError`` at ``line``."""
    try:
        yield
    except _decompression_errors() as error:
        raise InputError(
            f"the compressed data is damaged or cut off ({error})",
            file=file,
            line=line,
            remedy="copy or compress the file again",
        ) from error
    except OSError as error:
        raise InputError(
            f"can't read on: {error}", file=file, line=line, remedy="check the disk or the connection"
        ) from error


def lines_of(stream: io.BufferedReader, file: str, limit: int = VALUE_LIMIT) -> Iterator[Line]:
    """The lines of an open stream in order, blank ones included. Holds one line at a time.

    Raises ``InputError`` naming file and line for a line longer than ``limit`` bytes, broken compression or a
    read error.
    """
    number = 0
    while True:
        number += 1
        with reading(file, number):
            data = stream.readline(limit + 1)
        if not data:
            return
        ended = data.endswith(b"\n")
        if len(data) > limit and not ended:
            raise InputError(
                f"the line is longer than {limit // (1024 * 1024)} MiB",
                file=file,
                line=number,
                remedy="split the file: one record stands on one line",
            )
        if number == 1:
            data = data.removeprefix(BOM)
        yield Line(number, data.rstrip(b"\r\n") if ended else data, ended)


def read_lines(path: PathType, limit: int = VALUE_LIMIT) -> Iterator[Line]:
    """``lines_of`` a file that is opened for it."""
    with open_source(path) as stream:
        yield from lines_of(stream, fspath(path), limit)


DEPTH_LIMIT = 200
"""Deepest nesting of JSON that is read: whoever walks a value may use recursion."""

_NO_BRACKETS = bytes(code for code in range(256) if chr(code) not in "[]{}")
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


def _depth(brackets: bytes) -> int:
    deepest = depth = 0
    for code in brackets:
        if code in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        else:
            depth -= 1
    return deepest


def too_deep(data: bytes) -> bool:
    """Whether JSON text is nested deeper than ``DEPTH_LIMIT``. Looks at strings only when brackets in them matter."""
    brackets = data.translate(None, _NO_BRACKETS)
    if len(brackets) <= DEPTH_LIMIT or _depth(brackets) <= DEPTH_LIMIT:
        return False
    return _depth(_STRINGS.sub(b"", data).translate(None, _NO_BRACKETS)) > DEPTH_LIMIT


def parse_text(text: str) -> Any:
    """The JSON value that a text from inside a record holds. Raises ``ValueError`` when it holds none."""
    data = text.encode(errors="replace")
    if too_deep(data):
        raise ValueError("nested too deep")
    try:
        return JSON_DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def parse_json(data: bytes, file: str, line: int) -> Any:
    """Parse one JSON value. ``line`` is where the value begins.

    Raises ``InputError`` that names the line of the mistake for anything that is not JSON in UTF-8.
    """
    if too_deep(data):
        raise InputError(
            f"the JSON is nested deeper than {DEPTH_LIMIT} levels",
            file=file,
            line=line,
            remedy="remove or repair this line",
        )
    try:
        return JSON_DECODER.decode(data.decode())
    except UnicodeDecodeError as error:
        line += data.count(b"\n", 0, error.start)
        problem, remedy = "the text is not UTF-8", "name a text file in UTF-8"
    except json.JSONDecodeError as error:
        line += error.lineno - 1
        problem = f"broken JSON: {error.msg} at column {error.colno}"
        remedy = "remove or repair this line"
    except RecursionError:  # the caller's own stack left too little room
        problem, remedy = "the JSON is nested too deep to read", "remove or repair this line"
    except ValueError as error:
        problem, remedy = f"broken JSON: {error}", "remove or repair this line"
    raise InputError(problem, file=file, line=line, remedy=remedy)
