"""Anthropic Messages: request bodies in and out without loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from agentctx.errors import InputError
from agentctx.interchange import groups
from agentctx.interchange.calls import read_call, write_call
from agentctx.interchange.media import ANTHROPIC_TYPES, for_anthropic
from agentctx.interchange.parameters import read_params, write_params
from agentctx.interchange.parts import (
    PartForm,
    check_state,
    content_state,
    content_value,
    read_content,
    read_part,
    write_content,
    write_parts,
)
from agentctx.interchange.tools import read_tool, write_tool
from agentctx.interchange.wire import (
    Misfit,
    fill,
    hint_of,
    need_list,
    need_object,
    need_text,
    packed,
    ref,
    same,
    unknown_of,
    without,
)
from agentctx.messages import Message, Part, Request, TextPart, ToolCall

API = "anthropic.messages"
_FORM = PartForm(API, "text", ANTHROPIC_TYPES, for_anthropic)
_RESULT = ("type", "tool_use_id", "content")


def read(body: Mapping[str, Any]) -> Request:
    """A request body as a Request; :func:`write` gives an equal body. Raises ``InputError`` naming the field."""
    items = need_list(body.get("messages"), "messages")
    tools = need_list(body.get("tools") or [], "tools")
    messages: list[Message] = []
    if "system" in body:
        messages.append(_read_system(body["system"]))
    for index, item in enumerate(items):
        apart = bool(messages) and messages[-1].role == "tool"
        messages += read_item(item, f"messages[{index}]", apart=apart)
    request = Request(
        tools=tuple(read_tool(API, tool, f"tools[{i}]") for i, tool in enumerate(tools)),
        messages=tuple(messages),
    )
    return request.model_copy(update={"params": read_params(API, body, _own(request))})


def write(request: Request) -> dict[str, Any]:
    """The request body: model, system, messages, tools, parameters.

    Reasoning without a signature is left out: the API refuses it. ``max_tokens``, which the API needs, is the
    caller's to set in the request's ``params``.
    """
    return write_params(API, _own(request), request.params)


def _own(request: Request) -> dict[str, Any]:
    own: dict[str, Any] = {}
    messages = request.messages
    start = 1 if messages and messages[0].role == "system" and not _stands_in_list(messages[0]) else 0
    if start:
        own["system"] = _write_system(messages[0])
    own["messages"] = write_items(messages[start:])
    if request.tools:
        own["tools"] = [write_tool(API, tool) for tool in request.tools]
    return own


def _stands_in_list(message: Message) -> bool:
    """Whether a system message was an item of the message list, not the ``system`` field."""
    return "of" in hint_of(message, API)


def _read_system(value: Any) -> Message:
    content, shape = read_content(_FORM, value, "system")
    message = Message(role="system", content=content)
    if same(_write_system(message), value):
        return message
    state = content_state(message, absent=value is None)
    return message.model_copy(update={"extra_json": packed(API, {}, system=shape, content=state)})


def _write_system(message: Message) -> Any:
    hint = hint_of(message, API)
    if "system" in hint:
        try:
            check_state(message, hint["content"])
            return fill(hint["system"], lambda path: content_value(_FORM, message, path))
        except Misfit:
            pass
    return write_content(_FORM, message)


def read_item(item: Any, where: str = "message", *, apart: bool = False) -> list[Message]:
    """One message of the list, or of a response: as many messages as it stands for.

    A user message with tool results is a tool message for each result, then a user message with what else it holds.
    ``apart``: the item must not run together with a default form before it when it is written again.
    """
    item = need_object(item, where)
    role = item.get("role")
    if role not in ("user", "assistant", "system"):
        raise InputError(f"{role!r} is no role here", field=f"{where}.role", remedy="use user or assistant")
    if not isinstance(item.get("content"), list):
        content, shape = read_content(_FORM, item.get("content"), f"{where}.content")
        messages = [Message(role=role, content=content)]
        shapes = [shape]
    elif role == "assistant":
        message, shapes = _read_assistant(item["content"], where)
        messages = [message]
    else:
        messages, shapes = _read_user(role, item["content"], where)
    must_keep = role == "system" or (apart and messages[0].role == "tool")
    if not must_keep and same(write_items(messages), [item]):
        return messages
    whole = shapes if isinstance(item.get("content"), list) else groups.addressed(shapes[0], 0)
    shape_of_item = {key: whole if key == "content" else value for key, value in item.items()}
    return groups.kept(API, messages, [shape_of_item], [_is_absent(message, item) for message in messages])


def _is_absent(message: Message, item: Mapping[str, Any]) -> bool:
    return message.content == "" and (item.get("content") is None or isinstance(item["content"], list))


def _read_assistant(blocks: list[Any], where: str) -> tuple[Message, list[Any]]:
    texts: list[Part] = []
    calls: list[ToolCall] = []
    thoughts: list[str] = []
    shape: list[Any] = []
    unknown: dict[str, Any] = {}
    for index, block in enumerate(blocks):
        place = f"{where}.content[{index}]"
        match need_object(block, place).get("type"):
            case "tool_use":
                shape.append(ref(0, "call", len(calls)))
                calls.append(read_call(API, block, place))
            case "thinking":
                thoughts.append(need_text(block.get("thinking"), f"{place}.thinking"))
                shape.append(block)
            case _:
                part = read_part(_FORM, block, place)
                shape.append(block if part is None else ref(0, "part", len(texts)))
                texts += [] if part is None else [part]
    thinking = [block for block in blocks if block.get("type") == "thinking"]
    if len(thinking) == 1:
        place_of_thought = blocks.index(thinking[0])
        shape[place_of_thought] = {
            key: ref(0, "reasoning") if key == "thinking" else value for key, value in thinking[0].items()
        }
        if isinstance(thinking[0].get("signature"), str):
            unknown["signature"] = thinking[0]["signature"]
    content: str | tuple[Part, ...] = tuple(texts)
    if len(texts) == 1 and isinstance(texts[0], TextPart) and texts[0].extra_json is None and len(blocks) > 1:
        content = texts[0].text
        shape = [
            {"type": "text", "text": ref(0, "content")} if block == ref(0, "part", 0) else block
            for block in shape
        ]
    elif not texts and blocks:
        content = ""
    message = Message(
        role="assistant",
        content=content,
        reasoning="\n\n".join(thoughts) if thoughts else None,
        tool_calls=tuple(calls),
        extra_json=packed(API, unknown) if unknown else None,
    )
    return message, shape


def _read_user(
    role: Literal["user", "system"], blocks: list[Any], where: str
) -> tuple[list[Message], list[Any]]:
    results = [block for block in blocks if isinstance(block, dict) and block.get("type") == "tool_result"]
    messages: list[Message] = []
    parts: list[Part] = []
    shape: list[Any] = []
    for index, block in enumerate(blocks):
        place = f"{where}.content[{index}]"
        if need_object(block, place).get("type") == "tool_result":
            message, block_shape = _read_result(block, len(messages), place)
            messages.append(message)
            shape.append(block_shape)
            continue
        part = read_part(_FORM, block, place)
        shape.append(block if part is None else ref(len(results), "part", len(parts)))
        parts += [] if part is None else [part]
    if len(results) < len(blocks) or not blocks:
        messages.append(Message(role=role, content=tuple(parts)))
    return messages, shape


def _read_result(block: dict[str, Any], at: int, where: str) -> tuple[Message, dict[str, Any]]:
    call_id = need_text(block.get("tool_use_id"), f"{where}.tool_use_id")
    content, content_shape = read_content(_FORM, block.get("content"), f"{where}.content")
    unknown = without(block, *_RESULT)
    extra = packed(API, unknown) if unknown else None
    message = Message(role="tool", content=content, tool_call_id=call_id, extra_json=extra)
    shape: dict[str, Any] = {key: ref(at, "unknown", key) for key in block}
    for key, value in (
        ("type", "tool_result"),
        ("tool_use_id", ref(at, "tool_call_id")),
        ("content", groups.addressed(content_shape, at)),
    ):
        if key in shape:
            shape[key] = value
    return message, shape


def write_items(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Messages as the API's list: results that follow each other share a user message, a reply of nothing has none."""
    items: list[dict[str, Any]] = []
    open_results: list[Any] | None = None
    for run, shape in groups.groups(API, messages, 0):
        if shape is not None:
            try:
                items += groups.filled(API, lambda _: _FORM, run, shape, lambda call: write_call(API, call))
                open_results = None
                continue
            except Misfit:
                pass
        for message in run:
            if message.role != "tool":
                item = _write_message(message)
                items += [item] if item["content"] or message.role != "assistant" else []
                open_results = None
                continue
            if open_results is None:
                open_results = []
                items.append({"role": "user", "content": open_results})
            open_results.append(_write_result(message))
    return items


def says_nothing(message: Message) -> bool:
    """Whether a message is a reply without content. The model may give one, and the API refuses to be sent it."""
    return message.role == "assistant" and not write_items([message])


def _write_message(message: Message) -> dict[str, Any]:
    if message.role != "assistant":
        role = "system" if message.role in ("system", "developer") else "user"
        return {"role": role, "content": write_content(_FORM, message)}
    signature = unknown_of(message, API).get("signature")
    signed = message.reasoning is not None and signature is not None
    if not message.tool_calls and not signed:
        return {"role": "assistant", "content": write_content(_FORM, message)}
    blocks: list[dict[str, Any]] = []
    if signed:
        blocks.append({"type": "thinking", "thinking": message.reasoning, "signature": signature})
    blocks += write_parts(_FORM, message)
    blocks += [write_call(API, call) for call in message.tool_calls]
    return {"role": "assistant", "content": blocks}


def _write_result(message: Message) -> dict[str, Any]:
    block = {
        "type": "tool_result",
        "tool_use_id": message.tool_call_id,
        "content": write_content(_FORM, message),
    }
    return block | unknown_of(message, API)
