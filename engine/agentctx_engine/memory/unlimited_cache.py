"""UnlimitedCache: what a cache of whole blocks (or pages) would reuse if it never lost anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .block_hash import ExtraKeys
from .explain import HitFacts, explain
from .prefix_cache import CacheStats, Lease, Match
from .prompt_memory import NO_HINTS, PromptMemory
from .token_bytes import TOKEN_BYTES, pack

_OTHER_SALTS = 64  # at most so many, the newest, are searched to tell "salt" from "first difference"


@dataclass(slots=True)
class UnlimitedLease:
    """What one admitted request computes until it is released."""

    match: Match
    text: bytes
    namespace: bytes
    released: bool = False


class UnlimitedCache:
    """A :class:`~agentctx_engine.memory.prefix_cache.PrefixCache` with memory for everything: ``block_size`` 1 reuses to the token.

    Where nothing is ever evicted, the whole blocks that a hash chain finds and the whole pages that a tree finds are those of
    the longest common prefix with any text computed before. So texts are all that is kept, and a conversation that goes on
    lengthens its text: a turn costs two comparisons and a copy at memory speed, however many turns there were.
    """

    def __init__(self, block_size: int = 1) -> None:
        if block_size < 1:
            raise ValueError(f"block_size is {block_size}; it must be at least 1 token")
        self.block_size = block_size
        self._memory = PromptMemory(block_size, None)
        self._newest: UnlimitedLease | None = (
            None  # not in the memory yet: its output may follow before anyone asks
        )
        self._requests = self._prompt_tokens = self._hit_tokens = 0

    def match(self, token_ids: npt.NDArray[np.int32] | Sequence[int], *, salt: str | None = None) -> Match:
        """The longest reusable prefix of a prompt, and why it stops there. Changes nothing."""
        return self._match(pack(token_ids), ExtraKeys(cache_salt=salt).namespace)

    def _match(self, text: bytes, namespace: bytes) -> Match:
        self._store_newest()
        total = len(text) // TOKEN_BYTES
        equal = self._memory.equal_tokens(text, namespace)
        elsewhere = 0
        if equal < total:
            elsewhere = self._memory.equal_tokens_elsewhere(text, namespace, most_namespaces=_OTHER_SALTS)
        usable = max(0, min(equal, total - 1))
        hit = usable - usable % self.block_size
        return explain(HitFacts(total, hit, self.block_size, 0, equal, elsewhere))

    def commit(
        self, token_ids: npt.NDArray[np.int32] | Sequence[int], *, salt: str | None = None
    ) -> UnlimitedLease:
        """Admit a prompt. It is found by others from now on."""
        text, namespace = pack(token_ids), ExtraKeys(cache_salt=salt).namespace
        match = self._match(text, namespace)
        self._requests += 1
        self._prompt_tokens += len(text) // TOKEN_BYTES
        self._hit_tokens += match.hit_tokens
        self._newest = UnlimitedLease(match, text, namespace)
        return self._newest

    def _store_newest(self) -> None:
        if self._newest is not None:
            self._memory.insert(self._newest.text, self._newest.namespace, [], NO_HINTS)
            self._newest = None

    def release(self, lease: Lease, output_ids: npt.NDArray[np.int32] | Sequence[int] = ()) -> None:
        """End a request that generated ``output_ids``; all of it but the last token is known from now on."""
        assert isinstance(lease, UnlimitedLease)
        if lease.released:
            raise RuntimeError("this lease was released already")
        lease.released = True
        lease.text += pack(output_ids[:-1])
        if lease is not self._newest:  # the newest is stored, output and all, before anyone asks
            self._memory.insert(lease.text, lease.namespace, [], NO_HINTS)

    def stats(self) -> CacheStats:
        self._store_newest()
        return CacheStats(
            requests=self._requests,
            prompt_tokens=self._prompt_tokens,
            hit_tokens=self._hit_tokens,
            cached_tokens=self._memory.num_tokens,
            capacity_tokens=None,
            evicted_tokens=0,
        )
