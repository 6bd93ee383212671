"""DiskTier: which blocks lie in files - a third pool, that takes what the host tier gives up. Only its bookkeeping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .block_pool import BlockPool


class DiskWrite(NamedTuple):
    """Write block ``source`` of the host tier (of the device, if ``on_device``) to the file of this hash and group."""

    digest: bytes
    group: int
    source: int
    on_device: bool


class DiskDelete(NamedTuple):
    """Delete the file of this hash and group."""

    digest: bytes
    group: int


class DiskRead(NamedTuple):
    """Read the file of this hash and group into device block ``destination``."""

    digest: bytes
    group: int
    destination: int


@dataclass(slots=True)
class DiskCounters:
    """Blocks, counted since the start or the last reset."""

    written_blocks: int = 0
    read_blocks: int = 0
    deleted_blocks: int = 0
    failed_blocks: int = 0  # files that turned out to be damaged or missing


class DiskTier:
    """At most ``num_blocks`` files, the least recently used of them first to go. A file that was read stays."""

    def __init__(self, num_blocks: int, num_groups: int) -> None:
        self.pool = BlockPool(num_blocks, num_groups=num_groups)
        self.pool.on_evict = self._delete
        self.counters = DiskCounters()
        self._changes: list[DiskWrite | DiskDelete] = []
        self._reads: list[DiskRead] = []
        self._held: list[int] = []  # being read

    def fill(self, files: Sequence[tuple[bytes, int]]) -> None:
        """Files (hash, group) that are there at the start, the least recently used first; at most ``num_blocks``."""
        for digest, group in files:
            self._add(digest, group)

    def store(self, digest: bytes, group: int, source: int, *, on_device: bool) -> None:
        """Keep a block that the host tier gives up; nothing to do but to remember its use if its file is there."""
        known = self.pool.lookup(digest, group)
        if known is not None:
            self.pool.touch([known])
            self.pool.free([known])
        elif self.pool.num_available_blocks:
            self._add(digest, group)
            self._changes.append(DiskWrite(digest, group, source, on_device))
            self.counters.written_blocks += 1

    def read(self, block: int, group: int, destination: int) -> None:
        """Queue the reading of a held block; it stays held until the reads are taken."""
        digest = self.pool.hash_of(block)
        assert digest is not None
        self._reads.append(DiskRead(digest, group, destination))
        self._held.append(block)
        self.counters.read_blocks += 1

    def failed(self, digest: bytes, group: int) -> None:
        """A file is damaged or missing: forget it, and whatever was written for it from where it should have been."""
        block = self.pool.lookup(digest, group)
        if block is not None:
            self.pool.uncache(block)
            self.counters.failed_blocks += 1
            self._changes.append(DiskDelete(digest, group))

    def take(self) -> tuple[list[DiskWrite | DiskDelete], list[DiskRead]]:
        """(changes in their order, reads) since the last call. Changes come first; a held file is in none of them."""
        changes, reads, held = self._changes, self._reads, self._held
        self._changes, self._reads, self._held = [], [], []
        self.pool.free(held)
        return changes, reads

    def reset(self) -> None:
        """Delete all files, and count anew."""
        self.delete_all()
        self.counters = DiskCounters()

    def delete_all(self) -> None:
        """Forget and delete every file that is not being read."""
        for block in self.pool.free_order():
            digest, group = self.pool.hash_of(block), self.pool.group_of(block)
            if digest is not None and group is not None:
                self.pool.uncache(block)
                self._delete(block, digest, group)

    def check(self) -> None:
        """Raise ``IntegrityError`` if the bookkeeping contradicts itself."""
        self.pool.check([self._held])

    def _add(self, digest: bytes, group: int) -> None:
        [block] = self.pool.allocate(1)
        self.pool.cache([block], [digest], group)
        self.pool.free([block])

    def _delete(self, _block: int, digest: bytes, group: int) -> None:
        self._changes.append(DiskDelete(digest, group))
        self.counters.deleted_blocks += 1
