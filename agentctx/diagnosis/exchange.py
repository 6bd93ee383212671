"""Exchange: one recorded model call, as diagnosis takes it in: the raw bodies and when they went out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from agentctx.errors import InputError
from agentctx.interchange.body_api import APIS, Api, body_api
from agentctx.interchange.times import seconds


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
    @property
    def as_sent(self) -> bool: ...
    @property
    def session_hint(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request body and what came back for it.

    ``request`` and ``response`` are the parsed JSON bodies, kept as they were and never changed here.
    ``response`` is None when it wasn't recorded; an error body stays an error body.
    ``at`` is the start of the request in seconds since the epoch, None when unknown.
    ``endpoint_hint`` is whatever names the server: a URL, a command line, a note (``llama-server … -np 2``).
    ``line`` is the 1-based line of ``file`` that it was read from, for messages only.
    ``as_sent``: the request is the body that went over the wire. One that was put together from a recording of the
    conversation shows what was said, but not markers, and nothing that the client did unseen: what the server's
    counts then say is suspected, not proven.
    ``session_hint`` is the conversation that the log itself names, None where it names none.
    """

    api: Api
    request: Mapping[str, Any]
    response: Mapping[str, Any] | None = None
    at: float | None = None
    endpoint_hint: str | None = None
    line: int | None = None
    file: str | None = None
    as_sent: bool = True
    session_hint: str | None = None


_FIELDS: tuple[tuple[str, Api], ...] = (
    ("messages", "openai.chat"),
    ("input", "openai.responses"),
    ("previous_response_id", "openai.responses"),
    ("prompt", "llama.completion"),
)


def detect_api(request: Mapping[str, Any], endpoint_hint: str | None = None) -> Api:
    """Which API a request body belongs to, from its fields (and the URL where the fields leave it open).

    Unlike ``body_api`` this takes it as given that the body is a request to a model.
    Raises ``InputError`` when the body belongs to none of them.
    """
    found = body_api(request, url=endpoint_hint) or next(
        (api for name, api in _FIELDS if name in request), None
    )
    if found is None:
        raise InputError(
            "the request body has no messages, input or prompt",
            field="request",
            remedy="log the body that was sent to the chat, responses, messages or completion endpoint",
        )
    return found


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
    session = record.get("session_hint") if "request" in record else None
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
        at=seconds(record.get("at")) if "request" in record else None,
        endpoint_hint=hint if isinstance(hint, str) else None,
        line=line,
        file=file,
        session_hint=session if isinstance(session, str) else None,
    )
