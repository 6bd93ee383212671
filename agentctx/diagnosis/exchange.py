"""Exchange: one recorded model call, as diagnosis takes it in: the raw bodies and when they went out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, get_args

from agentctx.errors import InputError

Api = Literal["openai.chat", "openai.responses", "anthropic.messages", "llama.completion", "text"]
"""``text``: only the text of prompt and answer was logged (``request["input"]``), no body of an API."""
APIS: tuple[Api, ...] = get_args(Api)


class RecordedCall(Protocol):
    """What diagnosis needs of a recorded call; ``Exchange`` and the records of ``agentctx.traces`` have it.

    The fields mean what they mean in ``Exchange``.
    """

    @property
    def api(self) -> Api: ...
    @property
    def request(self) -> Mapping[str, Any]: ...
    @property
    def response(self) -> Mapping[str, Any] | None: ...
    @property
    def at(self) -> float | None: ...
    @property
    def endpoint_hint(self) -> str | None: ...
    @property
    def line(self) -> int | None: ...
    @property
    def file(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request body and what came back for it.

    ``request`` and ``response`` are the parsed JSON bodies, kept as they were and never changed here.
    ``response`` is None when it wasn't recorded; an error body stays an error body.
    ``at`` is the start of the request in seconds since the epoch, None when unknown.
    ``endpoint_hint`` is whatever names the server: a URL, a command line, a note (``llama-server … -np 2``).
    ``line`` is the 1-based line of ``file`` that it was read from, for messages only.
    """

    api: Api
    request: Mapping[str, Any]
    response: Mapping[str, Any] | None = None
    at: float | None = None
    endpoint_hint: str | None = None
    line: int | None = None
    file: str | None = None


def detect_api(request: Mapping[str, Any], endpoint_hint: str | None = None) -> Api:
    """Which API a request body belongs to, from its fields (and the URL where the fields leave it open).

    Raises ``InputError`` when the body belongs to none of them.
    """
    hint = (endpoint_hint or "").lower()
    if "/v1/messages" in hint or "anthropic" in hint:
        return "anthropic.messages"
    if "/responses" in hint:
        return "openai.responses"
    if "/chat/completions" in hint:
        return "openai.chat"
    if "messages" in request:
        return "anthropic.messages" if _looks_anthropic(request) else "openai.chat"
    if "input" in request or "previous_response_id" in request:
        return "openai.responses"
    if "prompt" in request:
        return "llama.completion"
    raise InputError(
        "the request body has no messages, input or prompt",
        field="request",
        remedy="log the body that was sent to the chat, responses, messages or completion endpoint",
    )


def _looks_anthropic(request: Mapping[str, Any]) -> bool:
    if "system" in request:
        return True
    tools = request.get("tools")
    if isinstance(tools, list) and tools and isinstance(tools[0], Mapping):
        return "function" not in tools[0] and tools[0].get("type") != "function"
    messages = request.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, Mapping):
            return False
        if message.get("role") not in ("user", "assistant") or "tool_calls" in message:
            return False
        parts = message.get("content")
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, Mapping) and part.get("type") in ("tool_use", "tool_result", "thinking"):
                return True
    model = request.get("model")
    return isinstance(model, str) and "claude" in model.lower() and "max_tokens" in request


def parse_time(value: object) -> float | None:
    """Seconds since the epoch of an ISO 8601 text or a number (milliseconds are recognised), None for neither.

    A time without a zone is taken as UTC: only differences between times of one log matter.
    """
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        return float(value) / 1000 if value > 1e11 else float(value)
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.fromisoformat(value.strip())
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def exchange_of(record: Mapping[str, Any], *, line: int | None = None, file: str | None = None) -> Exchange:
    """An Exchange from a plain log record (``request``, ``response``, ``at``, ``api``, ``endpoint_hint``).

    A record that is itself a request body (no ``request`` field) is taken as one.

    Raises ``InputError`` naming file, line and field.
    """
    request = record.get("request", record)
    if not isinstance(request, Mapping):
        raise InputError("the request is not an object", file=file, line=line, field="request")
    response = record.get("response") if "request" in record else None
    hint = record.get("endpoint_hint") if "request" in record else None
    api = record.get("api") if "request" in record else None
    try:
        chosen = api if api in APIS else detect_api(request, hint if isinstance(hint, str) else None)
    except InputError as error:
        raise InputError(
            error.problem, file=file, line=line, field=error.field, remedy=error.remedy
        ) from None
    return Exchange(
        api=chosen,
        request=request,
        response=response if isinstance(response, Mapping) else None,
        at=parse_time(record.get("at")) if "request" in record else None,
        endpoint_hint=hint if isinstance(hint, str) else None,
        line=line,
        file=file,
    )
