"""What a break costs when no tokenizer is at hand: shares of the earlier prompt in characters, times its tokens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentctx.diagnosis.breaks import Break
from agentctx.diagnosis.conversations import State
from agentctx.diagnosis.views import text_of


def share_before(state: State, found: Break | None) -> float:
    """Part of the earlier prompt, in characters, that stands before a break (1.0 without one)."""
    if found is None or found.zone == "params":
        return 1.0
    total = state.chars or 1
    if found.zone in ("model", "tools"):
        return 0.0
    if not state.keys:
        return min(1.0, found.at / total)  # a finished prompt
    tools_and_system = state.head
    if found.zone == "system" and state.lead == 0:
        return min(1.0, max(0, tools_and_system - len(found.was) + found.at) / total)
    before = sum(state.sizes[: found.item])
    inside = found.at if found.text_edit else 0
    return min(1.0, (tools_and_system + before + inside) / total)


def again_share(state: State, found: Break) -> float:
    """Part of the earlier prompt that stands behind the break and is sent again."""
    total = state.chars or 1
    share = share_before(state, found)
    if found.move is None or found.move.kind == "edited":
        return 1 - share
    gone = sum(state.sizes[found.move.at : found.move.at + found.move.gone])
    return max(0.0, 1 - share - gone / total)


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
