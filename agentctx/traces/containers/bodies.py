"""Request bodies as they are, and records that hold a body and what came back under the names that tools use."""

from __future__ import annotations

from typing import Any

from agentctx.interchange.body_api import Api, body_api
from agentctx.interchange.times import seconds
from agentctx.traces.containers.draft import Draft, Json, as_object, as_response, get, without
from agentctx.usage import usage_from_response

_Path = tuple[str, ...]

_REQUESTS: tuple[_Path, ...] = (
    ("request",),
    ("body",),
    ("request_body",),
    ("req",),
    ("request", "body"),
    ("request", "json"),
    ("request", "content"),
    ("req", "body"),
    ("params",),
    ("kwargs",),
)
_RESPONSES: tuple[_Path, ...] = (
    ("response", "body"),
    ("response", "json"),
    ("response", "content"),
    ("response", "data"),
    ("response",),
    ("response_body",),
    ("res", "body"),
    ("res", "data"),
    ("res",),
    ("reply",),
)
_TIMES: tuple[_Path, ...] = (
    ("at",),
    ("timestamp",),
    ("time",),
    ("t",),
    ("ts",),
    ("start_time",),
    ("startTime",),
    ("created_at",),
    ("request_created_at",),
    ("created",),
    ("request", "timestamp"),
)
_URLS: tuple[_Path, ...] = (
    ("endpoint_hint",),
    ("url",),
    ("endpoint",),
    ("request", "url"),
    ("req", "url"),
    ("path",),
)
_SESSIONS: tuple[_Path, ...] = (("session_id",), ("session",), ("conversation_id",), ("trace_id",))

_REPLY_SIGNS = {"choices", "output", "usage", "timings", "content", "error", "output_text"}
_COUNTS = ("usage", "timings")
# What no request has and a reply does, where a log writes both into one object.
_MERGED: dict[Api, tuple[str, type]] = {
    "openai.chat": ("choices", list),
    "openai.responses": ("output", list),
    "anthropic.messages": ("content", list),
    "llama.completion": ("content", str),
}


def _first(record: Json, paths: tuple[_Path, ...], kind: type | tuple[type, ...]) -> Any:
    return next((value for path in paths if isinstance(value := get(record, path), kind)), None)


def bare(value: Any) -> Draft | None:
    """A value that is the request body itself. What a log wrote among its fields (reply, counts, time, address) is put beside it."""
    if not isinstance(value, dict):
        return None
    url = _first(value, _URLS, str)
    path, reply, plain = _reply(value)
    api = body_api(value, reply, url, value.get("api"))
    if api is None:
        return None
    moved = {each[0] for each in _RESPONSES if each[0] in value}
    rest = without(value, path) if plain else value
    if reply is None and api in _MERGED:
        name, kind = _MERGED[api]
        given = value.get(name)
        if kind is list and isinstance(given, dict) and "role" in given:  # the message alone
            given = [given]
        if isinstance(given, kind):
            reply = {name: given}
            moved.add(name)
    reply, counted = _with_counts(value, reply)
    moved |= counted
    at, time_key = _time(value)
    fields = (time_key, *(each[0] for each in _URLS if len(each) == 1))
    moved |= {key for key in fields if key in value}
    if value.get("api") == api:
        moved.add("api")
    session = _first(value, _SESSIONS, (str, int))
    return Draft(
        api=api,
        request={key: item for key, item in value.items() if key not in moved} if moved else value,
        response=reply,
        container="body",
        at=at,
        endpoint_hint=url,
        session_hint=str(session) if session is not None else None,
        extra={key: rest[key] for key in value if key in moved and key in rest},
    )


def _time(record: Json) -> tuple[float | None, str]:
    """When the request was sent, and the field of the record that says so."""
    for path in _TIMES:
        at = seconds(get(record, path))
        if at is not None:
            return at, path[0]
    return None, ""


def _with_counts(record: Json, reply: Json | None) -> tuple[Json | None, set[str]]:
    """The reply with token counts that stand beside it, and their fields."""
    found = {
        name: record[name]
        for name in _COUNTS
        if isinstance(record.get(name), dict) and not (reply or {}).get(name)
    }
    counts = usage_from_response(found)
    if counts is None or (counts.prompt, counts.cached, counts.output) == (None, None, None):
        return reply, set()  # such as a wish to be told them
    return {**(reply or {}), **found}, set(found)


def wrapped(value: Any) -> Draft | None:
    """A record that holds the body; everything else in it is kept beside the body."""
    if not isinstance(value, dict):
        return None
    url = _first(value, _URLS, str)
    for path in _REQUESTS:
        body = as_object(get(value, path))
        if body is None:
            continue
        reply_path, reply, plain = _reply(value)
        api = body_api(body, reply, url, value.get("api"))
        if api is None:
            continue
        taken = [path] + ([reply_path] if plain else [])
        if value.get("api") == api:
            taken.append(("api",))
        session = _first(value, _SESSIONS, (str, int))
        reply, _ = _with_counts(value, reply)
        return Draft(
            api=api,
            request=body,
            response=reply,
            container="wrapped",
            at=_time(value)[0],
            endpoint_hint=url,
            session_hint=str(session) if session is not None else None,
            extra=without(value, *taken),
        )
    return None


def _reply(record: Json) -> tuple[_Path, Json | None, bool]:
    """Where the response body is, the body, and whether it stands there as it is."""
    for path in _RESPONSES:
        found = get(record, path)
        # ``response.content`` is a body only in logs of HTTP calls; in an Anthropic body it is a part of it.
        if len(path) > 1 and not isinstance(found, (dict, str)):
            continue
        reply, plain = as_response(found)
        if reply is not None and (reply.keys() & _REPLY_SIGNS or path == ("response",)):
            return path, reply, plain
    return (), None, False


def text_log(value: Any) -> Draft | None:
    """A record {timestamp, input, output, session_id}: the text of prompt and answer only."""
    if not isinstance(value, dict) or not {"input", "output", "session_id"} <= value.keys():
        return None
    if not isinstance(value["input"], str):
        return None
    return Draft(
        api="text",
        request={"input": value["input"]},
        response={"output": value["output"]},
        container="text",
        at=seconds(value.get("timestamp")),
        session_hint=str(value["session_id"]),
        extra=without(value, ("input",), ("output",)),
    )
