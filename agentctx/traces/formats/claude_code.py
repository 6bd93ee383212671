"""Claude Code sessions: JSONL, one event a line; the blocks of one reply stand on lines of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from agentctx.traces.conversation import joined
from agentctx.traces.entry import Entry
from agentctx.traces.node import Node, rest_json
from agentctx.traces.parts import block_messages, role_of
from agentctx.traces.shape import Session
from agentctx.traces.source import stem
from agentctx.traces.times import seconds
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


def read(records: Iterable[Node], file: str) -> Iterator[Session]:
    """One session per file. Blocks of one reply that stand next to each other are one message."""
    entries: list[Entry] = []
    session_id, model = "", None
    last_id: str | None = None
    for record in records:
        value = record.obj()
        session_id = session_id or str(value.get("sessionId") or "")
        if value.get("type") not in ("user", "assistant"):
            continue
        body = record["message"]
        message = body.obj()
        role = role_of(body["role"] if "role" in message else record["type"])
        reply_id = message.get("id") if isinstance(message.get("id"), str) else None
        model = model or (message.get("model") if isinstance(message.get("model"), str) else None)
        usage, at = _usage(body), seconds(value.get("timestamp"))
        extra = rest_json(value, "type", "message", "timestamp")
        for new in block_messages(role, body["content"]):
            continues = reply_id is not None and reply_id == last_id and new.role == "assistant"
            if continues and entries and entries[-1].message.role == "assistant":
                before = entries[-1]
                entries[-1] = replace(
                    before,
                    message=joined(before.message, new),
                    usage=usage or before.usage,
                    line=record.line,
                )
                continue
            call = (reply_id or f"line {record.line}") if new.role == "assistant" else None
            entries.append(Entry(new, call, at, usage if call else None, record.line, extra))
        last_id = reply_id
    yield Session(session_id or stem(file), file, FORMAT, entries=tuple(entries), model=model)
