"""PagedCache: paged blocks behind the PrefixCache interface, one request after another."""

from __future__ import annotations

from dataclasses import dataclass

from .block_hash import ExtraKeys
from .errors import OutOfBlocks
from .kv_manager import KVManager
from .kv_sequence import KVSequence, TokenIds
from .prefix_cache import CacheStats, Lease, Match
from .prefix_index import Hit


@dataclass(frozen=True, slots=True)
class PagedLease:
    """A request that was admitted: its sequence holds the memory until ``PagedCache.release``."""

    match: Match
    sequence: KVSequence


class PagedCache:
    """What a paged engine (vLLM's rules) finds of each prompt: whole blocks by hash chain, at most prompt − 1 tokens.

    A thin cover over :class:`KVManager`, which the engine drives directly; so prediction and engine agree.
    """

    def __init__(self, manager: KVManager, *, chunk_tokens: int | None = None) -> None:
        """``chunk_tokens``: a prompt is computed so many tokens at a time, so that windows never hold more (None: at once)."""
        self.manager = manager
        self._chunk_tokens = chunk_tokens
        self._requests = self._prompt_tokens = self._hit_tokens = 0

    @classmethod
    def of_size(cls, num_blocks: int | None = None, block_size: int = 16) -> PagedCache:
        """One group of full attention; ``num_blocks`` None: memory without limit."""
        if num_blocks is None:
            return cls(KVManager(1024, block_size, growable=True))
        return cls(KVManager(num_blocks, block_size))

    def match(self, token_ids: TokenIds, *, salt: str | None = None) -> Match:
        """The longest reusable prefix of a prompt, and why it stops there. Changes nothing."""
        sequence = self.manager.open(token_ids, ExtraKeys(cache_salt=salt))
        return self.explain(sequence, self.manager.match(sequence))

    def commit(self, token_ids: TokenIds, *, salt: str | None = None) -> PagedLease:
        """Admit a prompt and compute it. Raises :class:`OutOfBlocks` (a ``MemoryError``) if it can't fit."""
        manager = self.manager
        sequence = manager.open(token_ids, ExtraKeys(cache_salt=salt))
        hit = manager.match(sequence)
        match = self.explain(sequence, hit)
        window_tokens = None if self._chunk_tokens is None else hit.num_tokens
        if not manager.admit(sequence, len(sequence), hit, window_tokens=window_tokens) or not self._compute(
            sequence
        ):
            manager.free(sequence)
            pool = manager.pools[0]
            raise OutOfBlocks(
                -(-len(sequence) // manager.block_size), pool.num_available_blocks, pool.num_usable_blocks
            )
        self._requests += 1
        self._prompt_tokens += len(sequence)
        self._hit_tokens += hit.num_tokens
        return PagedLease(match, sequence)

    def release(self, lease: Lease, output_ids: TokenIds = ()) -> None:
        """End a request that generated ``output_ids``; the last of them was never read, so it is never cached.

        Output for which no block is left is not cached either.
        """
        assert isinstance(lease, PagedLease)
        sequence = lease.sequence
        if len(output_ids) > 1:
            sequence.append(output_ids[:-1])
            if self._chunk_tokens is not None:
                self._compute(sequence)
            elif self.manager.reserve(sequence, len(sequence)):
                self.manager.commit(sequence, len(sequence))
        self.manager.free(sequence)

    def _compute(self, sequence: KVSequence) -> bool:
        """Read the prompt, in chunks if windows ask for it; False if their blocks run out."""
        manager, end = self.manager, len(sequence)
        manager.take_transfers()
        if self._chunk_tokens is not None:
            for reached in range(sequence.num_computed_tokens + self._chunk_tokens, end, self._chunk_tokens):
                if not manager.reserve(sequence, reached):
                    return False
                manager.commit(sequence, reached)
                manager.take_transfers()
            if not manager.reserve(sequence, end):
                return False
        manager.commit(sequence, end)
        manager.take_transfers()
        return True

    def stats(self) -> CacheStats:
        pools = self.manager.pools
        growable = any(pool.growable for pool in pools)
        block_size = self.manager.block_size
        return CacheStats(
            requests=self._requests,
            prompt_tokens=self._prompt_tokens,
            hit_tokens=self._hit_tokens,
            cached_tokens=sum(pool.num_findable_hashes for pool in pools) * block_size,
            capacity_tokens=None if growable else sum(pool.num_usable_blocks for pool in pools) * block_size,
            evicted_tokens=sum(pool.counters.evicted_blocks for pool in pools) * block_size,
        )

    def explain(self, sequence: KVSequence, hit: Hit) -> Match:
        """A hit of ``sequence`` with the reasons for what it leaves out: for callers that drive the manager themselves."""
        return self.manager.explain(sequence, hit)
