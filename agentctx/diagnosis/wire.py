"""Raw request bodies as ``agentctx.messages.Request``, with the way back from each message to its place in the body."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from agentctx.diagnosis.compare import MARKERS
from agentctx.diagnosis.views import Item, View, role_of, texts_of
from agentctx.messages import (
    MediaPart,
    Message,
    Params,
    Request,
    TextPart,
    Tool,
    ToolCall,
    canonical_json,
)

Role = Literal["system", "developer", "user", "assistant", "tool"]
_ROLES: dict[str, Role] = {
    "system": "system", "developer": "developer", "user": "user", "assistant": "assistant", "tool": "tool",
    "function": "tool", "model": "assistant", "human": "user", "ai": "assistant",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Mapped:
    """A request and, for each of its messages, the first item of the body that went into it (-1: the system prompt)."""

    request: Request
    origins: tuple[int, ...]
    paths: tuple[str, str]


def request_of(view: View, previous: Mapped | None = None, shared: int = 0) -> Mapped:
    """The request that a view stands for.

    ``shared`` leading items are the same as in ``previous``: their messages are taken over, not built again.
    """
    messages: list[Message] = []
    origins: list[int] = []
    start = 0
    if previous is not None and shared > 0 and _same_head(view, previous):
        keep = len(previous.origins)
        while keep and previous.origins[keep - 1] >= shared:
            keep -= 1
        # A run of assistant items makes one message, which may still grow: the last item is read anew, whole.
        start = max(0, previous.origins[keep - 1]) if keep else 0
        while keep and previous.origins[keep - 1] >= start:
            keep -= 1
        messages.extend(previous.request.messages[:keep])
        origins.extend(previous.origins[:keep])
    if not messages and view.system:
        messages.append(Message(role="system", content=_content(view.system)))
        origins.append(-1)
        start = 0
    for origin, message in _messages(view.items, start):
        messages.append(message)
        origins.append(origin)
    tools = tuple(map(tool_of, view.tools))
    if previous is not None and previous.request.tools == tools:
        tools = previous.request.tools
    return Mapped(
        Request(tools=tools, messages=tuple(messages), params=Params(model=view.model)),
        tuple(origins),
        (view.path, view.system_path),
    )


def _same_head(view: View, previous: Mapped) -> bool:
    first = previous.request.messages[0] if previous.request.messages else None
    if previous.origins[:1] != (-1,):
        return not view.system
    return bool(view.system) and first is not None and first.content == _content(view.system)


def place_of(mapped: Mapped, index: int, field: str) -> str:
    """The path in the body of a field of message ``index`` (fields as in ``agentctx.rendering.prompt.Span``)."""
    origin = mapped.origins[index] if index < len(mapped.origins) else -1
    if origin < 0:
        return mapped.paths[1]
    name = {"reasoning": "reasoning_content", "note": "content"}.get(field, field)
    return f"{mapped.paths[0]}[{origin}].{name}"


def _messages(items: Sequence[Item], start: int) -> Iterable[tuple[int, Message]]:
    index = start
    while index < len(items):
        end = index + 1
        if _is_bare(items[index]):
            while end < len(items) and _is_bare(items[end]):
                end += 1
            yield index, _merged(items[index:end])
        else:
            for message in _item_messages(items[index]):
                yield index, message
        index = end


def _is_bare(item: Item) -> bool:
    """An item of the Responses API that is a piece of an assistant's turn."""
    return item.get("type") in ("reasoning", "function_call", "custom_tool_call") or (
        item.get("type") == "message" and item.get("role") == "assistant"
    )


def _merged(items: Sequence[Item]) -> Message:
    reasoning: list[str] = []
    texts: list[str] = []
    calls: list[ToolCall] = []
    for item in items:
        kind = item.get("type")
        if kind == "reasoning":
            reasoning.extend(texts_of(item))
            encrypted = item.get("encrypted_content")
            if isinstance(encrypted, str):
                reasoning.append(encrypted)
        elif kind == "message":
            texts.extend(texts_of(item.get("content")))
        else:
            calls.append(
                _call(item.get("call_id"), item.get("name"), item.get("arguments", item.get("input")))
            )
    return Message(
        role="assistant",
        content="\n".join(texts),
        reasoning="\n".join(reasoning) if reasoning else None,
        tool_calls=tuple(calls),
    )


def _call(identifier: Any, name: Any, arguments: Any) -> ToolCall:
    text = arguments if isinstance(arguments, str) else canonical_json(_without_markers(arguments or {}))
    return ToolCall(id=str(identifier or ""), name=str(name or ""), arguments=text)


def _without_markers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_markers(inner) for key, inner in value.items() if key not in MARKERS}
    return [_without_markers(inner) for inner in value] if isinstance(value, list) else value


def _item_messages(item: Item) -> list[Message]:
    kind = item.get("type")
    if isinstance(kind, str) and kind.endswith("_output"):
        return [
            Message(
                role="tool", content=_content(item.get("output")), tool_call_id=_text(item.get("call_id"))
            )
        ]
    content = item.get("content")
    if isinstance(content, list) and _has_blocks(content):
        return _block_messages(role_of(item), content)
    calls = item.get("tool_calls")
    made = []
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            made.append(_call(call.get("id"), function.get("name"), function.get("arguments")))
    reasoning = next(
        (
            value
            for key in ("reasoning_content", "reasoning")
            if isinstance(value := item.get(key), str) and value
        ),
        None,
    )
    return [
        Message(
            role=_ROLES.get(role_of(item), "user"),
            content=_content(content),
            reasoning=reasoning,
            tool_calls=tuple(made),
            tool_call_id=_text(item.get("tool_call_id")),
            name=_text(item.get("name")),
        )
    ]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


_BLOCKS = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking"})


def _has_blocks(content: list[Any]) -> bool:
    return any(isinstance(part, Mapping) and part.get("type") in _BLOCKS for part in content)


def _block_messages(role: str, content: list[Any]) -> list[Message]:
    """Anthropic's blocks: results become messages of their own, thinking and calls fields of one message."""
    results: list[Message] = []
    rest: list[Any] = []
    reasoning: list[str] = []
    calls: list[ToolCall] = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind == "tool_result":
            results.append(
                Message(
                    role="tool",
                    content=_content(part.get("content")),
                    tool_call_id=_text(part.get("tool_use_id")),
                )
            )
        elif kind in ("thinking", "redacted_thinking"):
            reasoning.append(str(part.get("thinking") or part.get("data") or ""))
        elif kind == "tool_use":
            calls.append(_call(part.get("id"), part.get("name"), part.get("input")))
        else:
            rest.append(part)
    if rest or reasoning or calls or not results:
        results.append(
            Message(
                role=_ROLES.get(role, "user"),
                content=_content(rest),
                reasoning="\n".join(reasoning) if reasoning else None,
                tool_calls=tuple(calls),
            )
        )
    return results


def _content(value: Any) -> str | tuple[TextPart | MediaPart, ...]:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        return canonical_json(value)
    parts: list[TextPart | MediaPart] = []
    for part in value:
        if isinstance(part, str):
            parts.append(TextPart(text=part))
        elif isinstance(part, Mapping):
            text = part.get("text")
            parts.append(TextPart(text=text) if isinstance(text, str) else _media(part))
    if all(isinstance(part, TextPart) for part in parts) and len(parts) == 1:
        return parts[0].text if isinstance(parts[0], TextPart) else ""
    return tuple(parts) if parts else ""


def _media(part: Mapping[str, Any]) -> MediaPart:
    source = canonical_json(_without_markers(part))
    kind = str(part.get("type", ""))
    medium: Literal["image", "file", "audio"] = (
        "image" if "image" in kind else "audio" if "audio" in kind else "file"
    )
    return MediaPart(type=medium, sha256=hashlib.sha256(source.encode()).hexdigest(), source_json=source)


def tool_of(tool: Item) -> Tool:
    """A declared tool, of any API."""
    function = tool.get("function")
    source = function if isinstance(function, Mapping) else tool
    schema = source.get("parameters", source.get("input_schema", {}))
    return Tool(
        name=str(source.get("name") or tool.get("type") or "tool"),
        description=str(source.get("description") or ""),
        parameters_json=canonical_json(_without_markers(schema or {})),
    )


def reply_message(choices: Sequence[Sequence[Item]]) -> Message | None:
    """The server's reply as one message; None when nothing was recorded."""
    for items in choices[:1]:
        built = [message for _, message in _messages(items, 0)]
        if len(built) == 1:
            return built[0]
    return None
