"""PagedStore: the scheduler's view of a KVManager, blocks found by hash chain."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agentctx_engine.memory.block_hash import NO_KEYS, ExtraKeys
from agentctx_engine.memory.kv_manager import KVManager
from agentctx_engine.memory.kv_sequence import KVSequence
from agentctx_engine.memory.paged_cache import PagedCache
from agentctx_engine.memory.prefix_cache import Match
from agentctx_engine.runtime.kv_store import BlockCopy, BlockTable, PoolState, StoredSequence, TokenArray


class PagedSequence:
    """A KVSequence whose one block table serves every layer group.

    Windowed layers keep all their keys and values here: the window is a matter of attention only.
    """

    __slots__ = ("_groups", "kv")

    def __init__(self, kv: KVSequence, groups: int) -> None:
        self.kv = kv
        self._groups = groups

    @property
    def tokens(self) -> TokenArray:
        return self.kv.tokens

    @property
    def num_tokens(self) -> int:
        return self.kv.num_tokens

    @property
    def block_tables(self) -> tuple[BlockTable, ...]:
        return (self.kv.block_table(),) * self._groups


class PagedStore:
    """See :class:`~agentctx_engine.runtime.kv_store.KvStore`. ``reuse=False`` turns prefix caching off for all."""

    def __init__(self, *, num_blocks: int, block_size: int, groups: int = 1, reuse: bool = True) -> None:
        self.manager = KVManager(num_blocks, block_size, caching=reuse)
        self.block_size = block_size
        self._num_blocks = num_blocks
        self._reuse = reuse
        self._groups = groups

    @property
    def capacity_tokens(self) -> int:
        return self.manager.pools[0].num_usable_blocks * self.block_size

    def match(self, tokens: TokenArray, salt: str | None) -> Match:
        kv = self.open(tokens, salt).kv
        return self.manager.explain(kv, self.manager.match(kv))

    def predictor(self) -> PagedCache:
        return PagedCache(KVManager(self._num_blocks, self.block_size, caching=self._reuse))

    def open(self, tokens: TokenArray, salt: str | None, *, reuse: bool = True) -> PagedSequence:
        keys = NO_KEYS if salt is None else ExtraKeys(cache_salt=salt)
        return PagedSequence(self.manager.open(tokens, keys, read_cache=reuse), self._groups)

    def append(self, sequence: StoredSequence, token_id: int) -> None:
        _kv(sequence).append(np.array((token_id,), dtype=np.int32))

    def admit(self, sequence: StoredSequence, *, headroom: int = 0) -> Match | None:
        kv = _kv(sequence)
        hit = self.manager.match(kv)
        match = self.manager.explain(kv, hit)
        if not self.manager.admit(kv, kv.num_tokens, hit, keep_free=headroom):
            return None
        return match

    def reserve(self, sequence: StoredSequence) -> Sequence[BlockCopy] | None:
        kv = _kv(sequence)
        if not self.manager.reserve(kv, kv.num_tokens):
            return None
        # Taken at once, so that the last of several holders of a block is known to be the last and writes in place.
        return [(copy.source, copy.destination) for copy in self.manager.take_copies()]

    def scheduled(self, sequence: StoredSequence, num_tokens: int) -> None:
        self.manager.commit(_kv(sequence), num_tokens)

    def computed(self, sequence: StoredSequence, num_tokens: int) -> None:
        """Said already when it was scheduled."""

    def fork(self, sequence: StoredSequence) -> tuple[PagedSequence, Sequence[BlockCopy]]:
        """Never refused: nothing is copied until one of the two writes."""
        return PagedSequence(self.manager.fork(_kv(sequence)), self._groups), ()

    def release(self, sequence: StoredSequence) -> None:
        self.manager.preempt(_kv(sequence))

    def drop_cached(self) -> None:
        for pool in self.manager.pools:
            for block in pool.free_order():
                pool.uncache(block)

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


def _kv(sequence: StoredSequence) -> KVSequence:
    assert isinstance(sequence, PagedSequence)
    return sequence.kv
