"""Cache markers in a request: where they stand, how many blocks lie between them, whether they can be read."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agentctx.diagnosis.compare import MARKERS
from agentctx.diagnosis.views import View

Position = tuple[int, int, int]
"""Zone (0 tools, 1 system, 2 messages), item, part: orders places as the model reads them."""

_STEP = re.compile(r"\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Marker:
    """One cache marker: its path, its position, the content blocks up to and with it, the life it asks for."""

    path: str
    position: Position
    block: int
    life: str | None = None


def has_markers(view: View) -> bool:
    """Whether a request of this API may carry markers at all."""
    return view.api in ("anthropic.messages", "openai.chat")


def markers_of(view: View) -> list[Marker]:
    """All markers of a request, in prompt order."""
    if not has_markers(view):
        return []
    found: list[Marker] = []
    count = 0
    for position, path, block in _blocks(view):
        count += 1
        if isinstance(block, Mapping):
            name = next((key for key in MARKERS if block.get(key)), None)
            if name is not None:
                found.append(Marker(f"{path}.{name}", position, count, _life(block[name])))
    if isinstance(view.body.get("cache_control"), Mapping):
        # The automatic marker goes behind the last block.
        life = _life(view.body["cache_control"])
        found.append(Marker("cache_control", (2, len(view.items), 0), count, life))
    return found


def _life(marker: Any) -> str | None:
    life = marker.get("ttl") if isinstance(marker, Mapping) else None
    return life if isinstance(life, str) else None


def _blocks(view: View) -> Iterator[tuple[Position, str, Any]]:
    for index, tool in enumerate(view.tools):
        yield (0, index, 0), f"tools[{index}]", tool
    if isinstance(view.system, list):
        for index, block in enumerate(view.system):
            yield (1, index, 0), f"{view.system_path}[{index}]", block
    elif view.system:
        yield (1, 0, 0), view.system_path, None
    for index, item in enumerate(view.items):
        content = item.get("content")
        path = f"{view.path}[{index}]"
        if not isinstance(content, list) or not content:
            yield (2, index, 0), path, item
            continue
        for part, block in enumerate(content):
            yield (2, index, part), f"{path}.content[{part}]", block


def position_of(place: str) -> Position | None:
    """The position of a place in the body; None for parameters."""
    zone = 0 if place.startswith("tools") else 1 if place.startswith(("system", "instructions")) else 2
    if place.startswith("params."):
        return None
    steps = [int(step) for step in _STEP.findall(place.partition("@")[0])]
    # In a message the second index is a part only when it follows the content.
    part = steps[1] if len(steps) > 1 and ".content[" in place else 0
    return zone, steps[0] if steps else 0, part


def misplaced(before: View, after: View, place: str) -> Marker | None:
    """The marker that is to blame when the text at ``place`` changes from request to request: the first of all,
    standing still on a block that changes while static text before it has no marker. None when no marker is.
    """
    position = position_of(place)
    if position is None or position[0] == 0:
        return None
    old, new = markers_of(before), markers_of(after)
    if not old or not new or old[0].path != new[0].path:
        return None
    first = new[0]
    if first.position[0] == 0 or first.position < position or first.position[:2] != position[:2]:
        return None
    static_before = (position[0] == 2 and (bool(after.system) or position[1:] > (0, 0))) or position[1] > 0
    return first if static_before else None


def blocks_since(before: list[Marker], after: list[Marker]) -> int | None:
    """Blocks between the last marker of the earlier request and the nearest marker behind it in the later one.

    None when either has none, or when no marker of the later request lies behind.
    """
    if not before or not after:
        return None
    start = before[-1].block
    behind = [marker.block - start for marker in after if marker.block >= start]
    return min(behind) if behind else None
