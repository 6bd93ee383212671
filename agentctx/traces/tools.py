"""Tool definitions in the shapes of the APIs, as Tools."""

from __future__ import annotations

from agentctx.messages import Tool, canonical_json
from agentctx.traces.node import Node, rest_json


def tool(node: Node) -> Tool:
    """One definition: ``{type, function: {…}}``, ``{name, input_schema}``, ``{name, parameters}``, or a tool that
    the provider runs, known by its type only.
    """
    value = node.obj()
    inner = node["function"] if isinstance(value.get("function"), dict) else node
    fields = inner.obj()
    key = next((key for key in ("parameters", "input_schema", "inputSchema") if key in fields), "parameters")
    schema = fields.get(key)
    name = fields.get("name") or fields.get("type")
    if not isinstance(name, str) or not name:
        raise node.error("a tool without a name")
    taken = ("name", "description", key)
    extra = rest_json(fields, *taken, *(("type",) if value.get("type") in (None, "function") else ()))
    if inner is not node:
        outer = rest_json(value, "type", "function")
        extra = outer if extra is None else extra
    description = fields.get("description")
    return Tool(
        name=name,
        description=description if isinstance(description, str) else "",
        parameters_json=canonical_json(schema if schema is not None else {}),
        extra_json=extra,
    )


def tools_of(node: Node) -> tuple[Tool, ...]:
    """A list of definitions; nothing where there is none."""
    return tuple(tool(item) for item in node.items()) if node.value else ()
