"""Layer groups: layers with the same attention pattern, which keep and find their blocks together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .block_pool import BlockPool


@dataclass(frozen=True, slots=True)
class FullAttention:
    """Layers that attend to every earlier token. ``block_size`` None: the manager's."""

    block_size: int | None = None


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Layers that attend to the last ``window`` tokens, the current one included."""

    window: int
    block_size: int | None = None

    def __post_init__(self) -> None:
        if self.window < 1:
            raise ValueError(f"a window holds at least one token, got {self.window}")


GroupSpec = FullAttention | SlidingWindow


class LayerGroup:
    """One group at work: its block size, its pool and its hit rule.

    ``hashes_per_block``: a group's block may span several hashed blocks; its hash is then the last one inside it.
    """

    __slots__ = ("block_size", "hashes_per_block", "index", "pool", "pool_group", "window")

    def __init__(
        self,
        spec: GroupSpec,
        index: int,
        block_size: int,
        hash_block_size: int,
        pool: BlockPool,
        pool_group: int,
    ) -> None:
        self.index = index
        self.block_size = block_size
        self.hashes_per_block = block_size // hash_block_size
        self.pool = pool
        self.pool_group = pool_group
        self.window = spec.window if isinstance(spec, SlidingWindow) else None

    def own_hashes(self, hashes: Sequence[bytes]) -> Sequence[bytes]:
        """Of the chain's hashes, those at the ends of this group's blocks."""
        step = self.hashes_per_block
        return hashes if step == 1 else hashes[step - 1 :: step]

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def num_skipped_tokens(self, num_computed: int) -> int:
        """Tokens that no query from position ``num_computed`` on can see."""
        return 0 if self.window is None else max(0, num_computed - self.window + 1)

    def longest_hit(self, hashes: Sequence[bytes], max_blocks: int, alignment: int) -> list[int]:
        """Blocks of the longest prefix that this group can serve, at most ``max_blocks`` of them.

        ``hashes`` are this group's own. The hit's tokens are a multiple of ``alignment``. Full attention needs every
        block. A window needs only the last blocks that cover it; the null block stands for the ones before.
        """
        if self.window is not None:
            return self._longest_window_hit(hashes, max_blocks, alignment)
        blocks = self.pool.lookup_run(hashes[:max_blocks], self.pool_group)
        while len(blocks) * self.block_size % alignment:
            blocks.pop()
        return blocks

    def _longest_window_hit(self, hashes: Sequence[bytes], max_blocks: int, alignment: int) -> list[int]:
        assert self.window is not None
        null = self.pool.null_block
        assert null is not None
        # A query just behind the hit sees window - 1 tokens of it.
        needed = -(-(self.window - 1) // self.block_size)
        blocks = [null] * max_blocks
        run = 0
        for index in range(max_blocks - 1, -1, -1):
            if not run and (index + 1) * self.block_size % alignment:
                continue
            if run >= needed:
                del blocks[index + 1 + run :]
                return blocks
            block = self.pool.lookup(hashes[index], self.pool_group)
            if block is None:
                run = 0
            else:
                blocks[index] = block
                run += 1
        # No run is long enough in itself, but one that starts with the text needs nothing before it.
        del blocks[run:]
        return blocks


def longest_common_hit(
    groups: Sequence[LayerGroup], hashes: Sequence[bytes], max_tokens: int, alignment: int
) -> tuple[int, list[list[int]]]:
    """The longest prefix that all groups can serve: its tokens, and each group's blocks for it.

    A window group may fall short of what full attention offers, and shortening the hit moves the window to other
    blocks: so the search goes on until every group agrees. Each round can only shorten the hit.
    """
    tokens = max_tokens - max_tokens % alignment
    own = [group.own_hashes(hashes) for group in groups]
    found: list[list[int]] = [[] for _ in groups]
    # Full attention first: it offers the most at the least cost.
    order = sorted(range(len(groups)), key=lambda i: groups[i].window is not None)
    agreed: set[int] = set()
    while len(agreed) < len(groups):
        for i in order:
            group = groups[i]
            if i in agreed and group.window is None:
                del found[i][tokens // group.block_size :]
                continue
            limit = min(tokens // group.block_size, len(own[i]))
            found[i] = group.longest_hit(own[i], limit, alignment)
            if (hit := len(found[i]) * group.block_size) < tokens:
                tokens = hit
                agreed = {j for j in agreed if groups[j].window is None}
            agreed.add(i)
    for i, group in enumerate(groups):
        del found[i][tokens // group.block_size :]
    return tokens, found
