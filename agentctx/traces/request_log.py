"""Logs of requests, read as a stream: one LogRecord at a time, whatever the file's size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from os import fspath
from types import TracebackType
from typing import Any

from agentctx.errors import InputError
from agentctx.traces import recording
from agentctx.traces.append_only import AppendOnlyFile
from agentctx.traces.containers import bodies, har, litellm, otel, own
from agentctx.traces.containers.cut_values import Lengths
from agentctx.traces.containers.draft import Draft
from agentctx.traces.node import Node
from agentctx.traces.records import LogRecord
from agentctx.traces.source import PathType
from agentctx.traces.values import Value, json_values

_REMEDY = (
    "give request bodies (one JSON object a line, bare or under request/body), a HAR, LiteLLM payloads, "
    "OpenTelemetry spans with messages, or a recording"
)

_CUT_REMEDY = (
    "log without limits (OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT, OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT, MAX_STRING_LENGTH_PROMPT_IN_DB of LiteLLM), "
    "or pass over such records with --skip-others"
)

_SHAPES: tuple[Callable[[Any], Draft | None], ...] = (
    bodies.text_log,
    litellm.payload,
    bodies.wrapped,
    bodies.bare,
)


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something in a log that is no request to a model: other traffic of a HAR, a span without messages."""

    file: str
    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Doubt:
    """Something in a log that was read and may not be whole."""

    file: str
    line: int
    reason: str


def read_records(
    path: PathType,
    *,
    on_skip: Callable[[Skipped], None] | None = None,
    on_doubt: Callable[[Doubt], None] | None = None,
) -> Iterator[LogRecord]:
    """The requests of a log in the file's order.

    Takes request bodies, records that wrap them, LiteLLM payloads and OpenTelemetry spans (one a line, one after
    another, or in one array), HAR, our own log and session formats; each plain, gzip or zstd.

    A HAR and spans hold other traffic too: it is passed over, and told to ``on_skip``. Elsewhere a record that is no
    request to a model is an error, unless ``on_skip`` is given to take it; so is one of which only a part was logged. ``on_doubt`` is told, at the
    end, where that may be so.

    Raises ``InputError`` naming file and line for what can't be read, and for a log without any request.
    """
    file = fspath(path)
    index, seen = 0, False
    lengths = Lengths()
    values = json_values(path)
    for value in values:
        seen = True
        if recording.recognizes(value.value):
            found = _recorded(chain([value], values), file)  # takes all that follows
        else:
            found = _drafts(value, file, on_skip)
        for draft, line in found:
            yield record_of(draft, file, line, index, b"" if draft.container == "session" else value.raw)
            index += 1
            if draft.loose:
                lengths.take(draft.request.get("messages"), line)
    doubt = lengths.doubt()
    if doubt is not None and on_doubt is not None:
        on_doubt(Doubt(file, doubt[1], doubt[0]))
    if not seen:
        raise InputError(
            "the file is empty", file=file, line=1, remedy="give a log with at least one request"
        )
    if index == 0:
        raise InputError("no request to a model in this file", file=file, line=1, remedy=_REMEDY)


def _recorded(values: Iterable[Value], file: str) -> Iterator[tuple[Draft, int]]:
    nodes = (Node(value.value, file, value.line) for value in values)
    for session in recording.read(nodes, file):
        yield from own.session_calls(session)


def _drafts(
    value: Value, file: str, on_skip: Callable[[Skipped], None] | None
) -> Iterator[tuple[Draft, int]]:
    """The requests in one value. Raises ``InputError`` when it is none and may not be passed over."""
    if own.is_logged_request(value.value):
        yield own.logged_request(Node(value.value, file, value.line)), value.line
        return
    spans = otel.spans(value.value)
    if spans is not None:
        for span, around in spans:
            draft = otel.model_call(span, around)
            if draft is not None:
                yield from _whole(draft, file, value.line, on_skip)
            elif on_skip is not None:
                on_skip(Skipped(file, value.line, f"span {span.get('name')!r} holds no messages"))
        return
    draft = har.entry(value.value, value.head) if value.layout == "har" else _first_shape(value.value)
    if draft is not None:
        yield from _whole(draft, file, value.line, on_skip)
        return
    if value.layout != "har" and on_skip is None:
        raise InputError(
            "no request to a model that agentctx knows", file=file, line=value.line, remedy=_REMEDY
        )
    if on_skip is not None:
        on_skip(Skipped(file, value.line, "no request to a model that agentctx knows"))


def _whole(
    draft: Draft, file: str, line: int, on_skip: Callable[[Skipped], None] | None
) -> Iterator[tuple[Draft, int]]:
    """The request, unless only a part of it was logged."""
    if not draft.cut:
        yield draft, line
    elif on_skip is not None:
        on_skip(Skipped(file, line, f"only a part of the request was logged: {draft.cut}"))
    else:
        raise InputError(
            f"only a part of the request was logged: {draft.cut}", file=file, line=line, remedy=_CUT_REMEDY
        )


def holds_request(value: Any) -> bool:
    """Whether a value is, wraps or describes a request to a model; a HAR counts as one."""
    if own.is_logged_request(value):
        return True
    if isinstance(value, dict) and isinstance(value.get("log"), dict) and "entries" in value["log"]:
        return True
    return otel.spans(value) is not None or _first_shape(value) is not None


def _first_shape(value: Any) -> Draft | None:
    return next((draft for shape in _SHAPES if (draft := shape(value)) is not None), None)


def record_of(draft: Draft, file: str, line: int, index: int, raw: bytes = b"") -> LogRecord:
    """What a reader found, with its place in the file."""
    return LogRecord(
        file=file,
        line=line,
        index=index,
        api=draft.api,
        request=draft.request,
        response=draft.response,
        at=draft.at,
        endpoint_hint=draft.endpoint_hint,
        session_hint=draft.session_hint,
        container=draft.container,
        raw=raw,
        extra=draft.extra,
    )


class LogWriter:
    """Appends requests to a log in our own format, one line each; each line is flushed when it is written.

    Opening a file whose last line is torn cuts that line; ``cut_bytes`` says how many bytes went.
    """

    def __init__(self, path: PathType) -> None:
        self._lines = AppendOnlyFile(path)
        self.cut_bytes = self._lines.cut_bytes

    def write(self, record: LogRecord) -> None:
        """Append one record; its index, file and line are those of the new log."""
        line: dict[str, Any] = {"agentctx": "request", "version": own.LOG_VERSION, "api": record.api}
        for name in ("at", "endpoint_hint", "session_hint"):
            value = getattr(record, name)
            if value is not None:
                line[name] = value
        if record.container != "body":
            line["container"] = record.container
        line["request"] = record.request
        if record.response is not None:
            line["response"] = record.response
        if record.extra:
            line["extra"] = record.extra
        self._lines.write(line)

    def close(self) -> None:
        """Close the file."""
        self._lines.close()

    def __enter__(self) -> LogWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
