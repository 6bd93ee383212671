"""HostTier: a second pool, in host memory, that takes what the device pool evicts and gives it back on a hit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .block_pool import BlockPool
from .disk_tier import DiskDelete, DiskRead, DiskTier, DiskWrite
from .errors import IntegrityError
from .kv_events import BlocksStored, EventLog


class BlockCopy(NamedTuple):
    """Copy the keys and values of block ``source`` to block ``destination`` in the layers of ``group``."""

    source: int
    destination: int
    group: int


@dataclass(frozen=True, slots=True)
class Transfers:
    """What must be copied before a step writes anything: first all ``disk_changes`` in their order, then all
    ``offloads`` (device → host), all ``loads`` (host → device) and ``disk_reads``, then all ``copies`` within the device.
    Within one of the others the order does not matter.
    """

    offloads: list[BlockCopy]
    loads: list[BlockCopy]
    copies: list[BlockCopy]
    disk_changes: list[DiskWrite | DiskDelete] = field(default_factory=list)
    disk_reads: list[DiskRead] = field(default_factory=list)


@dataclass(slots=True)
class HostCounters:
    """Blocks, counted since the start or the last reset."""

    offloaded_blocks: int = 0  # device → host
    loaded_blocks: int = 0  # host → device
    dropped_blocks: int = 0  # not taken in: every host block was waiting for a load


class HostTier:
    """Evicted blocks, kept by hash in ``num_blocks`` host blocks, least recently evicted first to go.

    A block is on the host or on the device, not on both: a hit moves it back. Block numbers of the tiers are unrelated.
    Below it there may be a disk tier, which takes what the host evicts. Its blocks are found here too: block n of it is
    number ``num_blocks + n``.
    """

    def __init__(
        self,
        num_blocks: int,
        block_sizes: Sequence[int],
        events: EventLog | None = None,
        disk_blocks: int = 0,
    ) -> None:
        """``block_sizes``: of each layer group, in tokens."""
        self.disk = DiskTier(disk_blocks, len(block_sizes)) if disk_blocks else None
        self.pool = BlockPool(num_blocks, num_groups=len(block_sizes), events=events, medium="host")
        if self.disk is not None:
            self.pool.on_evict = self._spill
        self.block_sizes = block_sizes
        self.counters = HostCounters()
        self._offloads: dict[int, BlockCopy] = {}  # by the host block that the copy fills
        self._loads: dict[
            tuple[int, int], BlockCopy
        ] = {}  # by group and device block; each holds its host block

    def lookup(self, digest: bytes, group: int) -> int | None:
        """The host or disk block that holds this prefix's last block for ``group``, or None."""
        block = self.pool.lookup(digest, group)
        if block is None and self.disk is not None:
            on_disk = self.disk.pool.lookup(digest, group)
            return None if on_disk is None else self.pool.num_blocks + on_disk
        return block

    def store(self, block: int, digest: bytes, group: int) -> None:
        """Device block ``block`` is being evicted: keep its contents, queueing the copy."""
        load = self._loads.pop((group, block), None)
        if load is not None:
            # The contents have not left the host yet, so they just stay there.
            self.counters.loaded_blocks -= 1
            self._keep(load.source, digest, group)
            return
        if self.pool.lookup(digest, group) is not None:
            return
        if not self.pool.num_available_blocks:
            self.counters.dropped_blocks += 1
            return
        [host_block] = self.pool.allocate(1)
        self._offloads[host_block] = BlockCopy(block, host_block, group)
        self.counters.offloaded_blocks += 1
        self._keep(host_block, digest, group)

    def hold(self, host_blocks: list[int]) -> None:
        """Pin blocks of a hit while device blocks are found for them: finding these may evict into this tier."""
        size = self.pool.num_blocks
        self.pool.touch([block for block in host_blocks if block < size])
        if self.disk is not None:
            self.disk.pool.touch([block - size for block in host_blocks if block >= size])

    def load(self, host_block: int, block: int, group: int) -> None:
        """Queue the copy of a held host block to device block ``block``; it stays held until the copy is taken.

        It is found on the device from now on, and not on the host.
        """
        if host_block >= self.pool.num_blocks:
            assert self.disk is not None
            self.disk.read(host_block - self.pool.num_blocks, group, block)
            return
        self.pool.uncache(host_block)
        outdated = self._loads.pop((group, block), None)
        if outdated is not None:
            self.pool.free([outdated.source])
        self._loads[group, block] = BlockCopy(host_block, block, group)
        self.counters.loaded_blocks += 1

    def take(self) -> tuple[list[BlockCopy], list[BlockCopy]]:
        """(offloads, loads) queued since the last call; host blocks that were loaded from are free again."""
        offloads, loads = list(self._offloads.values()), list(self._loads.values())
        self._offloads.clear()
        self._loads.clear()
        for copy in loads:
            self.pool.free([copy.source])
        return offloads, loads

    def take_disk(self) -> tuple[list[DiskWrite | DiskDelete], list[DiskRead]]:
        """What the disk tier has to do, since the last call: to be taken together with ``take``."""
        return ([], []) if self.disk is None else self.disk.take()

    def reset(self) -> bool:
        """Forget everything. Refused (False) while a load is waiting to be taken."""
        if not self.pool.reset():
            return False
        self._offloads.clear()
        self.counters = HostCounters()
        if self.disk is not None:
            self.disk.reset()
        return True

    def check(self) -> None:
        """Raise ``IntegrityError`` if the bookkeeping contradicts itself."""
        self.pool.check([[copy.source for copy in self._loads.values()]])
        if self.disk is not None:
            self.disk.check()
        for host_block, copy in self._offloads.items():
            if copy.destination != host_block:
                raise IntegrityError("an offload stands under another block than it fills")

    def _spill(self, host_block: int, digest: bytes, group: int) -> None:
        """A host block is being evicted: hand its contents down, from where they are now."""
        assert self.disk is not None
        unmoved = self._offloads.pop(host_block, None)
        source = host_block if unmoved is None else unmoved.source
        self.disk.store(digest, group, source, on_device=unmoved is not None)

    def _keep(self, host_block: int, digest: bytes, group: int) -> None:
        """Make a held host block findable, the last to be evicted."""
        self.pool.cache([host_block], [digest], group)
        self.pool.free([host_block])
        if self.pool.events is not None:
            self.pool.events.publish(
                BlocksStored((digest,), None, (), self.block_sizes[group], group, medium="host")
            )
