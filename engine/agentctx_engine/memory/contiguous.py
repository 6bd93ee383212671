"""Contiguous allocation: one stretch of memory per sequence. The baseline that paging is compared with."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from .errors import IntegrityError


@dataclass(frozen=True, slots=True, order=True)
class Region:
    """Slots ``start … start + num_slots - 1``, of which the first ``num_tokens`` hold keys and values."""

    start: int
    num_slots: int
    num_tokens: int

    @property
    def end(self) -> int:
        return self.start + self.num_slots


class FirstFitAllocator:
    """A pool of ``num_slots`` token slots from which each sequence takes one unbroken region.

    A region goes into the lowest gap that is large enough, is never moved, and is given back whole. Reserve a
    sequence's final length where it is known, or the maximum (:class:`ReserveMaximum`) where it isn't.
    """

    def __init__(self, num_slots: int) -> None:
        if num_slots < 1:
            raise ValueError(f"a pool needs at least one slot, got {num_slots}")
        self.num_slots = num_slots
        self._regions: list[Region] = []  # by start

    def allocate(self, num_slots: int, num_tokens: int | None = None) -> Region | None:
        """Reserve ``num_slots`` slots, of which ``num_tokens`` (all, if None) will hold tokens. None: no gap fits."""
        stored = num_slots if num_tokens is None else num_tokens
        if not num_slots > 0 or not 0 <= stored <= num_slots:
            raise ValueError(f"{stored} tokens don't fit a region of {num_slots} slots")
        start = 0
        for region in self._regions:
            if region.start - start >= num_slots:
                break
            start = region.end
        if start + num_slots > self.num_slots:
            return None
        region = Region(start, num_slots, stored)
        insort(self._regions, region)
        return region

    def free(self, region: Region) -> None:
        """Give a region back. ``ValueError`` if it isn't allocated."""
        if region not in self._regions:
            raise ValueError(f"{region} is not allocated")
        self._regions.remove(region)

    @property
    def regions(self) -> tuple[Region, ...]:
        """What is allocated, by start."""
        return tuple(self._regions)

    @property
    def gaps(self) -> list[int]:
        """Sizes of the free stretches in slots, by start. Many small ones: external fragmentation."""
        edges = [
            0,
            *(edge for region in self._regions for edge in (region.start, region.end)),
            self.num_slots,
        ]
        return [size for size in (edges[i + 1] - edges[i] for i in range(0, len(edges), 2)) if size]

    @property
    def num_reserved_slots(self) -> int:
        return sum(region.num_slots for region in self._regions)

    @property
    def num_free_slots(self) -> int:
        return self.num_slots - self.num_reserved_slots

    @property
    def num_tokens(self) -> int:
        """Tokens stored. Reserved slots beyond these: internal fragmentation."""
        return sum(region.num_tokens for region in self._regions)

    @property
    def utilisation(self) -> float:
        """Share of the pool that holds tokens, 0 … 1."""
        return self.num_tokens / self.num_slots

    def check(self) -> None:
        """Raise ``IntegrityError`` if regions overlap or leave the pool."""
        for before, after in zip(self._regions, self._regions[1:], strict=False):
            if before.end > after.start:
                raise IntegrityError(f"{before} and {after} overlap")
        if self._regions and self._regions[-1].end > self.num_slots:
            raise IntegrityError(f"{self._regions[-1]} leaves the pool")


class ReserveMaximum(FirstFitAllocator):
    """Every sequence reserves the longest it could become, ``max_tokens`` slots."""

    def __init__(self, num_slots: int, max_tokens: int) -> None:
        super().__init__(num_slots)
        self.max_tokens = max_tokens

    def admit(self, num_tokens: int) -> Region | None:
        """Reserve for a sequence that will have ``num_tokens`` tokens. None: no gap of ``max_tokens`` is left."""
        return self.allocate(self.max_tokens, num_tokens)
