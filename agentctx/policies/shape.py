"""The shape of a conversation: the task at its front, the turns behind it, the results in them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from agentctx.history import Splice
from agentctx.messages import Message

if TYPE_CHECKING:
    from agentctx.history import History


def task_end(history: History) -> int:
    """Where the task ends in the visible messages: at the model's first answer, or at a summary of it.

    The task is what stands in the log before that. No policy takes it away.
    """
    visible, origins = history.visible, history.origins
    for position in range(history.head, len(visible)):
        if visible[position].role == "assistant" or origins[position] < 0:
            return position
    return len(visible)


def turn_starts(history: History) -> list[int]:
    """Positions in the visible messages where a turn begins: the model's answer, with all that follows it.

    A cut there never parts a call from its result.
    """
    visible = history.visible
    return [
        position for position in range(history.head, len(visible)) if visible[position].role == "assistant"
    ]


def results(history: History, start: int = 0) -> list[int]:
    """Positions, from ``start`` on, of the tool results among the visible messages.

    In a conversation that declares no tools and calls none, the agent runs commands out of the model's text, and
    its results are the user messages behind the model's first answer.
    """
    visible = history.visible
    start = max(start, task_end(history))
    if _uses_tools(history):
        return [position for position in range(start, len(visible)) if visible[position].role == "tool"]
    origins = history.origins  # a user message that stands for others is a summary, not a result
    return [
        position
        for position in range(start, len(visible))
        if visible[position].role == "user" and origins[position] >= 0
    ]


def _uses_tools(history: History) -> bool:
    return bool(history.tools) or any(message.tool_calls for message in history.visible)


def without_results(visible: Sequence[Message], positions: Collection[int]) -> list[Splice]:
    """Splices that take results away together with the calls that they answer.

    An assistant message stays while it has a text or another call.
    """
    splices = [Splice(position, position + 1) for position in positions]
    calls = {visible[position].tool_call_id for position in positions}
    first = min(positions)
    for position in range(first, -1, -1):  # the batch of the oldest result may begin before it
        if visible[position].role == "assistant":
            first = position
            break
    for position in range(first, max(positions)):
        message = visible[position]
        if message.role != "assistant":
            continue
        if not message.tool_calls:
            # Commands out of text: the answer right before a dropped result is its call.
            if position + 1 in positions and visible[position + 1].role == "user":
                splices.append(Splice(position, position + 1))
            continue
        kept = tuple(call for call in message.tool_calls if call.id not in calls)
        if len(kept) == len(message.tool_calls):
            continue
        if kept or message.content:
            reduced = message.model_copy(update={"tool_calls": kept})
            splices.append(Splice(position, position + 1, (reduced,)))
        else:
            splices.append(Splice(position, position + 1))
    return sorted(splices, key=lambda splice: splice.start)
