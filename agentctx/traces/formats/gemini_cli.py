"""Gemini CLI sessions: one JSON document; a reply holds its calls with their results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agentctx.interchange.times import seconds
from agentctx.messages import Message, ToolCall
from agentctx.traces.entry import Entry
from agentctx.traces.node import Node, rest_json
from agentctx.traces.parts import content
from agentctx.traces.shape import Session
from agentctx.traces.source import stem
from agentctx.usage import Usage

FORMAT = "gemini-cli"


def recognizes(document: Any) -> bool:
    """Whether a document is a Gemini CLI session."""
    return isinstance(document, dict) and {"sessionId", "projectHash", "messages"} <= document.keys()


def _usage(node: Node) -> Usage | None:
    tokens = node["tokens"].value
    if not isinstance(tokens, dict):
        return None
    counts = {key: value for key, value in tokens.items() if isinstance(value, int) and value >= 0}
    output = counts.get("output")
    if output is not None:
        output += counts.get("thoughts", 0)
    return Usage(prompt=counts.get("input"), cached=counts.get("cached"), output=output)


def _thoughts(node: Node) -> str | None:
    if not node["thoughts"].value:
        return None
    lines = []
    for thought in node["thoughts"].items():
        subject, text = thought["subject"].maybe_text(), thought["description"].maybe_text()
        lines.append(": ".join(part for part in (subject, text) if part))
    return "\n".join(lines)


def _result(call: Node) -> Message:
    """What the tool gave back: the output text where there is one, the whole response as JSON elsewhere."""
    texts = []
    for item in call["result"].items() if isinstance(call["result"].value, list) else ():
        value = item.value
        response = value.get("functionResponse", {}).get("response") if isinstance(value, dict) else None
        output = response.get("output") if isinstance(response, dict) else None
        texts.append(output if isinstance(output, str) else json.dumps(value, ensure_ascii=False))
    return Message(role="tool", tool_call_id=call["id"].maybe_text(), content="\n".join(texts))


def read(document: Node) -> Iterator[Session]:
    """One session per file. Notices of the program (``info``, ``error``) are no messages and are left out."""
    entries: list[Entry] = []
    model = None
    for node in document["messages"].items():
        kind, at = node["type"].text(), seconds(node["timestamp"].value)
        extra = rest_json(node.obj(), "type", "content", "timestamp", "toolCalls", "thoughts", "tokens")
        if kind == "user":
            entries.append(
                Entry(
                    Message(role="user", content=content(node["content"])),
                    at=at,
                    line=node.line,
                    extra_json=extra,
                )
            )
            continue
        if kind != "gemini":
            continue
        model = model or node["model"].maybe_text()
        calls = list(node["toolCalls"].items()) if node["toolCalls"].value else []
        message = Message(
            role="assistant",
            content=content(node["content"]),
            reasoning=_thoughts(node),
            tool_calls=tuple(
                ToolCall(
                    id=call["id"].maybe_text() or "",
                    name=call["name"].text(),
                    arguments=call["args"].value if call["args"].value is not None else {},
                    extra_json=rest_json(call.obj(), "id", "name", "args", "result"),
                )
                for call in calls
            ),
        )
        entries.append(Entry(message, f"message {len(entries)}", at, _usage(node), node.line, extra))
        entries.extend(
            Entry(_result(call), at=seconds(call["timestamp"].value), line=node.line) for call in calls
        )
    session_id = document["sessionId"].maybe_text() or stem(document.file)
    yield Session(session_id, document.file, FORMAT, entries=tuple(entries), model=model)
