"""Content of messages in the shapes of the APIs: text, media and blocks into agentctx's parts."""

from __future__ import annotations

import hashlib
from typing import Any, Literal

from agentctx.messages import Content, MediaPart, Message, Part, Role, TextPart, ToolCall, canonical_json
from agentctx.traces.node import Node, rest_json

# Tuples, not sets: what is looked up comes from outside and need not be hashable.
_TEXT_TYPES = (None, "text", "input_text", "output_text", "summary_text")
_MEDIA: dict[str, Literal["image", "file", "audio"]] = {
    "image": "image",
    "image_url": "image",
    "input_image": "image",
    "document": "file",
    "file": "file",
    "input_file": "file",
    "input_audio": "audio",
    "audio": "audio",
}


def media_part(kind: Literal["image", "file", "audio"], value: dict[str, Any]) -> MediaPart:
    """A media part known by the SHA-256 of its payload: the longest string in it (base64 data or a URL)."""
    payload, media_type = "", None
    stack: list[Any] = [value]
    while stack:
        item = stack.pop()
        if isinstance(item, dict):
            media_type = media_type or item.get("media_type") or item.get("mime_type") or item.get("mimeType")
            stack.extend(item.values())
        elif isinstance(item, list):
            stack.extend(item)
        elif isinstance(item, str) and len(item) > len(payload):
            payload = item
    return MediaPart(
        type=kind,
        sha256=hashlib.sha256(payload.encode()).hexdigest(),
        media_type=media_type if isinstance(media_type, str) else None,
        source_json=canonical_json(value),
    )


def part(node: Node) -> Part:
    """One part of a content list. A part of a kind that agentctx doesn't know becomes its JSON text."""
    if isinstance(node.value, str):
        return TextPart(text=node.value)
    value = node.obj()
    kind = value.get("type")
    if kind in _TEXT_TYPES and isinstance(value.get("text"), str):
        return TextPart(text=value["text"], extra_json=rest_json(value, "type", "text"))
    if isinstance(kind, str) and kind in _MEDIA:
        return media_part(_MEDIA[kind], value)
    if isinstance(value.get("text"), str):
        return TextPart(text=value["text"], extra_json=rest_json(value, "text"))
    return TextPart(text=canonical_json(value))


def content(node: Node) -> Content:
    """Content as the APIs write it: a string, a list of parts, or nothing."""
    if node.value is None:
        return ""
    if isinstance(node.value, str):
        return node.value
    if isinstance(node.value, list):
        return tuple(part(item) for item in node.items())
    if isinstance(node.value, dict):
        return (part(node),)
    raise node.error(f"expected text or a list of parts, found {type(node.value).__name__}")


def tool_call(node: Node) -> ToolCall:
    """A tool call in any of the shapes ``{function: {name, arguments}}``, ``{function: name, arguments}`` and
    ``{name, arguments | input | args}``.
    """
    value = node.obj()
    call_id = value.get("id") or value.get("call_id") or value.get("tool_call_id") or ""
    taken: tuple[str, ...]
    function = value.get("function")
    if isinstance(function, dict):
        name, arguments = node["function"]["name"], node["function"]["arguments"]
        taken = ("id", "function", "type") if value.get("type") in (None, "function") else ("id", "function")
    else:
        name = node["function"] if isinstance(function, str) else node["name"]
        key = next((key for key in ("arguments", "input", "args") if key in value), "arguments")
        arguments = node[key]
        taken = ("id", "call_id", "function", "name", key, "type")
    if arguments.value is None:
        text = ""
    else:
        text = arguments.value if isinstance(arguments.value, str) else arguments.json()
    return ToolCall(
        id=str(call_id), name=name.maybe_text() or "", arguments=text, extra_json=rest_json(value, *taken)
    )


def role_of(node: Node) -> Role:
    """A role by name; the old ``function`` is a tool's result. Raises ``InputError`` for another name."""
    match node.text():
        case "system" | "developer" | "user" | "assistant" | "tool" as role:
            return role
        case "function":
            return "tool"
        case other:
            raise node.error(f"unknown role {other!r}")


def openai_message(node: Node) -> Message:
    """A message in the shape of OpenAI chat completions, with the fields that other servers add to it."""
    value = node.obj()
    role = role_of(node["role"])
    reasoning_key = next(
        (key for key in ("reasoning_content", "reasoning") if isinstance(value.get(key), str)), None
    )
    calls = tuple(tool_call(call) for call in node["tool_calls"].items()) if value.get("tool_calls") else ()
    name = value.get("name")
    return Message(
        role=role,
        content=content(node["content"]),
        reasoning=value[reasoning_key] if reasoning_key else None,
        tool_calls=calls,
        tool_call_id=node["tool_call_id"].maybe_text(),
        name=name if isinstance(name, str) else None,
        extra_json=rest_json(
            value,
            "role",
            "content",
            "tool_calls" if calls or value.get("tool_calls") is None else "",
            "tool_call_id",
            "name" if isinstance(name, str) or name is None else "",
            reasoning_key or "",
        ),
    )


def block_messages(role: Role, node: Node) -> list[Message]:
    """A message made of Anthropic-style blocks: its tool results as tool messages, then what else it holds.

    Also reads pi's names for the blocks (``toolCall``, ``toolResult``) and Cline's ``file`` blocks.
    """
    if node.value is None or isinstance(node.value, str):
        return [Message(role=role, content=node.value or "")]
    results: list[Message] = []
    parts: list[Part] = []
    thoughts: list[str] = []
    thought_blocks: list[Any] = []
    calls: list[ToolCall] = []
    for block in node.items():
        if isinstance(block.value, str):
            parts.append(TextPart(text=block.value))
            continue
        value = block.obj()
        match str(value.get("type")).replace("-", "_"):
            case "thinking" | "redacted_thinking":
                thoughts.append(block["thinking"].maybe_text() or "")
                thought_blocks.append(value)
            case "tool_use" | "toolCall" | "tool_call" | "server_tool_use":
                calls.append(tool_call(block))
            case "tool_result" | "toolResult":
                results.append(_block_result(block))
            case "file" if isinstance(value.get("path"), str) and isinstance(value.get("content"), str):
                text = f"{value['path']}\n{value['content']}"
                parts.append(TextPart(text=text, extra_json=rest_json(value, "content")))
            case _:
                parts.append(part(block))
    if results and not (parts or thoughts or calls):
        return results
    signed = [block for block in thought_blocks if block.keys() - {"type", "thinking"}]
    message = Message(
        role=role,
        content=tuple(parts) if parts else "",
        reasoning="\n".join(thoughts) if thoughts else None,
        tool_calls=tuple(calls),
        extra_json=canonical_json({"thinking": signed}) if signed else None,
    )
    return [*results, message]


def _block_result(block: Node) -> Message:
    key = "tool_use_id" if "tool_use_id" in block else "toolCallId"
    return Message(
        role="tool",
        tool_call_id=block[key].maybe_text(),
        content=content(block["content"]),
        extra_json=rest_json(block.obj(), "type", key, "content"),
    )
