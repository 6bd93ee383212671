"""RadixStore: the scheduler's view of a RadixCache whose pages are the engine's blocks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future

import numpy as np

from agentctx_engine.memory.page_pool import PageIds
from agentctx_engine.memory.prefix_cache import Match
from agentctx_engine.memory.radix_cache import RadixCache, RadixLease
from agentctx_engine.runtime.kv_store import (
    BlockCopy,
    BlockTable,
    PlacedPrefix,
    PoolState,
    StoredSequence,
    TokenArray,
)


class RadixSequence:
    """A text, and while it runs the lease whose pages are the block table of every layer group."""

    __slots__ = ("_buffer", "_groups", "lease", "num_admitted", "num_computed", "num_tokens", "reuse", "salt")

    def __init__(self, tokens: TokenArray, salt: str | None, reuse: bool, groups: int) -> None:
        self._buffer = np.array(tokens, dtype=np.int32)
        self._groups = groups
        self.num_tokens = len(tokens)
        self.salt = salt
        self.reuse = reuse
        self.lease: RadixLease | None = None
        self.num_admitted = 0  # tokens of the text when the lease was taken
        self.num_computed = 0

    @property
    def tokens(self) -> TokenArray:
        return self._buffer[: self.num_tokens]

    @property
    def block_tables(self) -> tuple[BlockTable, ...]:
        return (_lease(self).pages,) * self._groups

    @property
    def loaded_tokens(self) -> tuple[int, int]:
        return (0, 0)

    def append(self, token_id: int) -> None:
        if self.num_tokens == len(self._buffer):
            grown = np.empty(max(64, 2 * self.num_tokens), dtype=np.int32)
            grown[: self.num_tokens] = self._buffer
            self._buffer = grown
        self._buffer[self.num_tokens] = token_id
        self.num_tokens += 1


class RadixStore:
    """See :class:`~agentctx_engine.runtime.kv_store.KvStore`.

    A prompt becomes findable when all of it has been computed, an answer when it ends; each is then one node of the
    tree, as it is in a RadixCache that predicts, so that both evict the same. Never before a step has run: the
    tree keeps one copy of equal pages, and a page that is about to be written must not be exchanged for another's.
    """

    def __init__(self, *, num_blocks: int, block_size: int, groups: int = 1) -> None:
        self.cache = RadixCache(block_size, capacity_tokens=num_blocks * block_size)
        self.block_size = block_size
        self._num_blocks = num_blocks
        self._groups = groups

    @property
    def keeps_all_windows(self) -> bool:
        return True

    @property
    def capacity_tokens(self) -> int:
        return self._num_blocks * self.block_size

    def match(self, tokens: TokenArray, salt: str | None) -> Match:
        return self.cache.match(tokens, salt=salt)

    def predictor(self) -> RadixCache:
        return RadixCache(self.block_size, capacity_tokens=self.capacity_tokens)

    def open(self, tokens: TokenArray, salt: str | None, *, reuse: bool = True) -> RadixSequence:
        return RadixSequence(tokens, salt, reuse, self._groups)

    def append(self, sequence: StoredSequence, token_id: int) -> None:
        _radix(sequence).append(token_id)

    def admit(self, sequence: StoredSequence, *, headroom: int = 0) -> Match | None:
        radix = _radix(sequence)
        try:
            radix.lease = self.cache.commit(
                radix.tokens,
                salt=radix.salt,
                limit=None if radix.reuse else 0,
                reserve_tokens=headroom * self.block_size,
            )
        except MemoryError:
            return None
        radix.num_admitted = radix.num_tokens
        radix.num_computed = radix.lease.match.hit_tokens
        return radix.lease.match

    def reserve(self, sequence: StoredSequence) -> Sequence[BlockCopy] | None:
        lease = _lease(sequence)
        try:
            self.cache.extend(lease, sequence.tokens[lease.num_tokens :])
        except MemoryError:
            return None
        return ()

    def writes_in_place(self, sequence: StoredSequence) -> bool:
        return False  # pages go to the tree and are exchanged on the way

    def prepare(self, sequence: StoredSequence, num_tokens: int) -> bool:
        return True

    def scheduled(self, sequence: StoredSequence, num_tokens: int) -> None:
        """Nothing yet, see the class."""

    def computed(self, sequence: StoredSequence, num_tokens: int) -> None:
        radix = _radix(sequence)
        prompt_read = radix.num_computed < radix.num_admitted <= num_tokens
        radix.num_computed = num_tokens
        if prompt_read:
            self.cache.checkpoint(_lease(radix), num_tokens)

    def fork(self, sequence: StoredSequence) -> tuple[RadixSequence, Sequence[BlockCopy]] | None:
        """Whole pages are shared through the tree; a page that is only partly full is copied at once."""
        radix = _radix(sequence)
        twin = RadixSequence(radix.tokens, radix.salt, radix.reuse, self._groups)
        try:
            twin.lease, copies = self.cache.fork(_lease(radix))
        except MemoryError:
            return None
        twin.num_admitted, twin.num_computed = radix.num_admitted, radix.num_computed
        return twin, copies

    def release(self, sequence: StoredSequence) -> None:
        radix = _radix(sequence)
        lease = _lease(radix)
        self.cache.checkpoint(lease, radix.num_computed)
        self.cache.abort(lease)
        radix.lease = None

    def take_copies(self) -> Sequence[BlockCopy]:
        return ()

    def ready(self, sequence: StoredSequence) -> bool:
        return True

    def broken_among(
        self, waiting: Sequence[StoredSequence], intact: Sequence[StoredSequence]
    ) -> list[StoredSequence]:
        return []

    @property
    def settled(self) -> bool:
        return True

    def wait_for_arrival(self, news: Future[None] | None = None) -> None:
        """There are no other tiers."""

    def wait_until_safe(self, written: Iterable[Sequence[BlockTable]]) -> None:
        """There are no other tiers."""

    def tier_state(self) -> None:
        return None

    def close(self) -> None:
        """Nothing is under way."""

    def held(self, sequence: StoredSequence, num_tokens: int) -> PlacedPrefix:
        return self._prefix(_lease(sequence).pages[: num_tokens // self.block_size])

    def locate(self, tokens: TokenArray, salt: str | None) -> PlacedPrefix:
        return self._prefix(self.cache.pages_of(tokens, salt=salt))

    def _prefix(self, pages: PageIds) -> PlacedPrefix:
        return PlacedPrefix(len(pages) * self.block_size, (pages,) * self._groups, (0,) * self._groups)

    def place(self, tokens: TokenArray, salt: str | None) -> PlacedPrefix | None:
        try:
            lease = self.cache.commit(tokens, salt=salt)
        except MemoryError:
            return None
        tables, first = (lease.pages,) * self._groups, (0,) * self._groups
        return PlacedPrefix(len(tokens), tables, first, lease.match.hit_tokens, lease)

    def placed(self, prefix: PlacedPrefix) -> None:
        lease = prefix.holder
        assert isinstance(lease, RadixLease)
        self.cache.checkpoint(lease)
        self.cache.abort(lease)

    def abandon(self, prefix: PlacedPrefix) -> None:
        lease = prefix.holder
        assert isinstance(lease, RadixLease)
        self.cache.abort(lease)

    def drop_cached(self) -> None:
        self.cache.evict(self.cache.evictable_tokens)

    def pool_state(self) -> PoolState:
        pool = self.cache.pool
        assert pool is not None
        cached = self.cache.evictable_tokens // self.block_size
        in_use = pool.num_pages - pool.num_free - cached
        return PoolState(total=pool.num_pages, in_use=in_use, cached=cached, empty=pool.num_free)

    def check(self) -> None:
        self.cache.check()


def _radix(sequence: StoredSequence) -> RadixSequence:
    assert isinstance(sequence, RadixSequence)
    return sequence


def _lease(sequence: StoredSequence) -> RadixLease:
    lease = _radix(sequence).lease
    assert lease is not None, "the sequence holds no blocks"
    return lease
