"""Tool declarations in the shape of each API."""

from __future__ import annotations

import json
from typing import Any

from agentctx.errors import InputError
from agentctx.interchange.wire import fill, hint_of, need_object, packed, ref, same
from agentctx.messages import Tool, canonical_json


def read_tool(api: str, item: Any, where: str) -> Tool:
    """One tool. A tool that the provider runs itself (no schema) is known by its name or type."""
    item = need_object(item, where)
    inner_key = "function" if isinstance(item.get("function"), dict) else None
    inner = item[inner_key] if inner_key else item
    name = inner.get("name") or inner.get("type")
    if not isinstance(name, str) or not name:
        raise InputError("a tool needs a name", field=f"{where}.name")
    described = isinstance(inner.get("description"), str)
    schema = next((key for key in ("parameters", "input_schema") if isinstance(inner.get(key), dict)), None)
    tool = Tool(
        name=name,
        description=inner["description"] if described else "",
        parameters_json=canonical_json(inner[schema]) if schema else "{}",
    )
    if same(write_tool(api, tool), item):
        return tool
    inner_shape = dict(inner)
    if "name" in inner and inner["name"] == name:
        inner_shape["name"] = ref("name")
    if described:
        inner_shape["description"] = ref("description")
    if schema:
        inner_shape[schema] = ref("parameters")
    shape = {**item, inner_key: inner_shape} if inner_key else inner_shape
    return tool.model_copy(update={"extra_json": packed(api, {}, shape=shape)})


def write_tool(api: str, tool: Tool) -> dict[str, Any]:
    """One tool as the API takes it."""
    if shape := hint_of(tool, api).get("shape"):
        return need_object(fill(shape, lambda path: _value(tool, path)), "tool")
    named = {"name": tool.name, "description": tool.description}
    parameters = json.loads(tool.parameters_json)
    match api:
        case "anthropic.messages":
            return {**named, "input_schema": parameters or {"type": "object"}}
        case "openai.responses":
            return {"type": "function", **named, "parameters": parameters, "strict": False}
        case "plain":
            return {**named, "parameters": parameters}
        case _:
            return {"type": "function", "function": {**named, "parameters": parameters}}


def _value(tool: Tool, path: list[Any]) -> Any:
    if path == ["parameters"]:
        return json.loads(tool.parameters_json)
    return getattr(tool, path[0])
