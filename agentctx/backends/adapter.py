"""Adapters: one API's request and response shapes, without any I/O.

An adapter turns a Prompt into an HTTP call and a response body (or a stream of events) into a Completion. The
transports in :mod:`agentctx.backends.http` carry the calls; tests can drive an adapter from recorded bodies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from agentctx.backends.backend import BadResponse, Completion, Options
from agentctx.rendering.prompt import Prompt


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP POST: path below the base URL, JSON body, and headers beyond the transport's own."""

    path: str
    body: dict[str, Any]
    headers: dict[str, str] = field(default_factory=dict)


class StreamParser(Protocol):
    """Reads one streamed reply, event by event."""

    def feed(self, event: str, data: Mapping[str, Any]) -> str:
        """Take one event (its name and its JSON data); return the text that it adds to the reply."""
        ...

    def finish(self) -> Completion:
        """The whole reply, once the stream has ended. Raises :class:`StreamBroken` if the server never finished it."""
        ...


class Adapter(Protocol):
    """One API. ``takes_tokens``: it sends the prompt's token ids and not its messages."""

    @property
    def name(self) -> str: ...

    @property
    def takes_tokens(self) -> bool: ...

    def call(self, prompt: Prompt, options: Options, *, stream: bool) -> Call: ...

    def completion(self, body: Mapping[str, Any]) -> Completion:
        """Read a whole response. Raises :class:`BadResponse` that names the missing field."""
        ...

    def parser(self) -> StreamParser: ...


def need(body: Mapping[str, Any], path: str, kind: type | tuple[type, ...], api: str) -> Any:
    """The value at a dotted path of a response, or :class:`BadResponse` that names it."""
    value: Any = body
    for key in path.split("."):
        if isinstance(value, list) and key.isdigit() and int(key) < len(value):
            value = value[int(key)]
        elif isinstance(value, Mapping) and key in value:
            value = value[key]
        else:
            raise BadResponse(f"the {api} response has no {path}; is the URL that of a {api} endpoint?")
    if not isinstance(value, kind):
        raise BadResponse(f"the {api} response has a {type(value).__name__} at {path}")
    return value


def count_or_none(value: Any) -> int | None:
    """A token count as the server gave it: ``None`` (or a field that is absent) stays unknown."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
