"""OpenAI Responses: request bodies in and out without loss.

The items that a model produced in one go (reasoning, message, calls, and those of types that agentctx has no name for)
are one assistant message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentctx.errors import InputError
from agentctx.interchange import groups
from agentctx.interchange.calls import read_call, write_call
from agentctx.interchange.media import RESPONSES_TYPES, for_responses
from agentctx.interchange.parameters import read_params, write_params
from agentctx.interchange.parts import PartForm, read_content, write_content
from agentctx.interchange.tools import read_tool, write_tool
from agentctx.interchange.wire import (
    Misfit,
    fill,
    hint_of,
    need_list,
    need_object,
    need_text,
    ref,
    same,
)
from agentctx.messages import Content, Message, Part, Request, TextPart, ToolCall

API = "openai.responses"
_IN = PartForm(API, "input_text", RESPONSES_TYPES, for_responses)
_OUT = PartForm(API, "output_text", {}, for_responses)
_CALLS = ("function_call", "custom_tool_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_ROLES = ("user", "assistant", "system", "developer")


def read(body: Mapping[str, Any]) -> Request:
    """A request body as a Request; :func:`write` gives an equal body. Raises ``InputError`` naming the field."""
    tools = need_list(body.get("tools") or [], "tools")
    messages: list[Message] = []
    if isinstance(body.get("instructions"), str):
        messages.append(Message(role="system", content=body["instructions"]))
    items = body.get("input", [])
    if isinstance(items, str):
        message = Message(role="user", content=items)
        messages += groups.kept(API, [message], [ref(0, "content")], [False])
    else:
        messages += read_items(need_list(items, "input"))
    request = Request(
        tools=tuple(read_tool(API, tool, f"tools[{i}]") for i, tool in enumerate(tools)),
        messages=tuple(messages),
    )
    return request.model_copy(update={"params": read_params(API, body, _own(request))})


def write(request: Request) -> dict[str, Any]:
    """The request body: model, instructions, input, tools, parameters.

    Reasoning is carried only where it came as items of this API: the API takes no other.
    """
    return write_params(API, _own(request), request.params)


def _own(request: Request) -> dict[str, Any]:
    own: dict[str, Any] = {}
    messages = request.messages
    start = 1 if messages and messages[0].role == "system" and "of" not in hint_of(messages[0], API) else 0
    if start:
        own["instructions"] = messages[0].text_with_notes
    items = write_items(messages[start:])
    whole = len(items) == 1 and isinstance(items[0], str)
    own["input"] = items[0] if whole else items
    if request.tools:
        own["tools"] = [write_tool(API, tool) for tool in request.tools]
    return own


def read_items(items: Sequence[Any], where: str = "input") -> list[Message]:
    """The items of ``input`` as messages; what a model produced in one go is one of them."""
    messages: list[Message] = []
    produced: list[tuple[dict[str, Any], str]] = []
    custom: set[str] = set()
    for index, item in enumerate(items):
        place = f"{where}[{index}]"
        item = need_object(item, place)
        given = not _is_produced(item)
        if produced and (given or _begins_anew(item, produced)):
            messages.append(_read_produced(produced))
            produced = []
        if given:
            messages.append(_read_given(item, place, custom))
        else:
            produced.append((item, place))
            _note_calls([item], custom)
    return messages + ([_read_produced(produced)] if produced else [])


def read_reply(items: Sequence[Any], where: str = "output") -> Message:
    """A response's ``output`` as one assistant message: texts before and behind calls, several of them, or nothing at all."""
    return _read_produced(
        [(need_object(item, f"{where}[{at}]"), f"{where}[{at}]") for at, item in enumerate(items)]
    )


def _note_calls(items: Sequence[Any], custom: set[str]) -> None:
    """Keep the ids of the calls whose results are of a type of their own."""
    for item in items:
        if isinstance(item, dict) and item.get("type") in _CALLS and isinstance(item.get("call_id"), str):
            (custom.add if item["type"] == "custom_tool_call" else custom.discard)(item["call_id"])


def _is_produced(item: Mapping[str, Any]) -> bool:
    if item.get("type", "message") == "message":
        return item.get("role") == "assistant"
    return item.get("type") not in _OUTPUTS


def _begins_anew(item: Mapping[str, Any], produced: Sequence[tuple[dict[str, Any], str]]) -> bool:
    """Whether a produced item begins another assistant message: a text behind a text or a call."""
    if item.get("type", "message") != "message":
        return False
    return any(old.get("type", "message") == "message" or old["type"] in _CALLS for old, _ in produced)


def _read_given(item: dict[str, Any], where: str, custom: set[str]) -> Message:
    """A user or system message, or the output of a call."""
    is_output = item.get("type") in _OUTPUTS
    key = "output" if is_output else "content"
    if not is_output and item.get("role") not in _ROLES:
        raise InputError(
            f"{item.get('role')!r} is no role", field=f"{where}.role", remedy=f"use one of {_ROLES}"
        )
    content, content_shape = read_content(_IN, item.get(key), f"{where}.{key}")
    fields: dict[str, Any] = {"role": "tool" if is_output else item["role"], "content": content}
    if is_output:
        fields["tool_call_id"] = need_text(item.get("call_id"), f"{where}.call_id")
    message = Message(**fields)
    if message.role not in ("system", "developer") and same(_written([message], set(custom)), [item]):
        return message
    shape = dict(item)
    if key in shape:
        shape[key] = groups.addressed(content_shape, 0)
    if is_output:
        shape["call_id"] = ref(0, "tool_call_id")
    return groups.kept(API, [message], [shape], [item.get(key) is None])[0]


def _read_produced(items: Sequence[tuple[dict[str, Any], str]]) -> Message:
    """One assistant message for the items that a model produced in one go."""
    content, contents = _read_texts(items)
    calls: list[ToolCall] = []
    thoughts: list[str] = []
    shape: list[Any] = []
    for item, where in items:
        kind = item.get("type", "message")
        if kind == "message":
            shaped = contents.pop(0)
            shape.append({key: shaped if key == "content" else value for key, value in item.items()})
        elif kind in _CALLS:
            shape.append(ref(0, "call", len(calls)))
            calls.append(read_call(API, item, where))
        else:
            shape.append(item)
            if kind == "reasoning":
                thoughts += _thoughts(item)
    message = Message(
        role="assistant",
        content=content,
        reasoning="\n\n".join(thoughts) or None,
        tool_calls=tuple(calls),
    )
    if same(write_items([message]), [item for item, _ in items]):
        return message
    return groups.kept(API, [message], shape, [content == ""])[0]


def _read_texts(items: Sequence[tuple[dict[str, Any], str]]) -> tuple[Content, list[Any]]:
    """The content of all the texts among the items, and each one's shape."""
    read = [
        read_content(_OUT, item.get("content"), f"{where}.content")
        for item, where in items
        if item.get("type", "message") == "message"
    ]
    if len(read) < 2:
        content = read[0][0] if read else ""
        return content, [groups.addressed(shape, 0) for _, shape in read]
    parts: list[Part] = []
    shapes: list[Any] = []

    def moved(path: list[Any]) -> Any:
        return ref(0, path[0], start + path[1])

    for content, shape in read:
        start = len(parts)
        if isinstance(content, str):
            parts += [TextPart(text=content)] if shape is not None else []
            shapes.append(None if shape is None else ref(0, "text", start))
        else:
            parts += content
            shapes.append(fill(shape, moved))
    return tuple(parts), shapes


def _thoughts(item: Mapping[str, Any]) -> list[str]:
    parts = [*(item.get("summary") or []), *(item.get("content") or [])]
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return [text for text in texts if isinstance(text, str)]


def write_items(messages: Sequence[Message]) -> list[Any]:
    """Messages as the API's ``input`` items."""
    return _written(messages, set())


def _written(messages: Sequence[Message], custom: set[str]) -> list[Any]:
    """The same. ``custom``: ids of the custom tools' calls that were made before; it grows by those of the messages."""
    items: list[Any] = []
    for run, shape in groups.groups(API, messages, 0):
        start = len(items)
        if shape is not None:
            try:
                items += groups.filled(API, _form_of, run, shape, lambda call: write_call(API, call))
            except Misfit:
                shape = None
        if shape is None:
            for message in run:
                items += _write_message(message, custom)
        _note_calls(items[start:], custom)
    return items


def _form_of(message: Message) -> PartForm:
    return _OUT if message.role == "assistant" else _IN


def _write_message(message: Message, custom: set[str]) -> list[dict[str, Any]]:
    content = write_content(_form_of(message), message)
    if message.role == "tool":
        kind = "custom_tool_call_output" if message.tool_call_id in custom else "function_call_output"
        return [{"type": kind, "call_id": message.tool_call_id, "output": content}]
    items: list[dict[str, Any]] = []
    if content or not message.tool_calls:
        items.append({"role": message.role, "content": content})
    return items + [write_call(API, call) for call in message.tool_calls]


__all__ = ["API", "read", "read_items", "read_reply", "write", "write_items"]
