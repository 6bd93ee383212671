"""Cline sessions: one JSON document, Anthropic-style blocks, the system prompt beside the messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentctx.interchange.times import seconds
from agentctx.messages import Message
from agentctx.traces.entry import Entry
from agentctx.traces.node import Node, rest_json
from agentctx.traces.parts import block_messages, content, role_of
from agentctx.traces.shape import Session
from agentctx.traces.source import stem
from agentctx.usage import Usage

FORMAT = "cline"


def recognizes(document: Any) -> bool:
    """Whether a document is a Cline session: by its own head, or a bare list of messages made of blocks."""
    if isinstance(document, dict):
        return isinstance(document.get("messages"), list) and "sessionId" in document and "agent" in document
    return False


def _usage(node: Node) -> Usage | None:
    value = node.value
    if not isinstance(value, dict):
        return None
    counts = {key: number for key, number in value.items() if isinstance(number, int)}
    return Usage(
        prompt=counts.get("inputTokens"),
        cached=counts.get("cacheReadTokens"),
        written=counts.get("cacheWriteTokens"),
        output=counts.get("outputTokens"),
    )


def read(document: Node) -> Iterator[Session]:
    """One session per file."""
    entries: list[Entry] = []
    model = None
    if document["system_prompt"].value:
        system = Message(role="system", content=content(document["system_prompt"]))
        entries.append(Entry(system, line=document.line))
    for node in document["messages"].items():
        role, at = role_of(node["role"]), seconds(node["ts"].value)
        extra = rest_json(node.obj(), "role", "content", "ts", "metrics")
        info = node["modelInfo"].value
        if model is None and isinstance(info, dict) and isinstance(info.get("id"), str):
            model = info["id"]
        call = f"message {len(entries)}" if role == "assistant" else None
        usage = _usage(node["metrics"]) if call else None
        entries.extend(
            Entry(message, call, at, usage, node.line, extra)
            for message in block_messages(role, node["content"])
        )
    session_id = document["sessionId"].maybe_text() or stem(document.file)
    yield Session(session_id, document.file, FORMAT, entries=tuple(entries), model=model)
