"""Cells of a sliding-window cache: which positions of which sequence it still holds.

A new token takes the first cell, from the head on and around, that is empty or whose position has left the
window of its own sequence. Old positions therefore stay until their cell is needed, and a sequence may hold
more than its window. Positions of a sequence are contiguous: when a cell is taken from it, every older
position of it goes too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.int32]
_EMPTY = -1


@dataclass(frozen=True, slots=True)
class SavedCells:
    """A copy of one sequence's positions inside its window, in the order of the cells that held them."""

    positions: Positions


class WindowCells:
    """``size`` cells that several sequences share. Source: ``src/llama-kv-cache.cpp`` (find_slot, apply_ubatch, seq_rm)."""

    def __init__(self, size: int, window: int, num_sequences: int) -> None:
        self.size = size
        self.window = window
        self._position: Positions = np.full(size, _EMPTY, dtype=np.int32)
        self._sequence = np.full(size, _EMPTY, dtype=np.int32)
        self._newest = np.full(
            num_sequences + 1, _EMPTY, dtype=np.int32
        )  # the last entry stands for empty cells
        self._head = 0

    def copy(self) -> WindowCells:
        other = WindowCells.__new__(WindowCells)
        other.size, other.window, other._head = self.size, self.window, self._head
        other._position = self._position.copy()
        other._sequence = self._sequence.copy()
        other._newest = self._newest.copy()
        return other

    def oldest(self, sequence: int) -> int:
        """The lowest position that the sequence still holds, −1 for none."""
        held = self._position[self._sequence == sequence]
        return int(held.min()) if held.size else _EMPTY

    def newest(self, sequence: int) -> int:
        """The highest position that the sequence holds, −1 for none."""
        return int(self._newest[sequence])

    def remove(self, sequence: int, first: int, end: int | None = None) -> None:
        """Forget the sequence's positions from ``first`` on, up to ``end``."""
        gone = (self._sequence == sequence) & (self._position >= first)
        self._clear(gone if end is None else gone & (self._position < end))
        self._settle(sequence)

    def shift(self, sequence: int, first: int, end: int, by: int) -> None:
        """Add ``by`` to the sequence's positions from ``first`` up to ``end``."""
        moved = (self._sequence == sequence) & (self._position >= first) & (self._position < end)
        self._position[moved] += by
        self._settle(sequence)
        self._head = 0

    def _settle(self, sequence: int) -> None:
        held = self._position[self._sequence == sequence]
        self._newest[sequence] = held.max() if held.size else _EMPTY

    def _clear(self, cells: npt.NDArray[np.bool_]) -> None:
        freed = np.flatnonzero(cells)
        if freed.size:
            self._position[freed] = self._sequence[freed] = _EMPTY
            self._head = min(self._head, int(freed[0]))

    def place(self, sequence: int, positions: Positions) -> None:
        """Give each position a cell, in order; all of them are looked for before any is taken."""
        cells = self._find(len(positions))
        taken = self._sequence[cells]
        lost = {int(owner): 0 for owner in np.unique(taken) if owner != _EMPTY}
        for owner in lost:
            lost[owner] = int(self._position[cells[taken == owner]].max())
        self._position[cells] = positions
        self._sequence[cells] = sequence
        self._newest[sequence] = max(int(self._newest[sequence]), int(positions.max()))
        for owner, last in lost.items():
            self._clear((self._sequence == owner) & (self._position <= last))
            self._settle(owner)
        self._head = int(cells[-1]) + 1

    def _find(self, count: int) -> npt.NDArray[np.intp]:
        empty = self._sequence == _EMPTY
        head = self._head
        if head > int(self.size - np.count_nonzero(empty)) + 2 * count:
            head = 0
        out_of_window = self._newest[self._sequence] + 1 - self._position >= self.window
        usable = np.flatnonzero(empty | out_of_window)
        cut = int(np.searchsorted(usable, head))
        cells = np.concatenate([usable[cut:], usable[:cut]])[:count]
        if len(cells) < count:
            raise MemoryError(f"{count} window cells wanted, {len(cells)} of {self.size} usable")
        return cells

    def decode(self, sequence: int, first: int, count: int) -> None:
        """Place ``count`` positions from ``first`` on, one at a time."""
        done = 0
        while done < count:
            step = max(self._plain_run(count - done), 1)
            self.place(sequence, np.arange(first + done, first + done + step, dtype=np.int32))
            done += step

    def _plain_run(self, most: int) -> int:
        """How many single placements from now on surely take neighbouring cells: those can be made in one go.

        Two cases are sure: empty cells ahead, and a full pool in which the cells ahead hold the sequence's own
        oldest positions in order, out of its window.
        """
        head, end = self._head, min(self.size, self._head + most)
        used = int(np.count_nonzero(self._sequence != _EMPTY))
        if head >= self.size or head > used + 2:
            return 0
        empty = self._sequence[head:end] == _EMPTY
        if empty[0]:
            return int(empty.argmin()) if not empty.all() else end - head
        sequence = int(self._sequence[head])
        if used < self.size:
            return 0
        oldest = self.oldest(sequence)
        in_order = (self._sequence[head:end] == sequence) & (
            self._position[head:end] == oldest + np.arange(end - head)
        )
        in_order &= self._newest[sequence] + 1 - self._position[head:end] >= self.window
        return int(in_order.argmin()) if not in_order.all() else end - head

    def save(self, sequence: int) -> SavedCells:
        """Copy what is inside the sequence's window."""
        held = self._sequence == sequence
        inside = held & (self._newest[sequence] - self._position < self.window)
        return SavedCells(self._position[inside].copy())

    def load(self, sequence: int, saved: SavedCells) -> None:
        """Put a copy in the place of what the sequence holds."""
        self.remove(sequence, 0)
        if len(saved.positions):
            self.place(sequence, saved.positions)

    def check(self) -> None:
        """Integrity: raises ``AssertionError`` that names the broken rule."""
        empty = self._sequence == _EMPTY
        assert np.array_equal(empty, self._position == _EMPTY), (
            "a cell has a position or a sequence, not both"
        )
        for sequence in range(len(self._newest) - 1):
            held = np.sort(self._position[self._sequence == sequence])
            newest = int(held[-1]) if held.size else _EMPTY
            assert newest == self._newest[sequence], f"sequence {sequence}: the newest position is wrong"
            assert not held.size or np.array_equal(held, np.arange(held[0], newest + 1)), (
                f"sequence {sequence}: positions have a hole"
            )
