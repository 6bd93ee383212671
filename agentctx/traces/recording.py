"""agentctx's own trace format: JSON Lines, append-only (see docs/trace-format.md).

A line with ``"agentctx": "session"`` opens a session; every line behind it is one message. A recorder that is
killed leaves at most one torn line, the last: a reader says so, and a writer that opens the file again cuts it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import fields
from types import TracebackType
from typing import Any, TypeVar

from pydantic import ValidationError

from agentctx.errors import UsageError
from agentctx.messages import Message, Request, Tool
from agentctx.traces.append_only import AppendOnlyFile
from agentctx.traces.entry import Entry
from agentctx.traces.node import Node
from agentctx.traces.shape import LoggedRequest, Session
from agentctx.traces.source import PathType
from agentctx.usage import Usage

FORMAT = "agentctx"
VERSION = 1

_USAGE_FIELDS = tuple(field.name for field in fields(Usage))


def recognizes(record: Any) -> bool:
    """Whether a record opens a session in this format."""
    return isinstance(record, dict) and record.get("agentctx") == "session"


# --- writing -----------------------------------------------------------------------------------------------


def _slim(model: Message | Tool | Request) -> dict[str, Any]:
    return model.model_dump(mode="json", exclude_defaults=True) | (
        {"role": model.role} if isinstance(model, Message) else {}
    )


def _usage_json(usage: Usage) -> dict[str, int]:
    values = {name: getattr(usage, name) for name in _USAGE_FIELDS}
    return {name: value for name, value in values.items() if value is not None}


def _entry_json(entry: Entry) -> dict[str, Any]:
    record: dict[str, Any] = {"message": _slim(entry.message)}
    if entry.call is not None:
        record["call"] = entry.call
    if entry.at is not None:
        record["at"] = entry.at
    if entry.usage is not None:
        record["usage"] = _usage_json(entry.usage)
    if entry.extra_json is not None:
        record["extra_json"] = entry.extra_json
    return record


def _logged_json(logged: LoggedRequest) -> dict[str, Any]:
    record: dict[str, Any] = {"request": _slim(logged.request)}
    if logged.reply is not None:
        record["reply"] = _slim(logged.reply)
    if logged.at is not None:
        record["at"] = logged.at
    if logged.usage is not None:
        record["usage"] = _usage_json(logged.usage)
    return record


class TraceWriter:
    """Appends sessions to a file, one line a message; each line is flushed when it is written.

    ``sync=True`` also forces every line to the disk, so that it survives a power cut and not only a kill.
    Opening a file whose last line is torn cuts that line; ``cut_bytes`` says how many bytes went.
    Raises ``InputError`` when the file holds something else than traces of this format.
    """

    def __init__(self, path: PathType, *, sync: bool = False) -> None:
        self._lines = AppendOnlyFile(path, sync=sync)
        self._open_session = False
        self.cut_bytes = self._lines.cut_bytes

    def start(
        self,
        session_id: str,
        *,
        tools: Iterable[Tool] = (),
        model: str | None = None,
        source_format: str = FORMAT,
    ) -> None:
        """Open a session: the messages that follow belong to it."""
        head: dict[str, Any] = {"agentctx": "session", "version": VERSION, "id": session_id}
        if source_format != FORMAT:
            head["source_format"] = source_format
        if model is not None:
            head["model"] = model
        listed = [_slim(tool) for tool in tools]
        if listed:
            head["tools"] = listed
        self._lines.write(head)
        self._open_session = True

    def append(
        self,
        message: Message,
        *,
        call: str | None = None,
        at: float | None = None,
        usage: Usage | None = None,
        extra_json: str | None = None,
    ) -> None:
        """Append one message. ``call`` names the model call that generated it."""
        self._need_session()
        self._lines.write(_entry_json(Entry(message, call, at, usage, None, extra_json)))

    def write(self, session: Session) -> None:
        """Append a whole session, its requests included."""
        self.start(session.id, tools=session.tools, model=session.model, source_format=session.format)
        for entry in session.entries:
            self._lines.write(_entry_json(entry))
        for logged in session.requests:
            self._lines.write(_logged_json(logged))

    def close(self) -> None:
        """Close the file. Writing after this is an error."""
        self._lines.close()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _need_session(self) -> None:
        if not self._open_session:
            raise UsageError("no session is open; call start() before append()")


# --- reading -----------------------------------------------------------------------------------------------


_T = TypeVar("_T", Message, Tool, Request)


def _model(kind: type[_T], node: Node) -> _T:
    try:
        return kind.model_validate(node.value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise Node(None, node.file, node.line, f"{node.path}.{place}" if place else node.path).error(
            first["msg"]
        ) from error


def _number(node: Node) -> float | None:
    value = node.value
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise node.error("expected a number of seconds")
    return float(value)


def _usage(node: Node) -> Usage | None:
    if node.value is None:
        return None
    counts = {}
    for name in _USAGE_FIELDS:
        value = node[name].value
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise node[name].error("expected a number of tokens")
        counts[name] = value
    return Usage(**counts)


class _Open:
    """The session that is being read."""

    def __init__(self, head: Node) -> None:
        version = head["version"].value
        if version != VERSION:
            raise head["version"].error(
                f"version {json.dumps(version)} of the trace format", "update agentctx"
            )
        self.file = head.file
        self.id = head["id"].text()
        self.format = head["source_format"].maybe_text() or FORMAT
        self.model = head["model"].maybe_text()
        self.tools = tuple(_model(Tool, item) for item in head["tools"].items()) if head["tools"] else ()
        self.entries: list[Entry] = []
        self.requests: list[LoggedRequest] = []

    def add(self, record: Node) -> None:
        at, usage = _number(record["at"]), _usage(record["usage"])
        if "message" in record:
            message = _model(Message, record["message"])
            call, extra = record["call"].maybe_text(), record["extra_json"].maybe_text()
            self.entries.append(Entry(message, call, at, usage, record.line, extra))
        elif "request" in record:
            request = _model(Request, record["request"])
            reply = _model(Message, record["reply"]) if record["reply"] else None
            self.requests.append(LoggedRequest(request, reply, at, usage, record.line))
        else:
            raise record.error("neither a session, a message nor a request", "see docs/trace-format.md")

    def session(self) -> Session:
        return Session(
            self.id,
            self.file,
            self.format,
            tools=self.tools,
            entries=tuple(self.entries),
            requests=tuple(self.requests),
            model=self.model,
        )


def read(records: Iterable[Node], file: str) -> Iterator[Session]:
    """The sessions of a file, in order."""
    current: _Open | None = None
    for record in records:
        if recognizes(record.obj()):
            if current is not None:
                yield current.session()
            current = _Open(record)
        elif current is None:
            raise record.error("a message before the line that opens its session", "see docs/trace-format.md")
        else:
            current.add(record)
    if current is not None:
        yield current.session()
