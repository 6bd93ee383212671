"""Logs of whole requests as sessions: each request with its own message list, and the conversation that they show."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile

from agentctx.errors import InputError
from agentctx.messages import Message, Request, Tool
from agentctx.traces.entry import Entry
from agentctx.traces.formats.text_log import TextCall, text_sessions
from agentctx.traces.logged_calls import record_reply, record_request
from agentctx.traces.records import LogRecord
from agentctx.traces.shape import LoggedRequest, Session
from agentctx.traces.source import stem
from agentctx.usage import Usage, usage_from_response

FORMAT = "request-log"


def _key(message: Message) -> tuple[object, ...]:
    """What makes two messages of consecutive requests the same, whatever shape they were sent in."""
    calls = tuple((call.id, call.name, _meaning(call.arguments)) for call in message.tool_calls)
    return (message.role, message.text_with_notes.strip(), calls, message.tool_call_id)


def _spoken(keys: Sequence[tuple[object, ...]]) -> list[tuple[object, ...]]:
    return [key for key in keys if key[0] not in ("system", "developer")]


def _meaning(arguments: str) -> str:
    try:
        return json.dumps(json.loads(arguments), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments


class _Conversation:
    """Requests of one conversation, oldest first."""

    def __init__(self) -> None:
        self.logged: list[LoggedRequest] = []
        self.keys: list[tuple[object, ...]] = []
        self.first = 0  # messages of the first request
        self.hint: str | None = None
        self.model: str | None = None

    def add(self, record: LogRecord, request: Request, keys: list[tuple[object, ...]]) -> None:
        reply = record_reply(record)
        usage = usage_from_response(record.response) if record.response is not None else None
        if not self.logged:
            self.first, self.hint = len(request.messages), record.session_hint
        self.logged.append(LoggedRequest(request, reply, record.at, usage, record.line))
        self.keys = keys
        self.model = self.model or request.params.model

    def likeness(self, keys: Sequence[tuple[object, ...]]) -> int:
        """How much a request looks like the next of this conversation; 0 when not at all.

        A common beginning counts most. Without one, the last reply may still be in it: the history was cut at its
        front, or its first message was edited. The system message says nothing: other conversations have it too.
        """
        mine, others = _spoken(self.keys), _spoken(keys)
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(mine, others, strict=False)))
        if shared:
            return shared + 1
        reply = self.logged[-1].reply
        return int(reply is not None and _key(reply) in others)

    def entries(self) -> tuple[Entry, ...]:
        """The conversation as its last request shows it, and the last reply behind it.

        A message is generated here when it was not in the first request. Usage and times are those of the request
        that a message came back from; of an edited message there is none.
        """
        replies: dict[tuple[object, ...], LoggedRequest] = {}
        for logged in self.logged:
            if logged.reply is not None:
                replies[_key(logged.reply)] = logged
        last = self.logged[-1]
        messages = [*last.request.messages, *([last.reply] if last.reply is not None else [])]
        found = []
        for index, message in enumerate(messages):
            generated = message.role == "assistant" and index >= self.first
            source = replies.get(_key(message)) if generated else None
            at: float | None = source.at if source else None
            usage: Usage | None = source.usage if source else None
            line = source.line if source else last.line
            found.append(Entry(message, f"message {index}" if generated else None, at, usage, line))
        return tuple(found)

    def tools(self) -> tuple[Tool, ...]:
        return self.logged[-1].request.tools


def _place(
    conversations: list[_Conversation], keys: list[tuple[object, ...]], hint: str | None
) -> _Conversation:
    """The conversation that a request continues: the one it looks most like, else a new one."""
    best, most = None, 0
    for conversation in conversations:
        if hint is not None and conversation.hint is not None and hint != conversation.hint:
            continue
        likeness = conversation.likeness(keys) + (hint is not None and hint == conversation.hint)
        if likeness > most:
            best, most = conversation, likeness
    if best is None:
        best = _Conversation()
        conversations.append(best)
    return best


def _text_call(record: LogRecord) -> TextCall:
    """A completion prompt or a text-only request. Raises ``InputError`` for a prompt of token ids."""
    text = record.request.get("prompt", record.request.get("input"))
    if not isinstance(text, str):
        raise InputError(
            "a prompt of token ids can't be replayed: its text is not in the log",
            file=record.file,
            line=record.line,
            field="request.prompt",
            remedy="log the prompt as text, or check the log with `agentctx check log`",
        )
    reply = record_reply(record)
    usage = usage_from_response(record.response) if record.response is not None else None
    return TextCall(text, None if reply is None else reply.text, record.at, record.line, usage)


def read(records: Iterable[LogRecord], file: str) -> Iterator[Session]:
    """One session per conversation in the log; each keeps its requests whole. Holds the whole log in memory.

    Raises ``InputError`` naming file and line for a body that its API would not take.
    """
    conversations: list[_Conversation] = []
    texts: list[TextCall] = []
    for record in records:
        if record.api in ("llama.completion", "text"):
            texts.append(_text_call(record))
            continue
        request = record_request(record)
        keys = [_key(message) for message in request.messages]
        _place(conversations, keys, record.session_hint).add(record, request, keys)
    yield from text_sessions(texts, stem(file), file, FORMAT)
    names: dict[str, int] = {}
    for conversation in conversations:
        name = conversation.hint or stem(file)
        names[name] = names.get(name, 0) + 1
        yield Session(
            name if names[name] == 1 else f"{name}/{names[name]}",
            file,
            FORMAT,
            tools=conversation.tools(),
            entries=conversation.entries(),
            requests=tuple(conversation.logged),
            model=conversation.model,
        )
