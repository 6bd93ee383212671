"""Request bodies as they are, and records that hold a body and what came back under the names that tools use."""

from __future__ import annotations

from typing import Any

from agentctx.interchange.body_api import body_api
from agentctx.interchange.times import seconds
from agentctx.traces.containers.draft import Draft, Json, as_object, as_response, get, without

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
    ("response",),
    ("response_body",),
    ("res", "body"),
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
    ("created_at",),
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


def _first(record: Json, paths: tuple[_Path, ...], kind: type | tuple[type, ...]) -> Any:
    return next((value for path in paths if isinstance(value := get(record, path), kind)), None)


def bare(value: Any) -> Draft | None:
    """A value that is the request body itself."""
    api = body_api(value)
    return Draft(api, value, None, "body") if api is not None else None


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
        return Draft(
            api=api,
            request=body,
            response=reply,
            container="wrapped",
            at=next((at for path in _TIMES if (at := seconds(get(value, path))) is not None), None),
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
