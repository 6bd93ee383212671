"""What a break costs when no tokenizer is at hand: shares of the earlier prompt in characters, times its tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from agentctx.diagnosis.align import sent_again
from agentctx.diagnosis.breaks import Break
from agentctx.diagnosis.conversations import State, keys_of
from agentctx.diagnosis.turns import head_size
from agentctx.diagnosis.views import Item, View, text_of, texts_of

_STEP = re.compile(r"\.(\w+)|\[(\d+)\]")
_ORDER = (
    "reasoning_content", "reasoning", "thinking", "text", "content", "output", "summary", "name", "arguments", "input",
    "function", "tool_calls",
)  # fmt: skip
"""Fields in the order in which a model reads them."""


def share_before(state: State, found: Break | None) -> float:
    """Part of the earlier prompt, in characters, that stands before a break (1.0 without one)."""
    if found is None or found.zone == "params":
        return 1.0
    return min(1.0, _chars_before(state, found) / (state.chars or 1))


def _chars_before(state: State, found: Break) -> int:
    if found.zone == "model":
        return 0
    if found.zone == "tools":
        return _tools_before(state, found)
    if not state.keys:
        return found.at  # a finished prompt
    if found.zone == "system" and state.lead == 0:
        return _system_before(state, found)
    before = state.head + sum(state.sizes[: found.item])
    view = state.reference.view if state.reference is not None else None
    if view is None or found.item >= len(view.items):
        return before + (found.at if found.text_edit else 0)
    return before + _inside(view.items[found.item], found)


def _tools_before(state: State, found: Break) -> int:
    """Characters of the tools that are declared before the one that changed."""
    if state.reference is None:
        return 0
    tools = state.reference.view.tools
    inside = found.at if found.text_edit else 0
    return sum(len(str(tool)) for tool in tools[: found.item]) + inside


def _system_before(state: State, found: Break) -> int:
    """Characters of the tools, and of the system prompt as far as it stands before the break."""
    inside = found.at if found.text_edit else 0
    if state.reference is None:
        return max(0, state.head - len(found.was) + found.at)
    system = state.reference.view.system
    before = system[: found.item] if isinstance(system, list) else []
    return state.head - _length(system) + _length(before) + inside


def _length(value: Any) -> int:
    return sum(map(len, texts_of(value)))


def _inside(item: Item, found: Break) -> int:
    """Characters of an item's text that stand before the break in it."""
    if found.move is not None and found.move.kind != "edited":
        return 0
    path, _, offset = found.place.partition("@")
    # The first step names the list of items, the second the item itself.
    steps = [int(index) if index else name for name, index in _STEP.findall(f".{path}")][2:]
    return len(text_of(_cut(item, steps, int(offset or 0) if found.text_edit else 0))) if steps else 0


def _cut(value: Any, steps: list[str | int], offset: int) -> Any:
    """What of a value is read before the place to which the steps lead."""
    if not steps:
        return value[:offset] if isinstance(value, str) else type(value)() if value is not None else None
    step, rest = steps[0], steps[1:]
    if isinstance(step, int):
        if not isinstance(value, list):
            return value
        inner = [_cut(value[step], rest, offset)] if step < len(value) and rest else []
        return [*value[:step], *inner]
    if not isinstance(value, Mapping):
        return value
    reached = _ORDER.index(step) if step in _ORDER else len(_ORDER)
    kept = {key: inner for key, inner in value.items() if key not in _ORDER[reached:]}
    if step in value and step in _ORDER:
        kept[step] = _cut(value[step], rest, offset)
    return kept


def again_share(state: State, found: Break, after: View) -> float:
    """What the later request sends again of the earlier one and its reply behind the break, in parts of the earlier one.

    Items that were edited count like those that stayed (see ``align.sent_again``).
    """
    total = state.chars or 1
    before = 0 if found.zone == "params" else _chars_before(state, found)
    if after.prompt is not None:
        return max(0, min(total, len(after.prompt)) - before) / total
    keys = keys_of(after.items)
    kept = sent_again([*state.keys, *_carried(state, keys)], keys)
    head = found.zone in ("model", "tools", "params") or (found.zone == "system" and state.lead == 0)
    first = 0 if head else found.item
    items = zip(after.items[first:], kept[first:], strict=True)
    sizes = [len(text_of(item)) if is_kept else 0 for item, is_kept in items]
    if head:
        return max(0, head_size(after, state) + sum(sizes) - before) / total
    inside = before - state.head - sum(state.sizes[:first])
    if sizes and kept[first]:
        sizes[0] = max(0, sizes[0] - inside)
    return sum(sizes) / total


def _carried(state: State, keys: Sequence[int]) -> Sequence[int]:
    """The keys of the reply with which a request goes on, of several that were given."""
    here = set(keys)
    choices = state.reference.choices if state.reference is not None else ()
    replies = (keys_of(reply) for reply in choices)
    return next((reply for reply in replies if not here.isdisjoint(reply)), state.reply_keys)


def tokens_of(state: State) -> int | None:
    """Tokens of a state's prompt: as the server counted, else a quarter of its characters."""
    if state.usage is not None and state.usage.prompt is not None:
        return state.usage.prompt
    return state.chars // 4 if state.chars else None


def reply_tokens(state: State) -> int | None:
    """Tokens of the reply to a state's request, which a server keeps as it made them: as it counted, else estimated."""
    if state.usage is not None and state.usage.output is not None:
        return state.usage.output
    if state.reference is None or not state.reference.choices:
        return None
    return sum(len(text_of(item)) for item in state.reference.choices[0]) // 4


def observed_rate(response: Mapping[str, Any] | None) -> float | None:
    """Prefill tokens per second that a llama-server reported with this very answer."""
    timings = response.get("timings") if response else None
    if not isinstance(timings, Mapping):
        return None
    tokens, milliseconds = timings.get("prompt_n"), timings.get("prompt_ms")
    if isinstance(tokens, (int, float)) and isinstance(milliseconds, (int, float)) and milliseconds > 0:
        return 1000 * tokens / milliseconds if tokens >= 64 else None
    return None
