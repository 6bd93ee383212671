"""Layer groups: layers with the same attention pattern, which keep and find their blocks together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .block_pool import BlockPool
from .host_tier import HostTier
from .kv_events import EventLog


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

    Blocks that a lookup finds are numbers of the device pool; a block that is only on the host is given as
    ``-1 - n`` for host block n, since it has no device block yet.
    """

    __slots__ = ("block_size", "hashes_per_block", "host", "index", "pool", "pool_group", "window")

    def __init__(
        self,
        spec: GroupSpec,
        index: int,
        *,
        block_size: int,
        hash_block_size: int,
        pool: BlockPool,
        pool_group: int,
        host: HostTier | None = None,
    ) -> None:
        self.index = index
        self.block_size = block_size
        self.hashes_per_block = block_size // hash_block_size
        self.pool = pool
        self.pool_group = pool_group  # this group's number within its pool
        self.host = host
        self.window = spec.window if isinstance(spec, SlidingWindow) else None

    def own_hashes(self, hashes: Sequence[bytes]) -> Sequence[bytes]:
        """Of the chain's hashes, those at the ends of this group's blocks."""
        step = self.hashes_per_block
        return hashes if step == 1 else hashes[step - 1 :: step]

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold ``num_tokens`` tokens."""
        return -(-num_tokens // self.block_size)

    def num_skipped_blocks(self, num_computed: int) -> int:
        """Leading blocks that no query from position ``num_computed`` on can see any part of."""
        return 0 if self.window is None else max(0, num_computed - self.window + 1) // self.block_size

    def num_missing_blocks(self, num_held: int, num_tokens: int, num_computed: int) -> int:
        """Blocks to allocate so that a table of ``num_held`` entries reaches ``num_tokens``.

        Positions that no query from ``num_computed`` on can see get the null block, which costs nothing.
        """
        return max(0, self.num_blocks_for(num_tokens) - max(num_held, self.num_skipped_blocks(num_computed)))

    def find(self, digest: bytes) -> int | None:
        """The device block with this hash, else the host block as ``-1 - n``, else None."""
        block = self.pool.lookup(digest, self.pool_group)
        if block is None and self.host is not None:
            on_host = self.host.lookup(digest, self.index)
            return None if on_host is None else -1 - on_host
        return block

    def longest_hit(
        self, hashes: Sequence[bytes], max_blocks: int, alignment: int, known: Sequence[int] = ()
    ) -> list[int]:
        """Blocks of the longest prefix that this group can serve, at most ``max_blocks`` of them.

        ``hashes`` are this group's own. The hit's tokens are a multiple of ``alignment``. Full attention needs every
        block. A window needs only the last blocks that cover it; the null block stands for the ones before.
        ``known``: leading blocks that are certainly cached (full attention only), so that they are not looked up.
        """
        if self.window is not None:
            return self._longest_window_hit(hashes, max_blocks, alignment)
        blocks = list(known[:max_blocks])
        blocks += self.pool.lookup_run(hashes[len(blocks) : max_blocks], self.pool_group)
        if self.host is not None:
            while len(blocks) < max_blocks and (block := self.find(hashes[len(blocks)])) is not None:
                blocks.append(block)
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
            block = self.find(hashes[index])
            if block is None:
                run = 0
            else:
                blocks[index] = block
                run += 1
        # No run is long enough in itself, but one that starts with the text needs nothing before it.
        del blocks[run:]
        return blocks


@dataclass(frozen=True, slots=True)
class CommonHit:
    """``blocks[g]`` are group g's blocks of the first ``num_tokens`` tokens.

    ``num_full_tokens``: what the groups of full attention alone could have served.
    """

    num_tokens: int
    blocks: list[list[int]]
    num_full_tokens: int


def longest_common_hit(
    groups: Sequence[LayerGroup],
    hashes: Sequence[bytes],
    max_tokens: int,
    alignment: int,
    known: Sequence[int] = (),
) -> CommonHit:
    """The longest prefix that all groups can serve, a multiple of ``alignment`` and at most ``max_tokens``.

    A window group may fall short of what full attention offers, and shortening the hit moves every window to other
    blocks: so the search goes on until all agree. Each round can only shorten the hit. ``known``: leading blocks of
    the first group of full attention.
    """
    tokens = max_tokens - max_tokens % alignment
    found: list[list[int]] = [[] for _ in groups]
    full = [group for group in groups if group.window is None]
    windowed = [group for group in groups if group.window is not None]
    for group in full:
        own = group.own_hashes(hashes)
        limit = min(tokens // group.block_size, len(own))
        found[group.index] = group.longest_hit(own, limit, alignment, known if group is full[0] else ())
        tokens = len(found[group.index]) * group.block_size
    full_tokens = tokens if full else 0
    agreed = 0
    while agreed < len(windowed):
        agreed = 0
        for group in windowed:
            own = group.own_hashes(hashes)
            limit = min(tokens // group.block_size, len(own))
            blocks = found[group.index] = group.longest_hit(own, limit, alignment)
            if len(blocks) * group.block_size == tokens:
                agreed += 1
            else:
                tokens = len(blocks) * group.block_size
    for group in groups:
        del found[group.index][tokens // group.block_size :]
    return CommonHit(tokens, found, full_tokens)


def peak_blocks(group: LayerGroup, num_tokens: int, chunk_tokens: int, num_computed: int = 0) -> int:
    """Most blocks that a sequence of ``num_tokens`` holds at once in ``group``, ``num_computed`` being there at first.

    It is computed ``chunk_tokens`` at a time. A window gives back what it has left behind, so a long sequence may need
    no more than a short one.
    """
    if group.window is None:
        return group.num_blocks_for(num_tokens)
    return max(
        group.num_blocks_for(min(start + chunk_tokens, num_tokens)) - group.num_skipped_blocks(start)
        for start in range(num_computed, max(num_tokens, num_computed + 1), chunk_tokens)
    )


def block_sizes(groups: Sequence[GroupSpec], block_size: int) -> list[int]:
    """Tokens a block, by group. Raises ``ValueError`` for sizes that don't fit one another."""
    sizes = [spec.block_size or block_size for spec in groups]
    if not sizes or min(sizes) < 1 or any(size % min(sizes) for size in sizes):
        raise ValueError(f"block sizes {sizes}: at least one group, all multiples of the smallest")
    return sizes


def make_groups(
    specs: Sequence[GroupSpec],
    num_blocks: int | Sequence[int],
    block_sizes: Sequence[int],
    *,
    null_block: bool | None,
    growable: bool,
    events: EventLog | None,
    host: HostTier | None,
) -> tuple[list[BlockPool], list[LayerGroup]]:
    """Groups over one shared pool (one number in ``num_blocks``) or over a pool each."""

    def pool_for(count: int, members: Sequence[GroupSpec], first_group: int = 0) -> BlockPool:
        windowed = any(isinstance(spec, SlidingWindow) for spec in members)
        if windowed and null_block is False:
            raise ValueError("a sliding window needs the null block; leave null_block at None")
        null = windowed if null_block is None else null_block
        return BlockPool(
            count,
            num_groups=len(members),
            null_block=null,
            growable=growable,
            events=events,
            first_group=first_group,
        )

    if isinstance(num_blocks, int):
        shared = pool_for(num_blocks, specs)
        pools, members = [shared], [(shared, index) for index in range(len(specs))]
    elif len(num_blocks) == len(specs):
        pools = [pool_for(num_blocks[index], [spec], index) for index, spec in enumerate(specs)]
        members = [(pool, 0) for pool in pools]
    else:
        raise ValueError(
            f"{len(num_blocks)} pools for {len(specs)} groups; give one number, or one for each group"
        )
    groups = [
        LayerGroup(
            spec,
            index,
            block_size=block_sizes[index],
            hash_block_size=min(block_sizes),
            pool=members[index][0],
            pool_group=members[index][1],
            host=host,
        )
        for index, spec in enumerate(specs)
    ]
    return pools, groups
