"""Our own files as logs of requests: lines of the log format, and recorded sessions call by call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentctx.errors import InputError
from agentctx.interchange import openai_chat
from agentctx.interchange.body_api import APIS
from agentctx.messages import Message, Params, Request
from agentctx.traces.containers.draft import Draft, Json
from agentctx.traces.node import Node
from agentctx.traces.shape import Session
from agentctx.usage import Usage

LOG_VERSION = 1


def is_logged_request(value: Any) -> bool:
    """Whether a value is a line of our log format."""
    return isinstance(value, dict) and value.get("agentctx") == "request"


def logged_request(node: Node) -> Draft:
    """One line of our log format. Raises ``InputError`` naming the field that is wrong."""
    if node["version"].value != LOG_VERSION:
        raise node["version"].error("an unknown version of the log format", "update agentctx")
    api = node["api"].text()
    known = next((name for name in APIS if name == api), None)
    if known is None:
        raise node["api"].error(f"unknown API {api!r}")
    at = node["at"].value
    if at is not None and (isinstance(at, bool) or not isinstance(at, (int, float))):
        raise node["at"].error("expected a number of seconds")
    return Draft(
        api=known,
        request=node["request"].obj(),
        response=node["response"].obj() if node["response"] else None,
        container=node["container"].maybe_text() or "body",
        at=at,
        endpoint_hint=node["endpoint_hint"].maybe_text(),
        session_hint=node["session_hint"].maybe_text(),
        extra=node["extra"].obj() if node["extra"] else {},
    )


def session_calls(session: Session) -> Iterator[tuple[Draft, int]]:
    """Every model call of a recorded session as a request of its own, with its line in the file.

    A session keeps messages, not bodies, so the body is the one that OpenAI's chat completions would have got.
    """
    if session.requests:
        for logged in session.requests:
            draft = _draft(session, logged.request, logged.reply, logged.at, logged.usage)
            yield draft, logged.line or 1
        return
    talk = session.conversation
    head = () if talk.system is None else (talk.system,)
    params = Params(model=session.model)
    for index, generated in enumerate(talk.generated):
        if generated:
            request = Request(tools=session.tools, messages=(*head, *talk.messages[:index]), params=params)
            draft = _draft(session, request, talk.messages[index], talk.at[index], talk.usage[index])
            yield draft, talk.lines[index] or 1


def _draft(
    session: Session, request: Request, reply: Message | None, at: float | None, usage: Usage | None
) -> Draft:
    response: Json = {}
    if reply is not None:
        response["choices"] = [{"index": 0, "message": openai_chat.write_message(reply)}]
    if usage is not None:
        response["usage"] = _usage(usage)
    try:
        body = openai_chat.write(request)
    except InputError as error:
        raise InputError(
            error.problem, file=session.file, line=1, field=error.field, remedy=error.remedy
        ) from error
    return Draft(
        api="openai.chat",
        request=body,
        response=response or None,
        container="session",
        at=at,
        session_hint=session.id,
    )


def _usage(usage: Usage) -> Json:
    counts: Json = {"prompt_tokens": usage.prompt, "completion_tokens": usage.output}
    details = {"cached_tokens": usage.cached, "cache_write_tokens": usage.written}
    found = {key: value for key, value in counts.items() if value is not None}
    lives = {"ephemeral_5m_input_tokens": usage.written_5m, "ephemeral_1h_input_tokens": usage.written_1h}
    by_life = {key: value for key, value in lives.items() if value is not None}
    known: Json = {key: value for key, value in details.items() if value is not None}
    if by_life:
        known["cache_creation_token_details"] = by_life
    return {**found, **({"prompt_tokens_details": known} if known else {})}
