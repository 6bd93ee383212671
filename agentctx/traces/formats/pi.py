"""pi sessions: JSONL, one event a line, provider usage on every reply."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from agentctx.interchange.times import seconds
from agentctx.messages import Message
from agentctx.traces.entry import Entry
from agentctx.traces.node import Node, rest_json
from agentctx.traces.parts import block_messages, content, role_of
from agentctx.traces.shape import Session
from agentctx.traces.source import stem
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


def _last_branch(records: list[Node]) -> list[Node]:
    """The records on the way to the last one, in the file's order; all of them where records name no parents."""
    by_id = {record.value["id"]: record for record in records if isinstance(record.value.get("id"), str)}
    if not any(isinstance(record.value.get("parentId"), str) for record in records):
        return records
    on_way: set[int] = set()
    record: Node | None = records[-1]
    while record is not None and id(record) not in on_way:
        on_way.add(id(record))
        parent = record.value.get("parentId")
        record = by_id.get(parent) if isinstance(parent, str) else None
    return [record for record in records if id(record) in on_way or record.value.get("type") == "session"]


def read(records: Iterable[Node], file: str) -> Iterator[Session]:
    """One session per file: of a session with branches, the branch that was written last."""
    entries: list[Entry] = []
    session_id, model = "", None
    for record in _last_branch(list(records)):
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
