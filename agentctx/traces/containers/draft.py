"""Draft: what a container's reader found in one value, before file, line and index are put to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentctx.interchange.body_api import Api
from agentctx.traces.source import parse_text
from agentctx.traces.stream_body import assemble, assemble_text

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Draft:
    """A LogRecord's content; see ``agentctx.traces.records``.

    ``cut``: what shows that the log holds only a part of it. ``loose``: its texts stand in values of their own, where a cut doesn't show.
    """

    api: Api
    request: Mapping[str, Any]
    response: Mapping[str, Any] | None
    container: str
    at: float | None = None
    endpoint_hint: str | None = None
    session_hint: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    cut: str = ""
    loose: bool = False


def as_object(value: Any) -> Json | None:
    """An object, or the object in a JSON text; ``None`` for anything else."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, str) or not value.lstrip().startswith("{"):
        return None
    try:
        found = parse_text(value)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def as_response(value: Any) -> tuple[Json | None, bool]:
    """A response body from what a log holds: an object, its JSON text, or a stream's events (text or list).

    The second value says whether the log's own form is the body itself, so that nothing else has to be kept.
    """
    if isinstance(value, dict):
        return value, True
    if isinstance(value, list):
        return assemble(value), False
    found = as_object(value)
    if found is not None:
        return found, False
    return (assemble_text(value), False) if isinstance(value, str) else (None, False)


def get(record: Any, path: tuple[str, ...]) -> Any:
    """The value at a path of keys; ``None`` where there is none."""
    for key in path:
        if not isinstance(record, dict):
            return None
        record = record.get(key)
    return record


def without(record: Mapping[str, Any], *paths: tuple[str, ...]) -> Json:
    """A copy without the values at the paths; objects on the way are copied, nothing else is."""
    copy = dict(record)
    for path in paths:
        inner, target = path[:-1], copy
        for key in inner:
            child = target.get(key)
            if not isinstance(child, dict):
                break
            target[key] = dict(child)
            target = target[key]
        else:
            target.pop(path[-1], None)
    return copy
