"""Tokens that grow at their end without being copied: prompts of one conversation share the memory of their common beginning.

A prompt's arrays are views of a larger room. The next prompt writes behind them, if nobody has yet: what an earlier prompt holds never
changes. Where the end differs, or another prompt has taken the room behind, the tokens are copied.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock

import numpy as np

from agentctx.rendering.prompt import TokenIds
from agentctx.rendering.tokenizer import CharStarts

_LEAST_ROOM = 4096


@dataclass(slots=True)
class _Room:
    ids: TokenIds
    starts: CharStarts
    used: int
    lock: Lock = field(default_factory=Lock)

    def take(self, at: int, end: int) -> bool:
        """Reserve ``[at, end)``; False when it isn't free."""
        with self.lock:
            if self.used != at or end > len(self.ids):
                return False
            self.used = end
            return True


@dataclass(frozen=True, slots=True)
class Grown:
    """Ids and places of a prompt's tokens, int32, shape [tokens], with the room that they stand in."""

    ids: TokenIds
    starts: CharStarts
    room: _Room

    @classmethod
    def of(cls, ids: TokenIds, starts: CharStarts) -> Grown:
        """Arrays that are whole already. They get room once they grow."""
        return cls(ids, starts, _Room(ids, starts, len(ids)))

    def extended(self, kept: int, ids: TokenIds, starts: CharStarts) -> Grown:
        """The first ``kept`` tokens, and others behind them."""
        have, end = len(self.ids), kept + len(ids)
        again = have - kept
        same = (
            end >= have
            and self.ids[kept:].tobytes() == ids[:again].tobytes()  # few: cheaper than comparing arrays
            and self.starts[kept:].tobytes() == starts[:again].tobytes()
        )
        if same and self.room.take(have, end):
            room = self.room
            room.ids[have:end] = ids[again:]
            room.starts[have:end] = starts[again:]
        else:
            size = end + max(end // 4, _LEAST_ROOM)
            room = _Room(np.empty(size, np.int32), np.empty(size, np.int32), end)
            for target, old, new in ((room.ids, self.ids, ids), (room.starts, self.starts, starts)):
                target[:kept] = old[:kept]
                target[kept:end] = new
        return Grown(room.ids[:end], room.starts[:end], room)
