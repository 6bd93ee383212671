"""BlockPool: which blocks are free, who refers to them, and which text their contents stand for."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .errors import IntegrityError, OutOfBlocks
from .free_queue import FreeQueue
from .hash_index import HashIndex
from .kv_events import AllBlocksCleared, BlockRemoved, EventLog, Medium

_FEW_BLOCKS = 32  # below that, a loop is faster than numpy
_GENERATIONS = 0xFFFFFFFF  # they wrap around after four billion changes of one block


@dataclass(slots=True)
class PoolCounters:
    """Blocks, counted since the start or the last reset."""

    allocated_blocks: int = 0
    freed_blocks: int = 0
    reused_blocks: int = 0  # taken again by a hit, a fork not counted
    evicted_blocks: int = 0  # cached contents given up to make room


class BlockPool:
    """A fixed number of equal blocks of KV memory, of which only the numbers live here.

    A block is in one of three states, and the three counts always add up to ``num_usable_blocks``:

        free     no reference, no hash            handed out first (the front of the queue)
        cached   no reference, contents findable  evicted from the front, oldest first
        in use   referred to by ≥ 1 block table   with or without a hash

    A cached or used block may carry a *hash*: the digest of the whole prefix that its contents stand for. Lookups
    go by hash, separately for each layer group (the same text is cached once per group). Two blocks may carry the
    same hash; the oldest answers, and the others take its place when it is evicted.

    With ``null_block``, block 0 is never handed out: it stands in tables for positions that a sliding window has
    left behind. With ``growable`` the pool never evicts: it grows when no free block is left.
    """

    def __init__(
        self,
        num_blocks: int,
        *,
        num_groups: int = 1,
        null_block: bool = False,
        growable: bool = False,
        events: EventLog | None = None,
        medium: Medium = "device",
        first_group: int = 0,
    ) -> None:
        reserved = 1 if null_block else 0
        if num_blocks <= reserved:
            raise ValueError(f"a pool needs at least {reserved + 1} blocks, got {num_blocks}")
        self.num_blocks = num_blocks
        self.num_groups = num_groups
        self.null_block: int | None = 0 if null_block else None
        self.growable = growable
        self.events = events
        self.medium: Medium = medium  # named in events
        self.first_group = first_group  # what this pool's group 0 is called in events
        self.counters = PoolCounters()
        self.on_evict: Callable[[int, bytes, int], None] | None = (
            None  # block, hash, group; before it is forgotten
        )
        self.on_forget: Callable[[int], None] | None = None  # block; it can't be found any more
        self._queue = FreeQueue(num_blocks)
        self._refs = [0] * num_blocks
        self._hash_of: list[bytes | None] = [None] * num_blocks
        self._group_of = bytearray(num_blocks)
        self._cached = [HashIndex() for _ in range(num_groups)]
        self._duplicates: list[dict[bytes, list[int]]] = [{} for _ in range(num_groups)]
        self._num_queued_hashed = 0
        # Rises when a block's contents become findable (then it is odd) and when they are forgotten (even). Whoever
        # remembers a block with an odd generation knows, as long as it is the same, that the contents are too.
        self.generations = array("I", bytes(4 * num_blocks))
        if null_block:
            self._queue.remove([0])

    # -- counts ---------------------------------------------------------------------------------------------

    @property
    def num_usable_blocks(self) -> int:
        return self.num_blocks - (self.null_block is not None)

    @property
    def num_available_blocks(self) -> int:
        """Blocks that ``allocate`` can hand out now: the free and the cached ones."""
        return self._queue.size

    @property
    def num_free_blocks(self) -> int:
        """Available blocks that hold nothing worth keeping."""
        return self._queue.size - self._num_queued_hashed

    @property
    def num_cached_blocks(self) -> int:
        """Available blocks whose contents a lookup can find."""
        return self._num_queued_hashed

    @property
    def num_used_blocks(self) -> int:
        return self.num_usable_blocks - self._queue.size

    @property
    def num_findable_hashes(self) -> int:
        """Distinct hashes over all groups, in blocks in use or not."""
        return sum(len(cached) for cached in self._cached)

    @property
    def usage(self) -> float:
        """Share of the usable blocks that are in use, 0 … 1."""
        return self.num_used_blocks / self.num_usable_blocks

    def ref_count(self, block: int) -> int:
        return self._refs[block]

    def hash_of(self, block: int) -> bytes | None:
        return self._hash_of[block]

    def group_of(self, block: int) -> int | None:
        """The layer group under which ``block`` is cached; None without a hash."""
        return None if self._hash_of[block] is None else self._group_of[block]

    def free_order(self) -> list[int]:
        """Available blocks in the order in which they will be handed out. O(pool): for tests and reports."""
        return list(self._queue)

    def count_idle(self, blocks: Sequence[int]) -> int:
        """How many of ``blocks`` nobody refers to: taking them makes that many fewer available."""
        idle = list(map(self._refs.__getitem__, blocks)).count(0)
        return idle if self.null_block is None else idle - list(blocks).count(self.null_block)

    # -- taking and giving back -----------------------------------------------------------------------------

    def allocate(self, count: int) -> list[int]:
        """Hand out ``count`` blocks with one reference each, evicting what they cached.

        Raises :class:`OutOfBlocks`, changing nothing, if fewer are available.
        """
        queue = self._queue
        if self.growable and count > queue.size - self._num_queued_hashed:
            self._grow(count)
        if count > queue.size:
            raise OutOfBlocks(count, queue.size, self.num_usable_blocks)
        blocks = queue.pop_front(count)
        refs, hash_of = self._refs, self._hash_of
        evicted = [block for block in blocks if hash_of[block] is not None]
        if evicted:
            self._evict(evicted)
        for block in blocks:
            refs[block] = 1
        self.counters.allocated_blocks += count
        return blocks

    def touch(self, blocks: Sequence[int]) -> None:
        """Take blocks that a lookup found: one more reference each, out of the queue if they were in it."""
        refs, hash_of = self._refs, self._hash_of
        if self.null_block is not None and self.null_block in blocks:
            blocks = [block for block in blocks if block != self.null_block]
        idle = [block for block in blocks if not refs[block]]
        self._queue.remove(idle)
        for block in blocks:
            refs[block] += 1
        self._num_queued_hashed -= len(idle) - list(map(hash_of.__getitem__, idle)).count(None)
        self.counters.reused_blocks += len(blocks)

    def share(self, blocks: Iterable[int]) -> None:
        """One more reference on blocks that are in use already: a fork."""
        refs, null = self._refs, self.null_block
        shared = [block for block in blocks if block != null]
        for block in shared:
            if not refs[block]:
                raise IntegrityError(f"block {block} is not in use, so there is nothing to share")
        for block in shared:
            refs[block] += 1

    def free(self, blocks: Sequence[int]) -> None:
        """Drop one reference from each block of a table, given in table order.

        The tail is queued first, so that it is evicted before the head that more prompts share. Blocks without a
        hash can never give a hit: they go to the front and are reused before anything cached is evicted.
        """
        refs, hash_of = self._refs, self._hash_of
        null = self.null_block
        hashed: list[int] = []
        unhashed: list[int] = []
        for block in reversed(blocks):
            if block == null:
                continue
            count = refs[block] - 1
            refs[block] = count
            if not count:
                (unhashed if hash_of[block] is None else hashed).append(block)
            elif count < 0:
                refs[block] = 0
                raise IntegrityError(f"block {block} was freed more often than it was taken")
        self._queue.prepend(unhashed)
        self._queue.append(hashed)
        self._num_queued_hashed += len(hashed)
        self.counters.freed_blocks += len(hashed) + len(unhashed)

    # -- contents -------------------------------------------------------------------------------------------

    def cache(self, blocks: Sequence[int], hashes: Sequence[bytes], group: int = 0) -> list[int]:
        """Let lookups find ``blocks[i]`` under ``hashes[i]``. The blocks must be in use and have no hash yet.

        Null blocks are passed over. Returns the indices i whose hash another block carried already: that one goes on
        answering for it.
        """
        hash_of, cached = self._hash_of, self._cached[group]
        if len(blocks) != len(hashes):
            raise ValueError(f"{len(hashes)} hashes for {len(blocks)} blocks")
        if self.null_block is not None and self.null_block in blocks:
            return self._cache_without_nulls(blocks, hashes, group)
        if any(map(hash_of.__getitem__, blocks)) or not all(map(self._refs.__getitem__, blocks)):
            raise IntegrityError(f"of blocks {blocks} one has a hash already, or nobody uses it")
        for block, digest in zip(blocks, hashes, strict=True):
            hash_of[block] = digest
        if len(blocks) < _FEW_BLOCKS:
            for block in blocks:
                self._group_of[block] = group
                self.generations[block] = (self.generations[block] + 1) & _GENERATIONS
        else:
            index = np.array(blocks)
            np.frombuffer(self._group_of, dtype=np.uint8)[index] = group
            np.frombuffer(self.generations, dtype=np.uint32)[index] += 1
        repeated = cached.add(hashes, blocks)
        for index_ in repeated:
            self._duplicates[group].setdefault(hashes[index_], []).append(blocks[index_])
        return repeated

    def _cache_without_nulls(self, blocks: Sequence[int], hashes: Sequence[bytes], group: int) -> list[int]:
        real = [index for index, block in enumerate(blocks) if block != self.null_block]
        repeated = self.cache([blocks[i] for i in real], [hashes[i] for i in real], group)
        return [real[index] for index in repeated]

    def lookup(self, digest: bytes, group: int = 0) -> int | None:
        """The block that holds this prefix's last block, or None."""
        return self._cached[group].get(digest)

    def holders(self, digest: bytes, group: int = 0) -> list[int]:
        """All blocks that carry this hash, the one that answers for it first."""
        block = self._cached[group].get(digest)
        return [] if block is None else [block, *self._duplicates[group].get(digest, ())]

    def lookup_run(self, hashes: Sequence[bytes], group: int = 0) -> list[int]:
        """The blocks of the longest run of ``hashes``, from its start, that are all cached."""
        return self._cached[group].run(hashes)

    def uncache(self, block: int) -> None:
        """Forget what ``block`` holds; it keeps its references and, if free, moves to the front of the queue."""
        if self._hash_of[block] is None:
            return
        self._forget([block])
        if not self._refs[block]:
            self._num_queued_hashed -= 1
            self._queue.remove([block])
            self._queue.prepend([block])

    def reset(self) -> bool:
        """Forget all contents and start counting anew. Refused (False, nothing changed) while any block is in use."""
        if self.num_used_blocks:
            return False
        self.forget_all()
        self.counters = PoolCounters()
        return True

    def forget_all(self) -> None:
        """Forget all contents; blocks in use stay with their holders, nobody else can find them."""
        for block, digest in enumerate(self._hash_of):
            if digest is not None:
                self._hash_of[block] = None
                self.generations[block] = (self.generations[block] + 1) & _GENERATIONS
                if self.on_forget is not None:
                    self.on_forget(block)
        for group in range(self.num_groups):
            self._cached[group].clear()
            self._duplicates[group].clear()
        self._num_queued_hashed = 0
        if self.events is not None:
            self.events.publish(AllBlocksCleared(self.medium))

    def _evict(self, blocks: list[int]) -> None:
        """Give up what ``blocks``, just taken from the queue, cache."""
        if self.on_evict is not None:
            for block in blocks:
                digest = self._hash_of[block]
                assert digest is not None
                self.on_evict(block, digest, self._group_of[block])
        self._num_queued_hashed -= len(blocks)
        self.counters.evicted_blocks += len(blocks)
        self._forget(blocks)

    def _forget(self, blocks: list[int]) -> None:
        """Take ``blocks`` out of the lookup tables; another block with the same hash stays findable."""
        hash_of, generations = self._hash_of, self.generations
        digests: list[bytes] = [hash_of[block] for block in blocks]  # type: ignore[misc]  # all have one
        for block in blocks:
            hash_of[block] = None
            generations[block] = (generations[block] + 1) & _GENERATIONS
        if self.on_forget is not None:
            for block in blocks:
                self.on_forget(block)
        if self.num_groups == 1 and self.events is None and not self._duplicates[0]:
            self._cached[0].discard(digests)  # a pass of its own: reads of far memory overlap
            return
        for block, digest in zip(blocks, digests, strict=True):
            group = self._group_of[block]
            if digest in self._duplicates[group]:
                self._forget_duplicate(block, digest, group)
                continue
            self._cached[group].discard((digest,))
            if self.events is not None:
                self.events.publish(BlockRemoved(digest, self.first_group + group, self.medium))

    def _forget_duplicate(self, block: int, digest: bytes, group: int) -> None:
        """``block`` is one of several with this hash: the next oldest answers for it from now on."""
        cached, duplicates = self._cached[group], self._duplicates[group]
        others = duplicates[digest]
        if cached[digest] == block:
            cached[digest] = others.pop(0)
        else:
            others.remove(block)
        if not others:
            del duplicates[digest]

    def _grow(self, count: int) -> None:
        target = max(2 * self.num_blocks, self.num_blocks + count)
        added = target - self.num_blocks
        self._queue.grow(target)
        self._refs.extend([0] * added)
        self._hash_of.extend([None] * added)
        self._group_of.extend(bytes(added))
        self.generations.extend(array("I", bytes(4 * added)))
        self.num_blocks = target

    # -- integrity ------------------------------------------------------------------------------------------

    def check(self, tables: Iterable[Sequence[int]] | None = None) -> None:
        """Raise :class:`IntegrityError` if the bookkeeping contradicts itself. O(pool); callable at any idle moment.

        ``tables``: every block table that refers to this pool; then each count must equal the references.
        """
        queued = list(self._queue)
        queued_set = set(queued)
        _require(len(queued) == len(queued_set) == self._queue.size, "the free queue repeats a block")
        for block, count in enumerate(self._refs):
            idle = block in queued_set
            if block == self.null_block:
                _require(not idle and not count, "the null block is queued or counted")
            else:
                _require(idle == (count == 0), f"block {block} has {count} references and queued is {idle}")
        hashed = {block for block, digest in enumerate(self._hash_of) if digest is not None}
        _require(len(hashed & queued_set) == self._num_queued_hashed, "the number of cached blocks is wrong")
        _require(
            self.num_free_blocks + self.num_cached_blocks + self.num_used_blocks == self.num_usable_blocks,
            "free + cached + in use is not the total",
        )
        self._check_lookup_tables(hashed)
        if tables is not None:
            counted = Counter(block for table in tables for block in table if block != self.null_block)
            for block, count in enumerate(self._refs):
                _require(
                    counted[block] == count,
                    f"block {block} counts {count} references, tables hold {counted[block]}",
                )

    def _check_lookup_tables(self, hashed: set[int]) -> None:
        found: list[int] = []
        for group, (cached, duplicates) in enumerate(zip(self._cached, self._duplicates, strict=True)):
            for digest, block in cached.items():
                _require(
                    bool(self.generations[block] & 1), f"block {block} is findable in an even generation"
                )
                for holder in (block, *duplicates.get(digest, ())):
                    _require(
                        self._hash_of[holder] == digest,
                        f"block {holder} is found under a hash it doesn't carry",
                    )
                    _require(self._group_of[holder] == group, f"block {holder} is found in the wrong group")
                    found.append(holder)
            _require(
                all(digest in cached for digest in duplicates),
                "a duplicate stands under a hash that nobody holds",
            )
            _require(all(duplicates.values()), "an empty list of duplicates is left")
        _require(len(found) == len(set(found)), "a block is found under two hashes")
        _require(set(found) == hashed, "a block carries a hash under which it can't be found")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise IntegrityError(message)
