"""Logs of requests, read as a stream: one LogRecord at a time, whatever the file's size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from os import fspath
from typing import Any

from agentctx.errors import InputError
from agentctx.traces.apis import body_api
from agentctx.traces.records import LogRecord
from agentctx.traces.source import Line, PathType, parse_json, read_lines
from agentctx.traces.times import seconds

# A log line that wraps a body: where the body and what came back are, by the names that tools use.
_REQUEST_KEYS = ("request", "body", "request_body", "req")
_RESPONSE_KEYS = ("response", "response_body", "res", "reply")
_TIME_KEYS = ("at", "timestamp", "time", "t", "ts", "created_at")
_URL_KEYS = ("endpoint_hint", "url", "endpoint", "path")
_SESSION_KEYS = ("session_id", "session", "conversation_id", "trace_id")


def _first(record: Mapping[str, Any], keys: tuple[str, ...]) -> str | None:
    return next((key for key in keys if key in record), None)


def _wrapped(record: Mapping[str, Any], file: str, line: Line, index: int) -> LogRecord | None:
    """A record that holds the request body under one of the usual names."""
    key = next((key for key in _REQUEST_KEYS if isinstance(record.get(key), dict)), None)
    if key is None:
        return None
    body = record[key]
    response_key = _first(record, _RESPONSE_KEYS)
    response = record[response_key] if response_key is not None else None
    url_key = _first(record, _URL_KEYS)
    url = record[url_key] if url_key is not None and isinstance(record[url_key], str) else None
    api = body_api(body, response, url, record.get("api"))
    if api is None:
        return None
    time_key = _first(record, _TIME_KEYS)
    session_key = _first(record, _SESSION_KEYS)
    taken = {key, "api"} | ({response_key} if isinstance(response, dict) else set())
    return LogRecord(
        file=file,
        line=line.number,
        index=index,
        api=api,
        request=body,
        response=response if isinstance(response, dict) else None,
        at=seconds(record[time_key]) if time_key is not None else None,
        endpoint_hint=url,
        session_hint=str(record[session_key]) if session_key is not None else None,
        container="wrapped",
        raw=line.data,
        extra={name: value for name, value in record.items() if name not in taken},
    )


def _bare(record: Mapping[str, Any], file: str, line: Line, index: int) -> LogRecord | None:
    """A record that is the request body itself."""
    api = body_api(record)
    if api is None:
        return None
    return LogRecord(file=file, line=line.number, index=index, api=api, request=record, raw=line.data)


def _text_log(record: Mapping[str, Any], file: str, line: Line, index: int) -> LogRecord | None:
    """A record {timestamp, input, output, session_id}: the text of prompt and answer only."""
    if not {"input", "output", "session_id"} <= record.keys() or not isinstance(record["input"], str):
        return None
    return LogRecord(
        file=file,
        line=line.number,
        index=index,
        api="text",
        request={"input": record["input"]},
        response={"output": record["output"]},
        at=seconds(record.get("timestamp")),
        session_hint=str(record["session_id"]),
        container="text",
        raw=line.data,
        extra={name: value for name, value in record.items() if name not in ("input", "output")},
    )


def read_records(path: PathType) -> Iterator[LogRecord]:
    """The requests of a log in the file's order.

    Raises ``InputError`` naming file and line for a line that is no JSON or no request to a model.
    """
    file = fspath(path)
    index = 0
    for line in read_lines(path):
        if not line.data.strip():
            continue
        record = parse_json(line.data, file, line.number)
        found: LogRecord | None = None
        if isinstance(record, dict):
            for shape in (_text_log, _wrapped, _bare):
                found = shape(record, file, line, index)
                if found is not None:
                    break
        if found is None:
            raise InputError(
                "no request to a model that agentctx knows",
                file=file,
                line=line.number,
                remedy="give a log of request bodies, one JSON object a line",
            )
        yield found
        index += 1
    if index == 0:
        raise InputError(
            "the file is empty", file=file, line=1, remedy="give a log with at least one request"
        )
