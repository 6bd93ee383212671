"""PagedStore: the scheduler's view of a KVManager, blocks found by hash chain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np

from agentctx_engine.memory.block_hash import ExtraKeys
from agentctx_engine.memory.disk_tier import DiskCounters, DiskRead
from agentctx_engine.memory.kv_manager import KVManager
from agentctx_engine.memory.kv_sequence import KVSequence
from agentctx_engine.memory.layer_groups import FullAttention, GroupSpec, SlidingWindow
from agentctx_engine.memory.paged_cache import PagedCache
from agentctx_engine.memory.prefix_cache import Match
from agentctx_engine.memory.prefix_index import Hit
from agentctx_engine.memory.skipped_blocks import WindowRetention
from agentctx_engine.runtime.kv_store import (
    BlockCopy,
    BlockTable,
    PlacedPrefix,
    PoolState,
    StoredSequence,
    TierState,
    TokenArray,
)
from agentctx_engine.runtime.tiers import Tiers


@dataclass(frozen=True, slots=True)
class Windows:
    """Layer groups of which each keeps what its window needs. Prompts are read ``chunk_tokens`` at a time, at most."""

    groups: tuple[GroupSpec, ...]
    retention: WindowRetention
    chunk_tokens: int


_NO_LIMIT = 2**31 - 1


class PagedSequence:
    """A KVSequence as the runner sees it: a block table for each layer group, or one that serves them all.

    With one for all, windowed layers keep all their keys and values: the window is a matter of attention only.
    """

    __slots__ = ("_groups", "kv", "loaded_tokens")

    def __init__(self, kv: KVSequence, groups: int) -> None:
        self.kv = kv
        self._groups = groups
        self.loaded_tokens = (0, 0)

    @property
    def tokens(self) -> TokenArray:
        return self.kv.tokens

    @property
    def num_tokens(self) -> int:
        return self.kv.num_tokens

    @property
    def block_tables(self) -> tuple[BlockTable, ...]:
        if len(self.kv.tables) == 1:
            return (self.kv.block_table(),) * self._groups
        return tuple(map(self.kv.block_table, range(self._groups)))


class PagedStore:
    """See :class:`~agentctx_engine.runtime.kv_store.KvStore`."""

    def __init__(
        self,
        *,
        num_blocks: int | Sequence[int],
        block_size: int,
        groups: int = 1,
        windows: Windows | None = None,
        reuse: bool = True,
        token_granular: bool = False,
        tiers: Tiers | None = None,
    ) -> None:
        """
        num_blocks: of the one pool, or with ``windows`` of each group's pool.
        groups: the model's layer groups, which share one block table; with ``windows`` each has its own.
        reuse: False turns prefix caching off for all.
        token_granular: a hit may end inside a block, which is then copied.
        tiers: what takes evicted blocks; closed with the store.
        """
        self._tiers = tiers
        self.block_size = block_size
        self._num_blocks = num_blocks
        self._reuse = reuse
        self._token_granular = token_granular
        self._groups = groups
        self._windows = windows
        self.manager = self._make_manager()
        if tiers is not None and self.manager.host is not None and self.manager.host.disk is not None:
            self.manager.host.disk.fill(tiers.files[-tiers.disk_blocks :])
        self._copies: list[BlockCopy] = []  # asked for by admissions
        self._unwritten: set[int] = set()  # findable, but written by the step that is being planned

    def _make_manager(self) -> KVManager:
        return KVManager(
            self._num_blocks,
            self.block_size,
            groups=(FullAttention(),) if self._windows is None else self._windows.groups,
            window_retention=None if self._windows is None else self._windows.retention,
            caching=self._reuse,
            token_granular=self._token_granular,
            host_blocks=0 if self._tiers is None else self._tiers.host_blocks,
            disk_blocks=0 if self._tiers is None else self._tiers.disk_blocks,
        )

    @property
    def keeps_all_windows(self) -> bool:
        return self._windows is None

    @property
    def capacity_tokens(self) -> int:
        if self._windows is not None and all(isinstance(g, SlidingWindow) for g in self._windows.groups):
            chunk = self._windows.chunk_tokens
            if self.manager.can_ever_fit(
                8 * chunk + 8 * max(g.window or 0 for g in self.manager.groups), chunk
            ):
                return _NO_LIMIT
        return self.manager.pools[0].num_usable_blocks * self.block_size

    def match(self, tokens: TokenArray, salt: str | None) -> Match:
        kv = self.open(tokens, salt).kv
        return self.manager.explain(kv, self.manager.match(kv))

    def predictor(self) -> PagedCache:
        chunk = None if self._windows is None else self._windows.chunk_tokens
        return PagedCache(self._make_manager(), chunk_tokens=chunk)

    def open(self, tokens: TokenArray, salt: str | None, *, reuse: bool = True) -> PagedSequence:
        keys = ExtraKeys(cache_salt=salt)
        return PagedSequence(self.manager.open(tokens, keys, read_cache=reuse), self._groups)

    def append(self, sequence: StoredSequence, token_id: int) -> None:
        _kv(sequence).append(np.array((token_id,), dtype=np.int32))

    def admit(self, sequence: StoredSequence, *, headroom: int = 0) -> Match | None:
        kv = _kv(sequence)
        hit = self._without_unwritten_part(self.manager.match(kv, keep_free=headroom))
        match = self.manager.explain(kv, hit)
        window_tokens = None if self._windows is None else hit.num_tokens
        if not self.manager.admit(kv, kv.num_tokens, hit, keep_free=headroom, window_tokens=window_tokens):
            return None
        self._copies += self._take_copies()
        self._count_loaded(sequence, hit)
        return match

    def _count_loaded(self, sequence: StoredSequence, hit: Hit) -> None:
        if self._tiers is None:
            return
        assert isinstance(sequence, PagedSequence)
        below = [-1 - block for block in hit.blocks[0] if block < 0]
        on_disk = sum(block >= self._tiers.host_blocks for block in below)
        size = self.block_size
        sequence.loaded_tokens = ((len(below) - on_disk) * size, on_disk * size)

    def take_copies(self) -> Sequence[BlockCopy]:
        copies, self._copies = self._copies, []
        return copies

    def _take_copies(self) -> list[BlockCopy]:
        """What was asked for, for the caller to copy; with tiers it is begun, in one order with what they move."""
        if self._tiers is not None:
            self._tiers.copier.start(self.manager.take_transfers())
            return []
        copies = self.manager.take_copies()
        if self._windows is not None:
            return [(c.source, c.destination, c.group) for c in copies]
        return [(copy.source, copy.destination) for copy in copies]

    def _without_unwritten_part(self, hit: Hit) -> Hit:
        """Whole blocks may be shared in the step that fills them; a part can't, as it is copied before the step."""
        if hit.partial is None or hit.partial.block not in self._unwritten:
            return hit
        return hit.in_whole_blocks()

    def reserve(self, sequence: StoredSequence) -> Sequence[BlockCopy] | None:
        kv = _kv(sequence)
        if not self.manager.reserve(kv, kv.num_tokens):
            return None
        # Taken at once, so that the last of several holders of a block is known to be the last and writes in place.
        return self._take_copies()

    def writes_in_place(self, sequence: StoredSequence) -> bool:
        kv, position = _kv(sequence), sequence.num_tokens
        for group in self.manager.groups:
            ids = kv.tables[group.index].ids
            if position // self.block_size >= len(ids):
                return False
            block = ids[position // self.block_size]
            if group.pool.ref_count(block) != 1 or group.pool.hash_of(block) is not None:
                return False
        return True

    def prepare(self, sequence: StoredSequence, num_tokens: int) -> bool:
        if self._windows is None:
            return True
        if not self.manager.reserve(_kv(sequence), num_tokens):
            return False
        self._copies += self._take_copies()
        return True

    def scheduled(self, sequence: StoredSequence, num_tokens: int) -> None:
        kv = _kv(sequence)
        if self._token_granular:
            first = kv.num_computed_tokens // self.block_size
            self._unwritten.update(kv.tables[0].ids[first : -(-num_tokens // self.block_size)])
        self.manager.commit(kv, num_tokens)

    def computed(self, sequence: StoredSequence, num_tokens: int) -> None:
        """Said already when it was scheduled. The whole step has run."""
        self._unwritten.clear()

    def fork(self, sequence: StoredSequence) -> tuple[PagedSequence, Sequence[BlockCopy]]:
        """Never refused: nothing is copied until one of the two writes."""
        return PagedSequence(self.manager.fork(_kv(sequence)), self._groups), ()

    def release(self, sequence: StoredSequence) -> None:
        self.manager.preempt(_kv(sequence))

    def ready(self, sequence: StoredSequence) -> bool:
        if self.settled:
            return True
        assert self._tiers is not None
        tables = _kv(sequence).tables
        return not any(self._tiers.copier.is_arriving(g, table.ids) for g, table in enumerate(tables))

    def broken_among(
        self, waiting: Sequence[StoredSequence], intact: Sequence[StoredSequence]
    ) -> list[StoredSequence]:
        failed = [] if self._tiers is None else self._tiers.copier.take_failed()
        if not failed:
            return []
        reads = [read for read in failed if isinstance(read, DiskRead)]
        if len(reads) < len(failed):
            # A copy within memory failed, of which no hash tells what was made from it meanwhile: no copy of anything is
            # trusted any more.
            self.manager.drop_cached()
            self._begin_deletions()
            return list(waiting)
        host = self.manager.host
        assert host is not None
        assert host.disk is not None
        good, broken = _blocks_of(intact), set()
        for read in reads:
            host.disk.failed(read.digest, read.group)
            group = self.manager.groups[read.group]
            # Whatever copy of it was made meanwhile is no better, but for those that somebody has computed.
            copies = {read.destination, *group.pool.holders(read.digest, group.pool_group)}
            for block in sorted(copies):
                if (read.group, block) in good:
                    continue
                broken.add((read.group, block))
                if group.pool.hash_of(block) == read.digest:
                    group.pool.uncache(block)
            if (block_below := host.pool.lookup(read.digest, read.group)) is not None:
                host.pool.uncache(block_below)
        return [sequence for sequence in waiting if not broken.isdisjoint(_blocks_of([sequence]))]

    @property
    def settled(self) -> bool:
        return self._tiers is None or self._tiers.copier.is_idle

    def wait_for_arrival(self, news: Future[None] | None = None) -> None:
        if self._tiers is not None:
            self._tiers.copier.wait_for_arrival(news)

    def wait_until_safe(self, written: Iterable[Sequence[BlockTable]]) -> None:
        if self._tiers is not None:
            self._tiers.copier.wait_until_safe()
            for tables in written:
                for group, table in enumerate(tables):
                    self._tiers.copier.wait_for(group, table)

    def tier_state(self) -> TierState | None:
        host = self.manager.host
        if self._tiers is None or host is None:
            return None
        disk = host.disk
        counters = DiskCounters() if disk is None else disk.counters
        return TierState(
            host_total=host.pool.num_usable_blocks,
            host_cached=host.pool.num_cached_blocks,
            offloaded_blocks=host.counters.offloaded_blocks,
            loaded_blocks=host.counters.loaded_blocks,
            disk_total=0 if disk is None else disk.pool.num_usable_blocks,
            disk_cached=0 if disk is None else disk.pool.num_cached_blocks,
            written_blocks=counters.written_blocks,
            read_blocks=counters.read_blocks,
            failed_blocks=counters.failed_blocks,
            copied_bytes=replace(self._tiers.copier.bytes),
        )

    def close(self) -> None:
        if self._tiers is not None:
            self._tiers.copier.close()
            self._tiers.copier.let_go()

    def held(self, sequence: StoredSequence, num_tokens: int) -> PlacedPrefix:
        if not self._token_granular:
            num_tokens -= num_tokens % self.block_size
        held = zip(self.manager.groups, _kv(sequence).tables, strict=True)
        tables = [table.ids[: group.num_blocks_for(num_tokens)] for group, table in held]
        prefix = self._prefix(num_tokens, tables)
        # The last chunk was read with a window that began earlier.
        windows = [group.num_skipped_blocks(num_tokens) * self.block_size for group in self.manager.groups]
        times = len(prefix.first_tokens) // len(windows)
        return replace(prefix, first_tokens=tuple(map(max, prefix.first_tokens, windows * times)))

    def locate(self, tokens: TokenArray, salt: str | None) -> PlacedPrefix:
        hit = self._find_on_device(tokens, salt)
        tables = [list(table) for table in hit.blocks]
        if hit.partial is not None:
            tables[0].append(hit.partial.block)
        return self._prefix(hit.num_tokens, tables)

    def _find_on_device(self, tokens: TokenArray, salt: str | None) -> Hit:
        """What ``match`` finds of a text, its last token included, before the first block that lies elsewhere."""
        while True:
            # A lookup leaves out the last token of a text, so here one more follows.
            hit = self.manager.match(self.open(np.append(tokens, np.int32(0)), salt).kv)
            elsewhere = [i for table in hit.blocks for i, block in enumerate(table) if block < 0]
            if not elsewhere:
                return hit
            tokens = tokens[: min(elsewhere) * self.block_size]

    def place(self, tokens: TokenArray, salt: str | None) -> PlacedPrefix | None:
        kv = self.open(tokens, salt).kv
        hit = self._find_on_device(tokens, salt).in_whole_blocks()
        external = len(tokens) - hit.num_tokens
        if not self.manager.admit(kv, len(tokens), hit, num_external_tokens=external):
            return None
        self._copies += self._take_copies()
        prefix = self._prefix(len(tokens), [table.ids for table in kv.tables])
        return replace(prefix, num_reused=hit.num_tokens, holder=kv)

    def _prefix(self, num_tokens: int, tables: Sequence[Sequence[int]]) -> PlacedPrefix:
        """A windowed group holds what stands behind its last null block."""
        first = [
            0 if pool.null_block is None else _after_last(pool.null_block, table) * self.block_size
            for pool, table in zip(self.manager.pools, tables, strict=True)
        ]
        times = self._groups if self._windows is None else 1
        return PlacedPrefix(num_tokens, tuple(tables) * times, tuple(first) * times)

    def placed(self, prefix: PlacedPrefix) -> None:
        kv = prefix.holder
        assert isinstance(kv, KVSequence)
        self.manager.commit(kv, len(kv))
        self.manager.free(kv)

    def abandon(self, prefix: PlacedPrefix) -> None:
        kv = prefix.holder
        assert isinstance(kv, KVSequence)
        kv.num_computed_tokens = (
            prefix.num_reused
        )  # else the end of the text would become findable as a part of a block
        self.manager.free(kv)

    def drop_cached(self) -> None:
        self._unwritten.clear()
        pools = self.manager.pools
        if self.manager.host is not None:
            pools = [*pools, self.manager.host.pool]
            if self.manager.host.disk is not None:
                self.manager.host.disk.delete_all()
        for pool in pools:
            for block in pool.free_order():
                pool.uncache(block)
        self._begin_deletions()

    def _begin_deletions(self) -> None:
        """At once: no step may come that takes them along, and who opens the directory next would find the files."""
        if self._tiers is not None:
            self._copies += self._take_copies()

    def pool_state(self) -> PoolState:
        pool = self.manager.pools[0]
        return PoolState(
            total=pool.num_usable_blocks,
            in_use=pool.num_used_blocks,
            cached=pool.num_cached_blocks,
            empty=pool.num_free_blocks,
        )

    def check(self) -> None:
        self.manager.check()


def _after_last(block: int, table: Sequence[int]) -> int:
    return next((index + 1 for index in range(len(table) - 1, -1, -1) if table[index] == block), 0)


def _blocks_of(sequences: Iterable[StoredSequence]) -> set[tuple[int, int]]:
    """(group, block) of all that they hold."""
    return {(g, b) for s in sequences for g, table in enumerate(_kv(s).tables) for b in table.ids}


def _kv(sequence: StoredSequence) -> KVSequence:
    assert isinstance(sequence, PagedSequence)
    return sequence.kv
