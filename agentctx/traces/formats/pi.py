"""pi sessions: JSONL, one event a line, provider usage on every reply."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from agentctx.messages import Message
from agentctx.traces.entry import Entry
from agentctx.traces.node import Node, rest_json
from agentctx.traces.parts import block_messages, content, role_of
from agentctx.traces.shape import Session
from agentctx.traces.source import stem
from agentctx.traces.times import seconds
from agentctx.usage import Usage

FORMAT = "pi"


def recognizes(record: dict[str, Any]) -> bool:
    """Whether a record is a line of a pi session."""
    kind = record.get("type")
    if kind == "session":
        return {"id", "timestamp", "cwd"} <= record.keys()
    message = record.get("message")
    return kind == "message" and isinstance(message, dict) and "role" in message and "timestamp" in record


def _usage(node: Node) -> Usage | None:
    """pi counts like Anthropic: ``input`` leaves out what was read from or written to the cache."""
    value = node.value
    if not isinstance(value, dict):
        return None
    counts = {
        key: value[key]
        for key in ("input", "cacheRead", "cacheWrite", "output")
        if isinstance(value.get(key), int)
    }
    if not any(counts.values()):
        return None  # an aborted reply: the provider said nothing
    prompt = counts.get("input", 0) + counts.get("cacheRead", 0) + counts.get("cacheWrite", 0)
    return Usage(prompt, counts.get("cacheRead"), counts.get("cacheWrite"), counts.get("output"))


def read(records: Iterable[Node], file: str) -> Iterator[Session]:
    """One session per file."""
    entries: list[Entry] = []
    session_id, model = "", None
    for record in records:
        value = record.obj()
        if value.get("type") == "session":
            session_id = session_id or str(value.get("id") or "")
            found = value.get("modelId")
            model = model or (found if isinstance(found, str) else None)
        if value.get("type") != "message":
            continue
        body = record["message"]
        role, at = body["role"].text(), seconds(value.get("timestamp"))
        extra = rest_json(body.obj(), "role", "content", "usage", "timestamp", "toolCallId")
        if role == "toolResult":
            message = Message(
                role="tool", tool_call_id=body["toolCallId"].maybe_text(), content=content(body["content"])
            )
            entries.append(Entry(message, at=at, line=record.line, extra_json=extra))
            continue
        if role not in ("user", "assistant"):
            continue  # notices that pi shows and never sends (bashExecution, custom, …)
        aborted = not body["content"].value and value["message"].get("stopReason") in ("aborted", "error")
        call = f"line {record.line}" if role == "assistant" and not aborted else None
        usage = _usage(body["usage"]) if call else None
        entries.extend(
            Entry(message, call, at, usage, record.line, extra)
            for message in block_messages(role_of(body["role"]), body["content"])
        )
    yield Session(session_id or stem(file), file, FORMAT, entries=tuple(entries), model=model)
