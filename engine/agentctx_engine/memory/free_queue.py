"""FreeQueue: free blocks in eviction order, as a doubly linked list threaded through two lists of ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

_UNLINKED = -1


class FreeQueue:
    """Block ids ``0 … capacity - 1`` in order of reuse, the front first. Every operation on one block is O(1).

    ``_next[b]`` and ``_prev[b]`` are the neighbours of block ``b``; ``_next[b]`` is -1 for a block that is not queued, whose
    ``_prev[b]`` means nothing. The index ``capacity`` is the sentinel that
    closes the ring. No node objects: at a million blocks the two lists take 16 MB and share their integers.

        sentinel ⇄ front ⇄ … ⇄ back ⇄ sentinel
    """

    __slots__ = ("_next", "_prev", "_sentinel", "size")

    def __init__(self, capacity: int, *, filled: bool = True) -> None:
        if capacity < 0:
            raise ValueError(f"capacity must not be negative, got {capacity}")
        self._sentinel = capacity
        self.size = capacity if filled else 0
        if filled:
            ids = list(range(capacity + 1))
            # Ring in order of the ids; slices of one list, so that equal ids are one object.
            self._next = [*ids[1:], ids[0]]
            self._prev = [ids[-1], *ids[:-1]]
        else:
            self._next = [_UNLINKED] * capacity + [capacity]
            self._prev = [_UNLINKED] * capacity + [capacity]

    def __len__(self) -> int:
        return self.size

    def __contains__(self, block: int) -> bool:
        return self._next[block] != _UNLINKED

    def __iter__(self) -> Iterator[int]:
        """Ids from the front (reused first) to the back. O(size): for tests and reports."""
        block = self._next[self._sentinel]
        while block != self._sentinel:
            yield block
            block = self._next[block]

    def front(self) -> int | None:
        """The block that would be reused next, or None."""
        return self._next[self._sentinel] if self.size else None

    def pop_front(self, count: int) -> list[int]:
        """Take ``count`` ids from the front, in order. ``IndexError`` if there are fewer; then nothing changes."""
        if count > self.size:
            raise IndexError(f"{count} blocks asked of a queue of {self.size}")
        following, preceding, sentinel = self._next, self._prev, self._sentinel
        taken = []
        block = following[sentinel]
        for _ in range(count):
            taken.append(block)
            after = following[block]
            following[block] = _UNLINKED
            block = after
        following[sentinel] = block
        preceding[block] = sentinel
        self.size -= count
        return taken

    def remove(self, blocks: Sequence[int]) -> None:
        """Take ``blocks`` out, wherever they are. ``KeyError`` if one isn't queued; those before it are then out.

        O(blocks). A table that was freed as a whole still stands in the queue backwards, and leaves it as one run.
        """
        following, preceding = self._next, self._prev
        index, count = 0, len(blocks)
        while index < count:
            block = blocks[index]
            after = following[block]
            if after == _UNLINKED:
                raise KeyError(f"block {block} is not in the free queue")
            first = index
            before = preceding[block]
            following[block] = _UNLINKED
            index += 1
            while index < count and before == blocks[index]:
                following[before] = _UNLINKED
                before = preceding[before]
                index += 1
            following[before] = after
            preceding[after] = before
            self.size -= index - first

    def append(self, blocks: Sequence[int]) -> None:
        """Put ``blocks`` at the back, in their order: the last one is reused last."""
        self._insert(self._prev[self._sentinel], blocks)

    def prepend(self, blocks: Sequence[int]) -> None:
        """Put ``blocks`` at the front, in their order: ``blocks[0]`` is reused next."""
        self._insert(self._sentinel, blocks)

    def grow(self, capacity: int) -> None:
        """Add the ids from the old capacity to ``capacity - 1`` at the front: fresh blocks before cached ones."""
        old = self._sentinel
        first, last = self._next[old], self._prev[old]
        added = list(range(old, capacity + 1))
        self._next[old:] = [_UNLINKED] * (capacity - old) + [capacity]
        self._prev[old:] = [_UNLINKED] * (capacity - old) + [capacity]
        self._sentinel = added[-1]
        if self.size:
            self._next[capacity], self._prev[capacity] = first, last
            self._prev[first] = self._next[last] = added[-1]
        self.prepend(added[:-1])

    def _insert(self, before: int, blocks: Sequence[int]) -> None:
        following, preceding = self._next, self._prev
        end = following[before]
        added = 0
        for block in blocks:
            if following[block] != _UNLINKED:
                break
            preceding[block] = before
            following[before] = block
            following[block] = end  # so that a block given twice is seen to be in
            before = block
            added += 1
        preceding[end] = before
        self.size += added
        if added < len(blocks):
            raise KeyError(f"block {blocks[added]} is in the free queue already")
