"""SkippedBlocks: what becomes of the blocks that a sliding window has left behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .kv_sequence import KVSequence
from .layer_groups import LayerGroup


@dataclass(frozen=True, slots=True)
class WindowRetention:
    """Windowed groups keep their window and a few branch points, and forget everything else at once.

    A text can be continued from its end, and from the newest ``checkpoints`` multiples of ``spacing`` tokens that it has
    passed: each costs the blocks of one window. Without retention, blocks out of the window stay findable until their
    memory is needed.
    """

    checkpoints: int = 0
    spacing: int = 1024

    def __post_init__(self) -> None:
        if self.checkpoints < 0 or self.spacing < 1:
            raise ValueError(
                f"checkpoints={self.checkpoints} must not be negative, spacing={self.spacing} at least 1"
            )


class SkippedBlocks:
    """Takes from sequences the blocks that no later query of theirs can see; the null block takes their place."""

    __slots__ = ("_granularity", "_groups", "_retention", "_spacing")

    def __init__(
        self, groups: Sequence[LayerGroup], retention: WindowRetention | None, alignment: int
    ) -> None:
        """Branch points stand where a hit can end: their distance is rounded up to a multiple of ``alignment``."""
        self._groups = [group for group in groups if group.window is not None]
        self._retention = retention
        # A hit ends at a multiple of this: to continue from there, the window before it must be kept.
        self._granularity = 1 if retention is None else alignment
        self._spacing = 0 if retention is None else -(-retention.spacing // alignment) * alignment

    @property
    def forgets(self) -> bool:
        return self._retention is not None

    def free(self, seq: KVSequence) -> None:
        """Each block is visited once in a sequence's life."""
        reached = seq.num_computed_tokens - seq.num_computed_tokens % self._granularity
        for group in self._groups:
            table = seq.tables[group.index]
            null = group.pool.null_block
            assert null is not None
            end = min(group.num_skipped_blocks(reached), len(table))
            first = end
            while first > 0 and table.ids[first - 1] != null:
                first -= 1
            skipped = [table.replace(index, null) for index in range(first, end)]
            group.pool.free(skipped)
            if self._retention is not None:
                self._forget(seq, group, first, skipped)

    def _forget(self, seq: KVSequence, group: LayerGroup, first: int, skipped: Sequence[int]) -> None:
        """Of the blocks just given back, keep findable those of a branch point alone; it costs the oldest one its place."""
        assert self._retention is not None
        pool = group.pool
        hashes = group.own_hashes(seq.digests)
        for index, block in enumerate(skipped, first):
            if pool.ref_count(block):
                continue  # someone else's window
            if not self._belongs_to_checkpoint(group, index):
                pool.uncache(block)
                continue
            oldest = index - self._retention.checkpoints * self._spacing // group.block_size
            held = pool.lookup(hashes[oldest], group.pool_group) if oldest >= 0 else None
            if held is not None and not pool.ref_count(held):
                pool.uncache(held)

    def _belongs_to_checkpoint(self, group: LayerGroup, index: int) -> bool:
        """Whether a query at the next branch point sees a part of block ``index``."""
        assert self._retention is not None
        if not self._retention.checkpoints:
            return False
        checkpoint = -(-(index + 1) * group.block_size // self._spacing) * self._spacing
        return index >= group.num_skipped_blocks(checkpoint)
