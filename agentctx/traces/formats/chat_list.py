"""Recorders that store a list of chat messages in one JSON document.

SWE-agent (``history``), tau-bench (``traj``), Inspect (``messages`` of an eval sample), mini-swe-agent
(``messages``, or the bare list), OpenHands SDK (the bare list).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from agentctx.errors import InputError
from agentctx.interchange.times import seconds
from agentctx.messages import Message, Part, TextPart, Tool
from agentctx.traces.entry import Entry
from agentctx.traces.node import Node
from agentctx.traces.parts import block_messages, openai_message, role_of
from agentctx.traces.shape import Session
from agentctx.traces.source import parse_text, stem
from agentctx.traces.tools import tools_of
from agentctx.usage import Usage, usage_from_response

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


@dataclass(frozen=True, slots=True)
class _Found:
    """Where in a document the messages are: the recorder's name and the key, ``""`` for a bare list."""

    format: str
    key: str


def _is_chat(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, dict) and item.get("role") in _ROLES for item in value)
    )


def _find(document: Any) -> _Found | None:
    if _is_chat(document):
        return _Found("chat-messages", "")
    if not isinstance(document, dict):
        return None
    if isinstance(document.get("history"), list) and _is_chat(document["history"][:1]):
        return _Found("swe-agent", "history")
    if isinstance(document.get("traj"), list):
        return _Found("tau-bench", "traj")
    if isinstance(document.get("messages"), list):
        if {"id", "epoch"} <= document.keys():
            return _Found("inspect", "messages")
        recorder = document.get("trajectory_format")
        if (isinstance(recorder, str) and recorder.startswith("mini-swe-agent")) or "info" in document:
            return _Found("mini-swe-agent", "messages")
    if isinstance(document.get("samples"), list) and "eval" in document:
        return _Found("inspect", "samples")
    return None


def recognizes(document: Any) -> bool:
    """Whether a document is one of these recordings, or (tau-bench results) a list of them."""
    if _find(document) is not None:
        return True
    return (
        isinstance(document, list)
        and bool(document)
        and all(_find(item) is not None for item in document[:20])
    )


def read(document: Node) -> Iterator[Session]:
    """One session per recording in the document."""
    if isinstance(document.value, list) and _find(document.value) is None:
        for item in document.items():
            yield from read(item)
        return
    found = _find(document.value)
    if found is None:
        raise document.error("no list of chat messages here")
    if found.key == "samples":  # a whole eval log of Inspect
        for sample in document["samples"].items():
            yield from read(sample)
        return
    if found.format == "inspect":
        document = _with_attachments(document)
    head: dict[str, Any] = document.value if isinstance(document.value, dict) else {}
    messages = document[found.key] if found.key else document
    read_one = _block_entries if _has_blocks(messages.value) else _chat_entries
    entries = tuple(
        entry for index, node in enumerate(messages.items()) for entry in read_one(node, found.format, index)
    )
    yield Session(
        _session_id(head, found.format) or stem(document.file),
        document.file,
        found.format,
        tools=_tools(document, head),
        entries=entries,
        model=_model(head),
    )


def _session_id(head: dict[str, Any], recorder: str) -> str:
    keys = {"tau-bench": ("task_id", "trial"), "inspect": ("id", "epoch")}.get(recorder, ("instance_id",))
    return "-".join(str(head[key]) for key in keys if key in head)


def _model(head: dict[str, Any]) -> str | None:
    output = head.get("output")
    model = output.get("model") if isinstance(output, dict) else None
    return model if isinstance(model, str) else None


def _tools(document: Node, head: dict[str, Any]) -> tuple[Tool, ...]:
    return tools_of(document["tools"]) if isinstance(head.get("tools"), list) else ()


def _has_blocks(messages: Any) -> bool:
    """Whether messages are made of Anthropic's blocks (Cline's older task files), not in the shape of chat completions."""
    kinds = ("tool_use", "tool_result", "thinking")
    return any(
        isinstance(block, dict) and block.get("type") in kinds
        for message in messages
        if isinstance(message, dict) and isinstance(message.get("content"), list)
        for block in message["content"]
    )


def _block_entries(node: Node, recorder: str, index: int) -> Iterator[Entry]:
    call = f"message {index}" if node["role"].value == "assistant" else None
    at = seconds(node["ts"].value)
    for message in block_messages(role_of(node["role"]), node["content"]):
        yield Entry(message, call, at, line=node.line)


def _chat_entries(node: Node, recorder: str, index: int) -> Iterator[Entry]:
    value = node.obj()
    if recorder == "mini-swe-agent" and value.get("role") == "exit":
        return  # the program's own last note; no model reads it
    message = _without_reasoning_parts(openai_message(node))
    if (
        message.tool_call_id is None
        and isinstance(value.get("tool_call_ids"), list)
        and value["tool_call_ids"]
    ):
        # SWE-agent names the calls that a message answers in a list; it runs one call at a time.
        answers = next(iter(node["tool_call_ids"].items())).text()
        message = message.model_copy(update={"tool_call_id": answers})
    demonstration = bool(value.get("is_demo")) or value.get("source") == "input"
    generated = message.role == "assistant" and not demonstration
    extra = value.get("extra")
    at = seconds(value.get("timestamp") or (extra.get("timestamp") if isinstance(extra, dict) else None))
    yield Entry(message, f"message {index}" if generated else None, at, _usage(value), node.line)


def _without_reasoning_parts(message: Message) -> Message:
    """Inspect keeps what a model thought as a part of the content: move it to where thoughts belong."""
    if isinstance(message.content, str):
        return message
    kept: list[Part] = []
    thoughts: list[str] = []
    for part in message.content:
        thought = _thought(part)
        if thought is None:
            kept.append(part)
        else:
            thoughts.append(thought)
    if not thoughts:
        return message
    return message.model_copy(update={"content": tuple(kept), "reasoning": "\n".join(thoughts)})


def _thought(part: Part) -> str | None:
    if not isinstance(part, TextPart) or not part.text.startswith('{"type":"reasoning"'):
        return None
    found = parse_text(part.text).get("reasoning")
    return found if isinstance(found, str) else None


def _usage(value: dict[str, Any]) -> Usage | None:
    """mini-swe-agent keeps the provider's whole response beside the message."""
    extra = value.get("extra")
    response = extra.get("response") if isinstance(extra, dict) else None
    return usage_from_response(response) if isinstance(response, dict) else None


_ATTACHMENT = "attachment://"


def _with_attachments(document: Node) -> Node:
    """Inspect stores long strings apart and leaves ``attachment://<hash>`` in their place: put them back."""
    store = document["attachments"].value
    texts = store if isinstance(store, dict) else {}

    def resolve(value: Any, path: str) -> Any:
        if isinstance(value, str) and value.startswith(_ATTACHMENT):
            text = texts.get(value.removeprefix(_ATTACHMENT))
            if not isinstance(text, str):
                raise InputError(
                    "an attachment is missing",
                    file=document.file,
                    line=document.line,
                    field=path,
                    remedy="export the sample together with its attachments",
                )
            return text
        if isinstance(value, list):
            return [resolve(item, f"{path}[{index}]") for index, item in enumerate(value)]
        if isinstance(value, dict):
            return {key: resolve(item, f"{path}.{key}") for key, item in value.items()}
        return value

    whole = {**document.obj(), "messages": resolve(document.obj()["messages"], "messages")}
    return Node(whole, document.file, document.line, document.path)
