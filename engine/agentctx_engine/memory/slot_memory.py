"""What a llama-server's model remembers of each slot: full attention, sliding windows, running states.

Source: ``src/llama-kv-cache*.cpp``, ``src/llama-memory-{recurrent,hybrid}.cpp``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agentctx_engine.memory.slot_cells import SavedCells, WindowCells
from agentctx_engine.memory.slot_settings import ModelMemory, ServerSettings


@dataclass(frozen=True, slots=True)
class SavedState:
    """A copy of a slot's memory. ``num_tokens``: held by the full-attention layers, 0 in a context checkpoint."""

    num_tokens: int
    window: SavedCells | None
    last_position: int  # of the running state
    num_bytes: int


class SlotMemory:
    """Positions held for each slot. A slot's full-attention layers always hold exactly the tokens of its prompt."""

    def __init__(self, settings: ServerSettings, model: ModelMemory) -> None:
        self.settings = settings
        self.model = model
        self._held = [0] * settings.n_slots
        self._last = [-1] * settings.n_slots
        self._windows: list[WindowCells] = []
        if model.window:
            pools = 1 if settings.kv_unified else settings.n_slots
            size = settings.window_cells(model)
            self._windows = [WindowCells(size, model.window, settings.n_slots) for _ in range(pools)]

    def copy(self) -> SlotMemory:
        other = SlotMemory.__new__(SlotMemory)
        other.settings, other.model = self.settings, self.model
        other._held, other._last = list(self._held), list(self._last)
        other._windows = [window.copy() for window in self._windows]
        return other

    def _window(self, slot: int) -> WindowCells | None:
        if not self._windows:
            return None
        return self._windows[0 if self.settings.kv_unified else slot]

    def oldest(self, slot: int) -> int:
        """The lowest position that every layer can still read, −1 when the slot is empty."""
        if self.model.recurrent:
            return self._last[slot]
        window = self._window(slot)
        return window.oldest(slot) if window is not None else (0 if self._held[slot] else -1)

    def newest(self, slot: int) -> int:
        """The highest position held, −1 when the slot is empty."""
        if self.model.recurrent:
            return self._last[slot]
        window = self._window(slot)
        return window.newest(slot) if window is not None else self._held[slot] - 1

    def held(self, slot: int) -> int:
        """Tokens of the slot, from its start."""
        return self._held[slot]

    def free_tokens(self, slot: int) -> int:
        """Tokens that the full-attention layers can still take for this slot."""
        if not self.model.attention:
            return self.settings.slot_ctx - self._held[slot]
        used = sum(self._held) if self.settings.kv_unified else self._held[slot]
        return self.settings.slot_ctx - used

    def keep(self, slot: int, num_tokens: int) -> None:
        """Forget positions from ``num_tokens`` on. A running state is never rolled back here: it is loaded or cleared before."""
        self._held[slot] = min(self._held[slot], num_tokens)
        if num_tokens == 0:
            self._last[slot] = -1
        window = self._window(slot)
        if window is not None:
            window.remove(slot, num_tokens)

    @property
    def can_shift(self) -> bool:
        """Whether keys can be moved to other positions: not when sliding windows have cells of their own number."""
        return not self._windows or self._windows[0].size == self.settings.slot_ctx

    def move(self, slot: int, first: int, count: int, to: int) -> None:
        """Move ``count`` positions from ``first`` on down to ``to``; what stood between goes."""
        window = self._window(slot)
        if window is not None:
            window.remove(slot, to, first)
            window.shift(slot, first, first + count, to - first)
        if first <= self._last[slot] < first + count:
            self._last[slot] += to - first

    def process(self, slot: int, start: int, count: int) -> None:
        """Compute a batch: ``count`` prompt tokens from position ``start`` on, in micro-batches."""
        window = self._window(slot)
        if window is not None:
            step = self.settings.n_ubatch
            for first in range(start, start + count, step):
                last = min(first + step, start + count)
                window.place(slot, np.arange(first, last, dtype=np.int32))
        self._held[slot] = start + count
        self._last[slot] = start + count - 1

    def decode(self, slot: int, start: int, count: int) -> None:
        """Compute ``count`` generated tokens from position ``start`` on, one at a time."""
        window = self._window(slot)
        if window is not None:
            window.decode(slot, start, count)
        self._held[slot] = start + count
        self._last[slot] = start + count - 1

    def save(self, slot: int, *, checkpoint: bool = False) -> SavedState:
        """Copy a slot's memory; a context checkpoint leaves out the layers that can be rolled back."""
        window = self._window(slot)
        cells = window.save(slot) if window is not None else None
        model = self.model
        tokens = 0 if checkpoint else self._held[slot]
        size = 0 if checkpoint else model.overhead_bytes + tokens * model.bytes_per_token
        size += model.checkpoint_bytes + (len(cells.positions) if cells else 0) * model.window_bytes_per_token
        return SavedState(tokens, cells, self._last[slot], size)

    def load(self, slot: int, saved: SavedState, *, checkpoint: bool = False) -> bool:
        """Put a copy in the place of what the slot holds. ``False``: there was no room, and the slot's memory is gone."""
        if not checkpoint:
            self._held[slot] = 0
            if saved.num_tokens > self.free_tokens(slot):
                self.keep(slot, 0)
                return False
            self._held[slot] = saved.num_tokens
        window = self._window(slot)
        if window is not None and saved.window is not None:
            window.load(slot, saved.window)
        self._last[slot] = saved.last_position
        return True

    def check(self) -> None:
        """Integrity: raises ``AssertionError`` that names the broken rule."""
        if self.model.attention:
            pools = [sum(self._held)] if self.settings.kv_unified else self._held
            assert max(pools) <= self.settings.slot_ctx, "more tokens than cells"
        for window in self._windows:
            window.check()
