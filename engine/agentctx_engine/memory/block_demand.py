"""BlockDemand: how many blocks an operation needs of each pool, and whether they are there."""

from __future__ import annotations

from collections.abc import Sequence

from .block_pool import BlockPool


class BlockDemand:
    """Blocks needed, pool by pool. Groups that share a pool add up."""

    __slots__ = ("_need", "_pools")

    def __init__(self, pools: Sequence[BlockPool]) -> None:
        self._pools = pools
        self._need = [0] * len(pools)

    def add(self, pool: BlockPool, num_blocks: int) -> None:
        self._need[self._pools.index(pool)] += num_blocks

    def is_available(self, keep_free: int = 0) -> bool:
        """Whether every pool can hand that out now and keep ``keep_free`` available blocks. A growable one always can."""
        return all(
            pool.growable or pool.num_available_blocks >= need + keep_free
            for pool, need in zip(self._pools, self._need, strict=True)
        )

    def fits_empty_pools(self) -> bool:
        """Whether it would be available if nobody else held anything."""
        return all(
            pool.growable or pool.num_usable_blocks >= need
            for pool, need in zip(self._pools, self._need, strict=True)
        )
