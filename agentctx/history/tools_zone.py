"""The tools zone: one order whatever order tools arrive in, and how a late tool is told to the model."""

from __future__ import annotations

from collections.abc import Iterable

from agentctx.errors import HistoryError
from agentctx.history.records import ToolOrder
from agentctx.messages import Tool, canonical_json, canonical_tool_order


def arranged(tools: Iterable[Tool], order: ToolOrder) -> tuple[Tool, ...]:
    """The tools as the zone holds them. Raises ``HistoryError`` when two have one name."""
    given = tuple(tools)
    names = [tool.name for tool in given]
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise HistoryError("two tools have this name", item=f"tools ({twice})")
    return given if order == "given" else canonical_tool_order(given)


def announcement(tool: Tool) -> str:
    """The text of a message that names a tool and gives its schema."""
    names = canonical_json({"name": tool.name, "description": tool.description})[:-1]
    return f'A new tool is available from here on:\n{names},"parameters":{tool.parameters_json}}}'
