"""Requests between agentctx and the APIs of providers, without loss in either direction.

Each API is a module with ``read(body) -> Request`` and ``write(request) -> body``; ``write(read(body))`` equals the body
to the last byte of its canonical JSON, unknown fields included. A request read from one API can be written for another:
what has a name in agentctx is carried over, the source's own fields stay behind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from agentctx.errors import UsageError
from agentctx.interchange import anthropic, llama_completion, openai_chat, openai_responses, plain
from agentctx.messages import Request


class Api(Protocol):
    """What each API module offers."""

    def read(self, body: Mapping[str, Any], /) -> Request: ...
    def write(self, request: Request, /) -> dict[str, Any]: ...


APIS: dict[str, Api] = {
    module.API: module for module in (openai_chat, openai_responses, anthropic, llama_completion, plain)
}


def api(name: str) -> Api:
    """An API by its name. Raises ``UsageError`` for an unknown one."""
    if name not in APIS:
        raise UsageError(f"no API is called {name!r}; choose from {', '.join(APIS)}")
    return APIS[name]


def read_request(name: str, body: Mapping[str, Any]) -> Request:
    """A request body of the named API as a Request. Raises ``InputError`` naming the field that is wrong."""
    return api(name).read(body)


def write_request(name: str, request: Request) -> dict[str, Any]:
    """A request as a body of the named API."""
    return api(name).write(request)


__all__ = [
    "APIS",
    "Api",
    "anthropic",
    "api",
    "llama_completion",
    "openai_chat",
    "openai_responses",
    "plain",
    "read_request",
    "write_request",
]
