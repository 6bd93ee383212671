"""JSON values of a file as a stream, however they stand in it: one a line, one after another, in one array, in a HAR.

Memory holds one value, not the file: an array or a HAR of any length is read element by element.
"""

from __future__ import annotations

import codecs
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from os import fspath
from typing import Any, Literal

from agentctx.errors import InputError
from agentctx.messages import JSON_DECODER
from agentctx.surrogates import clean_text
from agentctx.traces.source import (
    BOM,
    DEPTH_LIMIT,
    VALUE_LIMIT,
    PathType,
    lines_of,
    open_source,
    parse_json,
    parse_text,
    reading,
    too_deep,
)

Layout = Literal["lines", "values", "array", "har"]

_PEEK = 1 << 16
_CHUNK = 1 << 18
_HAR_HEAD = re.compile(rb'\s*\{\s*"log"\s*:\s*\{')
_HAR_ENTRIES = re.compile(r'"entries"\s*:\s*\[')
_SPACE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class Value:
    """One JSON value: the line on which it begins, its own bytes, what it holds, and how the file is laid out.

    ``head`` is what a HAR says before its entries; every entry carries the same object.
    """

    line: int
    raw: bytes
    value: Any
    layout: Layout
    head: Any = None


def json_values(path: PathType) -> Iterator[Value]:
    """The values of a file in order; elements of a top-level array and entries of a HAR one by one.

    Raises ``InputError`` naming file and line for what is no JSON, and for a value over ``VALUE_LIMIT`` bytes.
    """
    file = fspath(path)
    with open_source(path) as stream:
        with reading(file, 1):
            head = stream.peek(_PEEK)
        match _layout(head.removeprefix(BOM), file):
            case "lines":
                yield from _from_lines(stream, file)
            case "values":
                yield from _Stream(stream, file).values()
            case "array":
                yield from _Stream(stream, file).array()
            case "har":
                yield from _Stream(stream, file).har()


def _layout(head: bytes, file: str) -> Layout:
    text = head.lstrip()
    if text[:1] == b"[":
        return "array"
    if _HAR_HEAD.match(head):
        return "har"
    line, newline, rest = text.partition(b"\n")
    if not newline:
        return "lines"  # one line, or one that is longer than what was peeked at
    try:
        parse_json(line, file, 1)
    except InputError:
        # Behind a broken line of JSONL stands another object; the second line of an indented one is indented.
        second = rest.lstrip(b"\r\n")[:1]
        return "lines" if second == b"{" and line.strip() != b"{" else "values"
    return "lines"


def _har_head(text: str) -> Any:
    """What stands before the entries of a HAR, as an object; nothing when it can't be told apart from them."""
    try:
        found = parse_text(text + "}}")
    except ValueError:
        return None
    return found.get("log") if isinstance(found, dict) else None


def _from_lines(stream: io.BufferedReader, file: str) -> Iterator[Value]:
    for line in lines_of(stream, file):
        if not line.data.strip():
            continue
        try:
            value = parse_json(line.data, file, line.number)
        except InputError as error:
            if line.ended or line.number == 1:
                raise
            raise InputError(
                f"the last line is torn ({error.problem}): the log was cut off here",
                file=file,
                line=line.number,
                remedy=f"remove line {line.number}; what stands before it is whole",
            ) from error
        yield Value(line.number, line.data, value, "lines")


class _Stream:
    """A window on the text of a file, which grows until a whole value stands in it and shrinks behind it."""

    def __init__(self, stream: io.BufferedReader, file: str) -> None:
        self._stream = stream
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._text = ""
        self._at = 0
        self._line = 1  # of the place _at
        self._done = False
        self._grow()
        self._text = self._text.removeprefix("\ufeff")

    def values(self) -> Iterator[Value]:
        while self._skip_space():
            yield self._value("values")

    def array(self) -> Iterator[Value]:
        self._skip_space()
        self._take("[")
        yield from self._elements("array")
        if self._skip_space():
            raise self._error("something stands behind the array", self._line)

    def har(self) -> Iterator[Value]:
        while (found := _HAR_ENTRIES.search(self._text, self._at)) is None:
            if not self._grow():
                raise self._error("a HAR without entries", 1)
            if len(self._text) > VALUE_LIMIT:
                raise self._too_long()
        head = self._text[self._at : found.start()].rstrip().removesuffix(",")
        self._advance(found.end())
        yield from self._elements("har", _har_head(head))

    def _elements(self, layout: Layout, head: Any = None) -> Iterator[Value]:
        if self._peek() == "]":
            self._advance(self._at + 1)
            return
        while True:
            self._skip_space()
            yield self._value(layout, head)
            if self._peek() == "]":
                self._advance(self._at + 1)
                return
            self._take(",")

    def _value(self, layout: Layout, head: Any = None) -> Value:
        line = self._line
        while True:
            problem, place = "", self._at
            try:
                value, end = JSON_DECODER.raw_decode(self._text, self._at)
                break
            except json.JSONDecodeError as error:
                problem, place = error.msg, error.pos
            except RecursionError:
                raise self._error("the JSON is nested too deep to read", line) from None
            except ValueError as error:
                raise self._error(f"broken JSON: {error}", line) from None
            # A mistake well before the end of the window is one; near the end more text may mend it.
            unfinished = "nterminated" in problem or place > len(self._text) - 16
            if len(self._text) - self._at > VALUE_LIMIT:
                raise self._too_long()
            if not unfinished or not self._grow(len(self._text) - self._at):
                where = self._line + self._text.count("\n", self._at, place)
                raise self._error(f"broken JSON: {problem}", where)
        raw = self._text[self._at : end].encode()
        self._advance(end)
        if too_deep(raw):
            raise self._error(f"the JSON is nested deeper than {DEPTH_LIMIT} levels", line)
        if b"\\ud" in raw or b"\\uD" in raw:
            value = clean_text(value)
        return Value(line, raw, value, layout, head)

    def _grow(self, at_least: int = 0) -> bool:
        """Read on, as much again as the window holds, so that a long value costs a constant number of tries."""
        if self._done:
            return False
        with reading(self._file, self._line):
            data = self._stream.read(max(_CHUNK, at_least))
        self._done = not data
        try:
            text = self._decode(data, final=self._done)
        except UnicodeDecodeError as error:
            line = self._line + self._text.count("\n", self._at) + data.count(b"\n", 0, error.start)
            raise self._error("the text is not UTF-8", line) from error
        self._text = self._text[self._at :] + text
        self._at = 0
        return bool(text) or not self._done

    def _advance(self, to: int) -> None:
        self._line += self._text.count("\n", self._at, to)
        self._at = to

    def _skip_space(self) -> bool:
        """Move to the next character that is no space; False at the end of the file."""
        while True:
            at = self._at
            while at < len(self._text) and self._text[at] in _SPACE:
                at += 1
            self._advance(at)
            if at < len(self._text):
                return True
            if not self._grow():
                return False

    def _peek(self) -> str:
        return self._text[self._at] if self._skip_space() else ""

    def _take(self, wanted: str) -> None:
        found = self._peek()
        if found != wanted:
            what = f"found {found!r}" if found else "the file ends"
            raise self._error(f"broken JSON: expected {wanted!r}, {what}", self._line)
        self._advance(self._at + 1)

    def _too_long(self) -> InputError:
        return self._error(f"one value is longer than {VALUE_LIMIT // (1024 * 1024)} MiB", self._line)

    def _error(self, problem: str, line: int) -> InputError:
        return InputError(problem, file=self._file, line=line, remedy="repair the file at this line")
