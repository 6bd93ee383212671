"""KVManager: hands out KV memory to sequences, and finds what of a prompt is there already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from typing import NamedTuple

from .block_hash import NO_KEYS, Algorithm, BlockHasher, ExtraKeys
from .block_pool import BlockPool
from .block_table import BlockTable
from .errors import IntegrityError
from .kv_events import BlocksStored, EventLog
from .kv_sequence import KVSequence, TokenIds
from .layer_groups import FullAttention, GroupSpec, LayerGroup, SlidingWindow, longest_common_hit


@dataclass(frozen=True, slots=True)
class Hit:
    """What a lookup found: valid until the manager next changes. Holds nothing; ``admit`` takes it.

    ``blocks[g]`` are group g's blocks in table order, the null block where a window needs nothing.
    """

    num_tokens: int
    blocks: tuple[list[int], ...]


class BlockCopy(NamedTuple):
    """Copy the keys and values of block ``source`` to block ``destination`` in the layers of ``group``."""

    source: int
    destination: int
    group: int


class KVManager:
    """KV memory of many sequences, shared by prefix.

    The life of a sequence, as a scheduler drives it::

        seq = kv.open(prompt_ids)              # text and hashes; takes no memory
        hit = kv.match(seq)                    # what is there already; changes nothing
        if kv.admit(seq, len(prompt_ids), hit):    # takes the hit, makes room up to a position; False: no room
            for source, destination, group in kv.take_copies(): ...  # before the step writes anything
            # … run the model over positions seq.num_computed_tokens … len(prompt_ids) - 1,
            #   writing to seq.slot_mapping(start, end), reading through seq.block_table() …
            kv.commit(seq, len(prompt_ids))    # those keys and values are there now: full blocks can be found
        seq.append([token])                    # a sampled token joins the text
        kv.reserve(seq, len(seq))              # room for it; False: no room, so preempt someone
        kv.commit(seq, len(seq))               # after the step that computed it
        child = kv.fork(seq)                   # shares every block; writing copies (take_copies)
        kv.preempt(seq)                        # gives its memory back, keeps its text; admit it again later
        kv.free(seq)                           # ends it; what it cached stays findable until evicted

    Nothing is changed when ``admit`` or ``reserve`` returns False. A hit is at most the text's tokens − 1, in whole
    blocks: the last token must be computed to get logits.

    ``groups`` lists the layer groups (default: one of full attention). With one number as ``num_blocks`` all groups
    share a pool; with a sequence each has its own. A sliding window reserves block 0 of its pool as the null block.
    """

    def __init__(
        self,
        num_blocks: int | Sequence[int],
        block_size: int = 16,
        *,
        groups: Sequence[GroupSpec] = (FullAttention(),),
        hashing: Algorithm = "sha256",
        seed: bytes | None = None,
        caching: bool = True,
        null_block: bool | None = None,
        growable: bool = False,
        events: bool = False,
    ) -> None:
        """
        num_blocks: blocks of the shared pool, or of each group's pool; null blocks included.
        block_size: tokens a block, unless a group says otherwise.
        caching: False turns prefix reuse off: no hash is kept, nothing is ever found.
        null_block: reserve block 0 in every pool (True), never (False, only without windows), or where needed (None).
        growable: pools grow instead of evicting.
        events: keep a log of what becomes findable and what is forgotten.
        """
        sizes = [spec.block_size or block_size for spec in groups]
        if not sizes or min(sizes) < 1:
            raise ValueError(f"a manager needs at least one group, and blocks of at least one token: {sizes}")
        self.block_size = min(sizes)  # tokens a hashed block
        if any(size % self.block_size for size in sizes):
            raise ValueError(f"block sizes {sizes} must be multiples of the smallest")
        self.alignment = lcm(*sizes)
        self.caching = caching
        self.hasher = BlockHasher(hashing, seed=seed)
        self.events = EventLog() if events else None
        self.pools, members = _make_pools(num_blocks, groups, null_block, growable, self.events)
        self.groups = [
            LayerGroup(spec, index, sizes[index], self.block_size, *members[index])
            for index, spec in enumerate(groups)
        ]
        self._open: dict[int, KVSequence] = {}
        self._copies: list[BlockCopy] = []  # not taken yet; each holds a reference on its source

    # -- text -----------------------------------------------------------------------------------------------

    def open(
        self,
        token_ids: TokenIds,
        keys: ExtraKeys = NO_KEYS,
        *,
        read_cache: bool = True,
        session: str | None = None,
    ) -> KVSequence:
        """A sequence with this text and no memory. Hashes its full blocks.

        ``read_cache`` False: reuse nothing (the caller needs every position computed), but cache what is computed.
        """
        return KVSequence(
            token_ids,
            hasher=self.hasher,
            block_size=self.block_size,
            keys=keys,
            tables=[BlockTable(group.block_size) for group in self.groups],
            read_cache=read_cache,
            session=session,
        )

    def match(self, seq: KVSequence) -> Hit:
        """The longest prefix of ``seq`` whose keys and values are there. Changes nothing."""
        if not self.caching or not seq.read_cache or seq.num_tokens < 2:
            return Hit(0, tuple([] for _ in self.groups))
        tokens, blocks = longest_common_hit(self.groups, seq.digests, seq.num_tokens - 1, self.alignment)
        return Hit(tokens, tuple(blocks))

    # -- memory ---------------------------------------------------------------------------------------------

    def admit(self, seq: KVSequence, num_tokens: int, hit: Hit | None = None, *, keep_free: int = 0) -> bool:
        """Take ``hit`` (looked up now if None) and make room for positions up to ``num_tokens``.

        False, with nothing changed, unless every pool keeps ``keep_free`` available blocks afterwards.
        ``seq`` must hold no memory: it is new or was preempted. Afterwards ``seq.num_computed_tokens`` is the hit.
        """
        if any(seq.tables[g].ids for g in range(len(self.groups))):
            raise ValueError("the sequence holds memory already; use reserve")
        if hit is None:
            hit = self.match(seq)
        demand = dict.fromkeys(map(id, self.pools), keep_free)
        for group, found in zip(self.groups, hit.blocks, strict=True):
            new = max(0, group.num_blocks_for(num_tokens) - len(found))
            demand[id(group.pool)] += new + group.pool.count_available(found)
        if any(pool.num_available_blocks < demand[id(pool)] and not pool.growable for pool in self.pools):
            return False
        # The hit first: its blocks must be out of the queue before the new ones are taken from it.
        for group, found in zip(self.groups, hit.blocks, strict=True):
            group.pool.touch(found)
            seq.tables[group.index].extend(found)
            seq.num_cached_blocks[group.index] = len(found)
        seq.num_computed_tokens = hit.num_tokens
        self._open[id(seq)] = seq
        self._extend(seq, num_tokens)
        return True

    def reserve(self, seq: KVSequence, num_tokens: int, *, keep_free: int = 0) -> bool:
        """Make room for positions up to ``num_tokens``; blocks out of every window are given back first.

        A partly filled block that someone else reads, or that is cached, is replaced by a copy (``take_copies``).
        False, with no block taken, unless every pool keeps ``keep_free`` available blocks afterwards.
        """
        self._free_skipped(seq)
        demand = dict.fromkeys(map(id, self.pools), keep_free)
        for group in self.groups:
            new = max(0, group.num_blocks_for(num_tokens) - len(seq.tables[group.index]))
            demand[id(group.pool)] += new + (self._written_shared_block(seq, group, num_tokens) is not None)
        if any(pool.num_available_blocks < demand[id(pool)] and not pool.growable for pool in self.pools):
            return False
        for group in self.groups:
            self._copy_on_write(seq, group, num_tokens)
        self._extend(seq, num_tokens)
        return True

    def commit(self, seq: KVSequence, num_computed_tokens: int) -> None:
        """Keys and values of positions up to ``num_computed_tokens`` are there: hash the blocks that became full.

        A scheduler may call it before the step runs, so that siblings in the same step share the blocks, as long as
        the step can't fail.
        """
        if num_computed_tokens > min(seq.num_tokens, seq.num_slots):
            raise ValueError(
                f"{num_computed_tokens} computed tokens don't fit {seq.num_tokens} tokens in {seq.num_slots} slots"
            )
        seq.num_computed_tokens = num_computed_tokens
        if not self.caching:
            return
        for group in self.groups:
            start = seq.num_cached_blocks[group.index]
            end = num_computed_tokens // group.block_size
            if end > start:
                self._cache_blocks(seq, group, start, end)
                seq.num_cached_blocks[group.index] = end

    def fork(self, seq: KVSequence) -> KVSequence:
        """A second sequence with the same text, keys and memory. Copies nothing until one of them writes."""
        child = KVSequence(
            seq.tokens,
            hasher=self.hasher,
            block_size=self.block_size,
            keys=seq.keys,
            tables=[BlockTable(group.block_size) for group in self.groups],
            digests=list(seq.digests),
            read_cache=seq.read_cache,
            session=seq.session,
        )
        child.num_computed_tokens = seq.num_computed_tokens
        child.num_cached_blocks = list(seq.num_cached_blocks)
        for group in self.groups:
            # Room that was reserved and not written yet stays the parent's own.
            shared = seq.tables[group.index].ids[: group.num_blocks_for(seq.num_computed_tokens)]
            group.pool.share(shared)
            child.tables[group.index].extend(shared)
        self._open[id(child)] = child
        return child

    def free(self, seq: KVSequence) -> None:
        """End a sequence: its blocks go back, tail first. What it cached stays findable until it is evicted."""
        for group in self.groups:
            group.pool.free(seq.tables[group.index].truncate(0))
            seq.num_cached_blocks[group.index] = 0
        seq.num_computed_tokens = 0
        self._open.pop(id(seq), None)
        self._cancel_copies()

    def preempt(self, seq: KVSequence) -> None:
        """Give the memory back and keep the text, so that ``admit`` can bring the sequence back, mostly as a hit."""
        self.free(seq)

    def take_copies(self) -> list[BlockCopy]:
        """Blocks to copy, all at once, before the next step writes anything. No destination is also a source.

        Sources are held until this call: nothing allocated before it can overwrite them.
        """
        copies, self._copies = self._copies, []
        for copy in copies:
            self.groups[copy.group].pool.free([copy.source])
        return copies

    # -- whole state ----------------------------------------------------------------------------------------

    def reset(self) -> bool:
        """Forget everything cached. Refused (False, nothing changed) while any sequence holds memory."""
        if any(pool.num_used_blocks for pool in self.pools):
            return False
        for pool in self.pools:
            pool.reset()
        return True

    def check(self) -> None:
        """Raise ``IntegrityError`` if counts, tables and hashes contradict each other. At any idle moment; O(pool)."""
        for pool in self.pools:
            tables = [
                seq.tables[group.index].ids
                for seq in self._open.values()
                for group in self.groups
                if group.pool is pool
            ]
            held = [copy.source for copy in self._copies if self.groups[copy.group].pool is pool]
            pool.check([*tables, held])
        for seq in self._open.values():
            if seq.num_computed_tokens > seq.num_slots:
                raise IntegrityError("a sequence has computed tokens without slots")

    # -- inside ---------------------------------------------------------------------------------------------

    def _extend(self, seq: KVSequence, num_tokens: int) -> None:
        for group in self.groups:
            table = seq.tables[group.index]
            missing = group.num_blocks_for(num_tokens) - len(table)
            if missing > 0:
                table.extend(group.pool.allocate(missing))

    def _free_skipped(self, seq: KVSequence) -> None:
        """Give back blocks that every later query is too far from; the null block takes their place."""
        for group in self.groups:
            if group.window is None:
                continue
            table = seq.tables[group.index]
            null = group.pool.null_block
            assert null is not None
            index = group.num_skipped_tokens(seq.num_computed_tokens) // group.block_size - 1
            skipped = []
            # Leftwards to the first block that is gone already: each block is visited once.
            while index >= 0 and table.ids[index] != null:
                skipped.append(table.replace(index, null))
                index -= 1
            group.pool.free(skipped[::-1])
        if self._copies:
            self._cancel_copies()

    def _written_shared_block(self, seq: KVSequence, group: LayerGroup, num_tokens: int) -> int | None:
        """Logical index of the partly filled block that the next tokens would change under someone's eyes."""
        index, offset = divmod(seq.num_computed_tokens, group.block_size)
        table = seq.tables[group.index]
        if not offset or num_tokens <= seq.num_computed_tokens or index >= len(table):
            return None
        block = table.ids[index]
        shared = group.pool.ref_count(block) > 1 or group.pool.hash_of(block) is not None
        return index if shared else None

    def _copy_on_write(self, seq: KVSequence, group: LayerGroup, num_tokens: int) -> None:
        index = self._written_shared_block(seq, group, num_tokens)
        if index is None:
            return
        [destination] = group.pool.allocate(1)
        source = seq.tables[group.index].replace(index, destination)
        # A block that a pending copy is still to fill is copied from where that copy comes from: all run at once.
        origin = next(
            (c.source for c in self._copies if (c.destination, c.group) == (source, group.index)), None
        )
        if origin is not None:
            group.pool.share([origin])
            group.pool.free([source])
            source = origin
        # Otherwise the table's reference becomes the one that holds the source.
        self._copies.append(BlockCopy(source, destination, group.index))

    def _cancel_copies(self) -> None:
        """Forget copies into blocks that nobody wants any more, before these are handed out again."""
        for copy in [c for c in self._copies if not self.groups[c.group].pool.ref_count(c.destination)]:
            self._copies.remove(copy)
            self.groups[copy.group].pool.free([copy.source])

    def _cache_blocks(self, seq: KVSequence, group: LayerGroup, start: int, end: int) -> None:
        pool = group.pool
        hashes = group.own_hashes(seq.digests)[start:end]
        blocks = seq.tables[group.index].ids[start:end]
        pool.cache(blocks, hashes, group.pool_group)
        if self.events is not None:
            width = group.block_size
            own = group.own_hashes(seq.digests)
            self.events.publish(
                BlocksStored(
                    tuple(hashes),
                    own[start - 1] if start else None,
                    tuple(seq.tokens[start * width : end * width].tolist()),
                    width,
                    group.index,
                    seq.keys.adapter.name if seq.keys.adapter else None,
                    seq.session,
                )
            )


def _make_pools(
    num_blocks: int | Sequence[int],
    groups: Sequence[GroupSpec],
    null_block: bool | None,
    growable: bool,
    events: EventLog | None,
) -> tuple[list[BlockPool], list[tuple[BlockPool, int]]]:
    """The pools, and for each group its pool and its number within it."""

    def needs_null(specs: Sequence[GroupSpec]) -> bool:
        windowed = any(isinstance(spec, SlidingWindow) for spec in specs)
        if windowed and null_block is False:
            raise ValueError("a sliding window needs the null block")
        return windowed if null_block is None else null_block

    if isinstance(num_blocks, int):
        pool = BlockPool(
            num_blocks,
            num_groups=len(groups),
            null_block=needs_null(groups),
            growable=growable,
            events=events,
        )
        return [pool], [(pool, index) for index in range(len(groups))]
    if len(num_blocks) != len(groups):
        raise ValueError(f"{len(num_blocks)} pools for {len(groups)} groups")
    pools = [
        BlockPool(count, null_block=needs_null([spec]), growable=growable, events=events)
        for count, spec in zip(num_blocks, groups, strict=True)
    ]
    return pools, [(pool, 0) for pool in pools]
