"""Tool calls in the shape of each API; the arguments stay the string that they came as."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from agentctx.errors import InputError
from agentctx.interchange.wire import Misfit, fill, hint_of, need_object, packed, ref, same
from agentctx.messages import JSON_DECODER, ToolCall, canonical_json


def read_call(api: str, item: Any, where: str) -> ToolCall:
    """One tool call. Raises ``InputError`` naming the field that is missing."""
    item = need_object(item, where)
    inner_key = next((key for key in ("function", "custom") if isinstance(item.get(key), dict)), None)
    inner = item[inner_key] if inner_key else item
    names = {"id": "call_id" if api == "openai.responses" else "id", "name": "name"}
    names["arguments"] = "arguments" if "arguments" in inner else "input"
    for holder, field in ((item, "id"), (inner, "name")):
        if not isinstance(holder.get(names[field]), str):
            inside = f".{inner_key}" if holder is inner and inner_key else ""
            raise InputError("a tool call needs this", field=f"{where}{inside}.{names[field]}")
    arguments = inner.get(names["arguments"], "")
    call = ToolCall(id=item[names["id"]], name=inner["name"], arguments=arguments)
    if same(write_call(api, call), item):
        return call
    kept = ref("arguments") if isinstance(arguments, str) else ref("object")
    shape = {key: ref("id") if key == names["id"] else value for key, value in item.items()}
    inner_shape = {
        key: ref("name") if key == "name" else kept if key == names["arguments"] else value
        for key, value in (inner if inner_key else shape).items()
    }
    shape = {**shape, inner_key: inner_shape} if inner_key else inner_shape
    return call.model_copy(update={"extra_json": packed(api, {}, shape=shape)})


def write_call(api: str, call: ToolCall) -> dict[str, Any]:
    """One tool call as the API takes it."""
    if shape := hint_of(call, api).get("shape"):
        try:
            return need_object(fill(shape, lambda path: _value(api, call, path)), "tool call")
        except Misfit:
            pass
    match api:
        case "anthropic.messages":
            return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments_object(call)}
        case "openai.responses":
            return {
                "type": "function_call",
                "call_id": call.id,
                "name": call.name,
                "arguments": call.arguments,
            }
        case "plain":
            return {"id": call.id, "name": call.name, "arguments": call.arguments}
        case _:
            function = {"name": call.name, "arguments": call.arguments}
            return {"id": call.id, "type": "function", "function": function}


def arguments_object(call: ToolCall) -> dict[str, Any]:
    """The arguments for an API that takes an object."""
    return object_of(call.arguments)


def object_of(arguments: str) -> dict[str, Any]:
    """Arguments as an object; a string that holds none, such as one that was cut off, stands under ``arguments``."""
    try:
        value = JSON_DECODER.decode(arguments) if arguments.strip() else {}
    except ValueError:
        value = arguments
    return value if isinstance(value, dict) else {"arguments": value}


def _value(api: str, call: ToolCall, path: list[Any]) -> Any:
    match path:
        case ["id" | "name" | "arguments" as field]:
            return getattr(call, field)
        case ["object"]:
            with suppress(ValueError):
                value = JSON_DECODER.decode(call.arguments)
                if canonical_json(value) == call.arguments:
                    return value
            if api == "anthropic.messages":
                return arguments_object(call)
    raise Misfit
