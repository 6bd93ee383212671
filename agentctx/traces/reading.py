"""Sessions from files: the format is told by the content, never by the name."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from os import fspath
from pathlib import Path
from typing import Any

from agentctx.errors import InputError
from agentctx.traces import recording
from agentctx.traces.formats import (
    body_log,
    chat_list,
    claude_code,
    cline,
    codex,
    gemini_cli,
    openhands,
    pi,
    text_log,
)
from agentctx.traces.node import Node
from agentctx.traces.request_log import holds_request, read_records
from agentctx.traces.shape import Session
from agentctx.traces.source import VALUE_LIMIT, Line, PathType, lines_of, open_source, parse_json
from agentctx.traces.values import json_values

_KNOWN = (
    "agentctx traces, SWE-agent, mini-swe-agent, OpenHands, Claude Code, Codex, Gemini CLI, pi, Cline, tau-bench, "
    "Inspect and request logs are known"
)
_LEADING = 64  # records that may stand before the first one that tells the format


class UnknownFormat(InputError):
    """The file is no recorded session of a known kind."""


@dataclass(frozen=True, slots=True)
class _Lines:
    """A format of one JSON object a line."""

    recognizes: Callable[[dict[str, Any]], bool]
    read: Callable[[Iterable[Node], str], Iterator[Session]]


@dataclass(frozen=True, slots=True)
class _Document:
    """A format of one JSON document a file."""

    recognizes: Callable[[Any], bool]
    read: Callable[[Node], Iterator[Session]]


_LINE_FORMATS = tuple(
    _Lines(module.recognizes, module.read)
    for module in (recording, codex, pi, openhands, text_log, claude_code)
)
_DOCUMENT_FORMATS = (
    *(_Document(module.recognizes, module.read) for module in (gemini_cli, cline, chat_list)),
    _Document(openhands.recognizes_events, openhands.read_events),
)


def read_sessions(path: PathType) -> Iterator[Session]:
    """The sessions of a file, in the file's order.

    Raises ``InputError`` naming file and line for an unknown format, broken JSON, a line over
    ``source.VALUE_LIMIT`` bytes, a record of the wrong shape, and a tool result that answers no call.
    """
    file = fspath(path)
    with open_source(path) as stream:
        lines = (line for line in lines_of(stream, file) if line.data.strip())
        first = next(lines, None)
        if first is None:
            raise InputError(
                "the file is empty", file=file, line=1, remedy="give a file with a recorded session"
            )
        _refuse_other_files(first, file)
        try:
            value: Any = parse_json(first.data, file, first.number)
        except InputError as error:
            yield from _read_document(file, first, lines, error)
            return
        if any(form.recognizes(value) for form in _DOCUMENT_FORMATS):
            yield from _read_documents(file, Node(value, file, first.number), lines)
        elif _line_format(value) is None and _is_log(value):
            yield from _checked(_read_log(file))
        elif isinstance(value, dict):
            yield from _read_lines(file, first, value, lines)
        else:
            raise _unknown(file, first.number)


def _read_documents(file: str, first: Node, rest: Iterator[Line]) -> Iterator[Session]:
    """Documents of one line each; nearly always there is just one."""
    for node in chain([first], _nodes(file, rest)):
        document = next((form for form in _DOCUMENT_FORMATS if form.recognizes(node.value)), None)
        if document is None:
            raise _unknown(file, node.line)
        yield from _checked(document.read(node))


def _begins_a_log(file: str) -> bool:
    """Whether a file that is no single document begins with a request: indented values, one after another."""
    if not os.path.isfile(file):
        return False
    try:
        first = next(json_values(file), None)
    except InputError:
        return False
    return first is not None and first.layout == "values" and holds_request(first.value)


def _read_log(file: str) -> Iterator[Session]:
    """The sessions of a log, which is opened anew: its reader has its own way through a file."""
    if not os.path.isfile(file):
        raise InputError(
            "a log of requests can't be read as sessions from a pipe",
            file=file,
            line=1,
            remedy="save it to a file first",
        )
    return body_log.read(read_records(file), file)


def _line_format(value: Any) -> _Lines | None:
    if not isinstance(value, dict):
        return None
    return next((form for form in _LINE_FORMATS if form.recognizes(value)), None)


def _is_log(value: Any) -> bool:
    """Whether a file that holds this value, alone or first, is a log of requests."""
    if isinstance(value, list):
        return bool(value) and holds_request(value[0])
    return holds_request(value)


def begins_request_log(value: Any) -> bool:
    """Whether a file whose first value this is holds requests, each with its own message list, and no recorded session."""
    if recording.recognizes(value):
        return True  # of our own sessions every call is a request too
    return _is_log(value) and not any(form.recognizes(value) for form in _DOCUMENT_FORMATS)


def load(path: PathType) -> list[Session]:
    """All sessions of a file; ``read_sessions`` as a list."""
    return list(read_sessions(path))


def expand(paths: Iterable[PathType]) -> Iterator[str]:
    """Files named, and every file below the folders named, sorted within a folder; each file once.

    Nothing is left out by its name but hidden files below a folder: a file that is no session gives its error
    when it is read. Raises ``InputError`` for a path that isn't there and a folder without files.
    """
    seen: set[str] = set()
    for path in paths:
        for file in _files(Path(path)):
            key = str(file.resolve())
            if key not in seen:
                seen.add(key)
                yield str(file)


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        found = sorted(
            file
            for file in path.rglob("*")
            if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
        )
        if not found:
            raise InputError("the folder holds no files", file=str(path), remedy="name a folder of sessions")
        return found
    if not path.exists():
        raise InputError("no such file or folder", file=str(path), remedy="check the path")
    return [path]


def _unknown(file: str, line: int, what: str = "no recorded session") -> UnknownFormat:
    return UnknownFormat(f"unknown format: {what}", file=file, line=line, remedy=_KNOWN)


def _refuse_other_files(first: Line, file: str) -> None:
    """Refuse what can't be JSON by its first bytes, with an error that says so."""
    head = first.data.lstrip()[:1]
    if b"\x00" in first.data[:4096]:
        raise _unknown(file, first.number, "a binary file")
    if head not in (b"{", b"["):
        raise _unknown(file, first.number, "no JSON")


def _read_document(file: str, first: Line, rest: Iterator[Line], line_error: InputError) -> Iterator[Session]:
    """A file whose first line is no JSON value by itself: a document over several lines, or a broken line."""
    parts, size = [first.data], len(first.data)
    for line in rest:
        # Lines of JSONL are objects of their own, which no line but the first of an indented document is.
        if len(parts) == 1 and first.data[1:2] not in (b"", b" ") and _is_object(line.data):
            raise line_error
        size += len(line.data) + 1
        if size > VALUE_LIMIT:
            raise InputError(
                f"the JSON document is longer than {VALUE_LIMIT // (1024 * 1024)} MiB",
                file=file,
                line=line.number,
                remedy="split it, or give JSON Lines",
            )
        # Blank lines are gone; put them back so that line numbers in errors hold.
        parts.extend([b""] * (line.number - first.number - len(parts)))
        parts.append(line.data)
    if len(parts) == 1:
        raise line_error
    try:
        value = parse_json(b"\n".join(parts), file, first.number)
    except InputError:
        if not _begins_a_log(file):
            raise
        yield from _checked(_read_log(file))
        return
    document = next((form for form in _DOCUMENT_FORMATS if form.recognizes(value)), None)
    if document is None:
        lines = _line_format(value)
        if lines is not None:  # one record, printed over several lines
            yield from _checked(lines.read([Node(value, file, first.number)], file))
            return
    if document is None and _is_log(value):
        yield from _checked(_read_log(file))
        return
    if document is None:
        raise _unknown(file, first.number)
    yield from _checked(document.read(Node(value, file, first.number)), b"\n".join(parts), first.number)


def _is_object(data: bytes) -> bool:
    if not (data.startswith(b"{") and data.rstrip().endswith(b"}")):
        return False
    try:
        parse_json(data, "", 0)
    except InputError:
        return False
    return True


def _read_lines(file: str, first: Line, value: dict[str, Any], rest: Iterator[Line]) -> Iterator[Session]:
    leading = [Node(value, file, first.number)]
    form = _line_format(value)
    records = _nodes(file, rest)
    while form is None and len(leading) < _LEADING:
        node = next(records, None)
        if node is None:
            break
        leading.append(node)
        form = _line_format(node.value)
    if form is None:
        raise _unknown(file, first.number)
    yield from _checked(form.read(chain(leading, records), file))


def _nodes(file: str, lines: Iterable[Line]) -> Iterator[Node]:
    for line in lines:
        try:
            value = parse_json(line.data, file, line.number)
        except InputError as error:
            if line.ended:
                raise
            raise InputError(
                f"the last line is torn ({error.problem}): the recording was cut off here",
                file=file,
                line=line.number,
                remedy=f"remove line {line.number}; what stands before it is whole",
            ) from error
        if not isinstance(value, dict):
            raise InputError(
                "expected a JSON object", file=file, line=line.number, remedy="remove or repair this line"
            )
        yield Node(value, file, line.number)


def _checked(
    sessions: Iterable[Session], text: bytes | None = None, first_line: int = 1
) -> Iterator[Session]:
    """The sessions, each with at least one message and with every tool result answering a call before it."""
    for session in sessions:
        if not session.entries:
            raise InputError(
                "the recording holds no messages", file=session.file, line=1, remedy="leave this file out"
            )
        calls: set[str] = set()
        for index, entry in enumerate(session.entries):
            calls.update(call.id for call in entry.message.tool_calls)
            if entry.message.role != "tool" or entry.message.tool_call_id in calls:
                continue
            answered = entry.message.tool_call_id
            line = entry.line
            if text is not None and answered:
                line = first_line + text.count(b"\n", 0, max(0, text.rfind(answered.encode())))
            raise InputError(
                f"a tool result answers the call {answered!r}, and no call before it has this id"
                if answered
                else "a tool result doesn't say which call it answers",
                file=session.file,
                line=line,
                field=f"message {index} of session {session.id}",
                remedy="remove this result, or add the call that it answers",
            )
        yield session
