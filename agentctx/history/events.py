"""What happens to a history besides appending: splices, compactions, tools that arrive late."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentctx.messages import Message, Tool

How = Literal["removed", "cleared", "summarized", "offloaded"]


@dataclass(frozen=True, slots=True)
class Splice:
    """The visible messages ``[start, end)`` give way to ``messages``.

    Positions count the messages of the request (system message first) as they stood before the compaction.
    """

    start: int
    end: int
    messages: tuple[Message, ...] = ()


@dataclass(frozen=True, slots=True)
class Compaction:
    """A recorded edit of what the model reads. The log itself keeps every message.

    ``at``: messages in the log when it happened. ``rewrites_at``: the first message of the last request that it
    changes or moves; ``None`` when it touches only what was never sent. ``epoch``: the epoch from here on.
    ``stand_in``: a text in it was made by a deterministic stand-in, not by a model.
    """

    how: How
    splices: tuple[Splice, ...]
    at: int
    epoch: int
    rewrites_at: int | None
    stand_in: bool = False


@dataclass(frozen=True, slots=True)
class ToolAdded:
    """A tool declared after the first request.

    ``how`` is ``message`` when a message of the log names it and the tools zone stays, ``epoch`` when the tools
    zone grew and a new epoch began. ``at``: messages in the log when it happened.
    """

    tool: Tool
    how: Literal["message", "epoch"]
    at: int
    epoch: int


Event = Compaction | ToolAdded
