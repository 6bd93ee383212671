"""Claude Code sessions: JSONL, one event a line; the blocks of one reply stand on lines of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from agentctx.interchange.times import seconds
from agentctx.traces.conversation import joined
from agentctx.traces.entry import Entry
from agentctx.traces.node import Node, rest_json
from agentctx.traces.parts import block_messages, role_of
from agentctx.traces.shape import Session
from agentctx.traces.source import stem
from agentctx.usage import Usage, usage_from_anthropic

FORMAT = "claude-code"

_OWN_KEYS = (
    {"uuid", "sessionId"},
    {"leafUuid", "summary"},
    {"messageId", "snapshot"},
    {"operation", "sessionId"},
)


def recognizes(record: dict[str, Any]) -> bool:
    """Whether a record is a line of a Claude Code session."""
    return isinstance(record.get("type"), str) and any(keys <= record.keys() for keys in _OWN_KEYS)


def _usage(message: Node) -> Usage | None:
    value = message["usage"].value
    return usage_from_anthropic(value) if isinstance(value, dict) and value else None


class _Conversation:
    """The messages of one conversation of a file."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.model: str | None = None
        self._last_id: str | None = None

    def add(self, record: Node) -> None:
        """Take one line. Blocks of one reply that stand next to each other become one message."""
        value, body = record.obj(), record["message"]
        message = body.obj()
        role = role_of(body["role"] if "role" in message else record["type"])
        reply_id = message.get("id") if isinstance(message.get("id"), str) else None
        self.model = self.model or (message.get("model") if isinstance(message.get("model"), str) else None)
        usage, at = _usage(body), seconds(value.get("timestamp"))
        extra = rest_json(value, "type", "message", "timestamp")
        for new in block_messages(role, body["content"]):
            continues = reply_id is not None and reply_id == self._last_id and new.role == "assistant"
            if continues and self.entries and self.entries[-1].message.role == "assistant":
                before = self.entries[-1]
                self.entries[-1] = replace(
                    before,
                    message=joined(before.message, new),
                    usage=usage or before.usage,
                    line=record.line,
                )
                continue
            call = (reply_id or f"line {record.line}") if new.role == "assistant" else None
            self.entries.append(Entry(new, call, at, usage if call else None, record.line, extra))
        self._last_id = reply_id


def read(records: Iterable[Node], file: str) -> Iterator[Session]:
    """The session of a file, then the conversations of sub-agents that it holds, each a session of its own.

    A line that was written again when a session was resumed counts once.
    """
    conversations: dict[str, _Conversation] = {}
    side_of: dict[str, str] = {}  # line's uuid → the side conversation that it belongs to
    seen: set[str] = set()
    session_id = ""
    for record in records:
        value = record.obj()
        session_id = session_id or str(value.get("sessionId") or "")
        if value.get("type") not in ("user", "assistant"):
            continue
        uuid = str(value.get("uuid"))
        if "uuid" in value and uuid in seen:
            continue
        seen.add(uuid)
        side = ""
        if value.get("isSidechain") is True:
            # Newer versions name the sub-agent; in older ones a side conversation begins with a line without parent.
            parent = str(value.get("parentUuid"))
            side = str(value.get("agentId") or side_of.get(parent) or uuid)
            side_of[uuid] = side
        conversations.setdefault(side, _Conversation()).add(record)
    name = session_id or stem(file)
    main = conversations.pop("", None)
    if main is not None or not conversations:
        main = main or _Conversation()
        yield Session(name, file, FORMAT, entries=tuple(main.entries), model=main.model)
    for side, talk in conversations.items():
        yield Session(f"{name}/{side}", file, FORMAT, entries=tuple(talk.entries), model=talk.model)
