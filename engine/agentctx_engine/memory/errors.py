"""Errors of the memory manager. Each says what was asked, what there is, and what to do."""

from __future__ import annotations


class OutOfBlocks(MemoryError):
    """The pool can't hand out that many blocks. Raised before anything was changed."""

    def __init__(self, needed: int, free: int, total: int) -> None:
        self.needed = needed
        self.free = free
        self.total = total
        super().__init__(
            f"{needed} blocks needed, {free} of {total} are free; wait for a request to end, preempt one, "
            "or make the pool larger"
        )


class IntegrityError(AssertionError):
    """The memory manager's own bookkeeping contradicts itself: a bug, never a caller's fault."""
