"""Logged requests as agentctx's own: the body as a Request, the response's reply as a Message."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from agentctx.errors import InputError
from agentctx.interchange import anthropic, openai_chat, openai_responses, read_request
from agentctx.messages import Message, Request
from agentctx.traces.conversation import joined
from agentctx.traces.records import LogRecord


def record_request(record: LogRecord) -> Request:
    """The record's body as a Request. Raises ``InputError`` naming file, line and field."""
    if record.api == "text":
        return Request(messages=(Message(role="user", content=str(record.request.get("input", ""))),))
    with _placed(record, "request"):
        return read_request(record.api, record.request)


def record_reply(record: LogRecord) -> Message | None:
    """The reply in the record's response; ``None`` where none was logged, or an error came back.

    Raises ``InputError`` naming file, line and field.
    """
    if record.response is None:
        return None
    with _placed(record, "response"):
        return _reply(record.api, record.response)


def _reply(api: str, response: Mapping[str, Any]) -> Message | None:
    match api:
        case "openai.chat":
            choices = response.get("choices")
            first = choices[0] if isinstance(choices, list) and choices else None
            message = first.get("message") if isinstance(first, dict) else None
            return None if message is None else openai_chat.read_message(message, "choices[0].message")
        case "anthropic.messages":
            content = response.get("content")
            return (
                None if content is None else anthropic.read_item({"role": "assistant", "content": content})[0]
            )
        case "openai.responses":
            output = response.get("output")
            pieces = openai_responses.read_items(output, "output") if isinstance(output, list) else []
            reply = None
            for piece in pieces:
                if piece.role == "assistant":
                    reply = piece if reply is None else joined(reply, piece)
            return reply
        case "text":
            return Message(role="assistant", content=str(response.get("output", "")))
        case _:
            text = response.get("content")
            return Message(role="assistant", content=text) if isinstance(text, str) else None


@contextmanager
def _placed(record: LogRecord, part: str) -> Iterator[None]:
    """Put file, line and the part of the record to an error about a body."""
    problem, field, remedy = "", part, "repair this record, or leave it out"
    try:
        yield
        return
    except InputError as error:
        problem, remedy = error.problem, error.remedy or remedy
        field = f"{part}.{error.field}" if error.field else part
        cause: Exception = error
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        # The importers check what they read, but a log is untrusted: what slips through must still name its line.
        problem, cause = f"this is no body of the API {record.api} ({type(error).__name__}: {error})", error
    raise InputError(problem, file=record.file, line=record.line, field=field, remedy=remedy) from cause
