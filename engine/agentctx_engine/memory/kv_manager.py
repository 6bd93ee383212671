"""KVManager: hands out KV memory to sequences, and finds what of a prompt is there already."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import lcm

import numpy as np

from .block_demand import BlockDemand
from .block_hash import NO_KEYS, Algorithm, BlockHasher, ExtraKeys
from .block_pool import BlockPool
from .block_table import BlockTable
from .copy_on_write import CopyQueue
from .errors import IntegrityError
from .host_tier import BlockCopy, HostTier, Transfers
from .kv_events import EventLog
from .kv_sequence import KVSequence, TokenIds, token_array
from .layer_groups import (
    FullAttention,
    GroupSpec,
    LayerGroup,
    block_sizes,
    make_groups,
    peak_blocks,
)
from .partial_blocks import PartialHit
from .prefix_cache import Match
from .prefix_index import Hit, PrefixIndex
from .prefix_stats import PrefixStats
from .skipped_blocks import SkippedBlocks, WindowRetention
from .stored_events import stored_events

# Remembering costs time in the whole text: a decoding sequence does it now and then, and when it ends.
_REMEMBER_EVERY = 64
# Evicted text that is remembered by default, in tokens: some 10 bytes each.
_REMEMBER_EVICTED = 1_000_000


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
    blocks: the last token must be computed to get logits. With ``token_granular`` it may end inside a block, which is
    then copied.

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
        token_granular: bool = False,
        host_blocks: int = 0,
        disk_blocks: int = 0,
        window_retention: WindowRetention | None = None,
        null_block: bool | None = None,
        growable: bool = False,
        events: bool = False,
        stats: bool = True,
        remember_tokens: int | None = None,
    ) -> None:
        """
        num_blocks: blocks of the shared pool, or of each group's pool; null blocks included.
        block_size: tokens a block, unless a group says otherwise.
        hashing, seed: see :class:`BlockHasher`.
        caching: False turns prefix reuse off: no hash is kept, nothing is ever found.
        token_granular: reuse part of a block too; for one group of full attention.
        host_blocks: size of a second pool that takes evicted blocks; then use ``take_transfers``.
        disk_blocks: size of a third one, in files, that takes what the second evicts.
        window_retention: what windowed groups keep findable of what is out of their window (None: all of it).
        null_block: reserve block 0 in every pool (True), never (False, only without windows), or where needed (None).
        growable: pools grow instead of evicting.
        events: keep a log of what becomes findable and what is forgotten.
        stats: count requests and their hits.
        remember_tokens: computed text to remember, for reasons and for hashes (None: what the pools hold and up to
            three times as much of what they held before, at most a million tokens of it; all, if they can grow).
        """
        sizes = block_sizes(groups, block_size)
        if token_granular and (len(groups) > 1 or not isinstance(groups[0], FullAttention)):
            raise ValueError("token-granular reuse needs a single group of full attention")
        self.block_size = min(sizes)  # tokens a hashed block
        self.alignment = lcm(*sizes)
        self.caching = caching
        self.hasher = BlockHasher(hashing, seed=seed)
        self.events = EventLog() if events else None
        self.stats = PrefixStats() if stats else None
        if disk_blocks and not host_blocks:
            raise ValueError("a disk tier stands below a host tier: give host_blocks too")
        self.host = HostTier(host_blocks, sizes, self.events, disk_blocks) if host_blocks else None
        self.pools, self.groups = make_groups(
            groups,
            num_blocks,
            sizes,
            null_block=null_block,
            growable=growable,
            events=self.events,
            host=self.host,
        )
        if remember_tokens is None and not growable:
            held = (sum(pool.num_usable_blocks for pool in self.pools) + host_blocks) * max(sizes)
            remember_tokens = held + min(3 * held, _REMEMBER_EVICTED)
        self.index = PrefixIndex(
            self.groups,
            self.hasher,
            block_size=self.block_size,
            alignment=self.alignment,
            token_granular=token_granular,
            remember_tokens=remember_tokens,
            events=self.events,
        )
        self._windowed = any(group.window is not None for group in self.groups)
        self._skipped = SkippedBlocks(self.groups, window_retention, self.alignment)
        self._open: dict[KVSequence, None] = {}  # those that may hold memory, oldest first
        self._copies = CopyQueue(self.groups)
        if self.host is not None:
            for pool in self.pools:
                pool.on_evict = partial(self._offload, pool)

    # -- text and lookup ------------------------------------------------------------------------------------

    def open(
        self,
        token_ids: TokenIds,
        keys: ExtraKeys = NO_KEYS,
        *,
        read_cache: bool = True,
        session: str | None = None,
    ) -> KVSequence:
        """A sequence with this text and no memory. Hashes its full blocks, save those of remembered text.

        ``read_cache`` False: reuse nothing (the caller needs every position computed), but cache what is computed.
        ``session`` is reported in events and never hashed.
        """
        # One copy serves as the text to look up and as the sequence's own: a long prompt is copied once.
        packed = token_array(token_ids).tobytes()
        known = self.index.known(packed, keys)
        return KVSequence(
            np.frombuffer(packed, dtype=np.int32),
            hasher=self.hasher,
            block_size=self.block_size,
            keys=keys,
            tables=[BlockTable(group.block_size) for group in self.groups],
            digests=known.digests,
            hints=known.hints,
            read_cache=read_cache,
            session=session,
        )

    def match(self, seq: KVSequence, *, keep_free: int = 0) -> Hit:
        """The longest prefix of ``seq`` that is there and can be taken: without a part of a block whose source, which must
        stay until it is copied, leaves no room for the rest of the text and ``keep_free`` blocks. Changes nothing.
        """
        hit = self.index.lookup(seq) if self.caching and seq.read_cache else self.index.no_hit()
        if hit.partial and not self._demand_of_hit(hit, [len(seq)], hit.num_tokens).is_available(keep_free):
            return hit.in_whole_blocks()
        return hit

    def explain(self, seq: KVSequence, hit: Hit) -> Match:
        """``hit`` with a reason for every token that it leaves out. Changes nothing."""
        return self.index.explain(seq, hit, forbidden=not (self.caching and seq.read_cache))

    # -- memory ---------------------------------------------------------------------------------------------

    def admit(
        self,
        seq: KVSequence,
        num_tokens: int,
        hit: Hit | None = None,
        *,
        keep_free: int = 0,
        num_external_tokens: int = 0,
        window_tokens: int | None = None,
    ) -> bool:
        """Take ``hit`` (looked up now if None) and make room for positions up to ``num_tokens``.

        ``num_external_tokens``: tokens behind the hit whose keys and values the caller brings (from a file, from
        another machine) into the sequence's slots; commit them once they are there.
        ``window_tokens``: windowed groups get room up to this position only (None: up to ``num_tokens`` too), and the rest
        by ``reserve``, chunk by chunk: so that they never hold much more than a window.
        False, with nothing changed, unless every pool keeps ``keep_free`` available blocks afterwards.
        ``seq`` must hold no memory: it is new or was preempted. Afterwards ``seq.num_computed_tokens`` counts the hit and
        the external tokens.
        """
        if any(table.ids for table in seq.tables):
            raise ValueError("the sequence holds memory already; use reserve")
        if hit is None:
            hit = self.match(seq, keep_free=keep_free)
        computed = hit.num_tokens + num_external_tokens
        if computed > seq.num_tokens:
            raise ValueError(f"{computed} computed tokens are more than the text's {seq.num_tokens}")
        num_tokens = max(num_tokens, computed)
        window_tokens = num_tokens if window_tokens is None else max(window_tokens, computed)
        reach = [num_tokens if group.window is None else window_tokens for group in self.groups]
        if not self._demand_of_hit(hit, reach, computed).is_available(keep_free):
            return False
        resumed, host_tokens = seq.was_preempted, 0
        self._hold(hit)
        seq.num_computed_tokens = computed
        self._open[seq] = None
        for group, found in zip(self.groups, hit.blocks, strict=True):
            host_tokens += self._take_hit(seq, group, found)
        if hit.partial is not None:
            self._take_partial_hit(seq, hit.partial)
        self._extend(seq, reach)
        if self.stats is not None:
            self.stats.record(seq.num_tokens, hit.num_tokens, host_tokens, resumed=resumed)
        return True

    def reserve(self, seq: KVSequence, num_tokens: int, *, keep_free: int = 0) -> bool:
        """Make room for positions up to ``num_tokens``; blocks out of every window are given back first.

        A partly filled block that someone else reads, or that is cached, is replaced by a copy (``take_copies``).
        False, with no block taken, unless every pool keeps ``keep_free`` available blocks afterwards.
        """
        if self._windowed:
            self._free_skipped(seq)
        shared = [self._copies.shared_block(seq, group, num_tokens) for group in self.groups]
        if num_tokens <= seq.num_slots and not keep_free and shared.count(None) == len(shared):
            return True  # as nearly every decoded token: it goes into a block that is there
        demand = BlockDemand(self.pools)
        for group, index in zip(self.groups, shared, strict=True):
            missing = group.num_missing_blocks(
                len(seq.tables[group.index]), num_tokens, seq.num_computed_tokens
            )
            demand.add(group.pool, missing + (index is not None))
        if not demand.is_available(keep_free):
            return False
        for group, index in zip(self.groups, shared, strict=True):
            if index is not None:
                self._copies.replace_block(seq, group, index)
        self._extend(seq, [num_tokens] * len(self.groups))
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
                self.index.add_blocks(seq, group, start, end)
                seq.num_cached_blocks[group.index] = end
        grown = num_computed_tokens - seq.num_remembered_tokens
        if grown > _REMEMBER_EVERY or (grown and not seq.num_remembered_tokens):
            self.index.remember(seq)

    def fork(self, seq: KVSequence) -> KVSequence:
        """A second sequence with the same text, keys and memory. Copies nothing until one of them writes."""
        child = KVSequence(
            seq.tokens.copy(),
            hasher=self.hasher,
            block_size=self.block_size,
            keys=seq.keys,
            tables=[BlockTable(group.block_size) for group in self.groups],
            digests=list(seq.digests),
            hints=seq.hints,
            read_cache=seq.read_cache,
            session=seq.session,
        )
        child.num_computed_tokens = seq.num_computed_tokens
        child.num_cached_blocks = list(seq.num_cached_blocks)
        child.num_remembered_tokens = seq.num_remembered_tokens
        child.shadowed_blocks = set(seq.shadowed_blocks)
        for group in self.groups:
            # Room that was reserved and not written yet stays the parent's own.
            shared = seq.tables[group.index].ids[: group.num_blocks_for(seq.num_computed_tokens)]
            group.pool.share(shared)
            child.tables[group.index].extend(shared)
        self._open[child] = None
        return child

    def free(self, seq: KVSequence) -> None:
        """End a sequence: its blocks go back, tail first. What it cached stays findable until it is evicted."""
        if self.caching and seq.num_computed_tokens:
            self.index.remember(seq)
            self.index.add_partial_tail(seq)
        if self._skipped.forgets:
            self._skipped.free(seq)
        for group in self.groups:
            group.pool.free(seq.tables[group.index].truncate(0))
            seq.num_cached_blocks[group.index] = 0
        seq.num_computed_tokens = seq.num_remembered_tokens = 0
        seq.shadowed_blocks.clear()
        self._open.pop(seq, None)
        self._copies.cancel_unwanted()

    def preempt(self, seq: KVSequence) -> None:
        """Give the memory back and keep the text, so that ``admit`` can bring the sequence back, mostly as a hit."""
        self.free(seq)
        seq.was_preempted = True

    def take_copies(self) -> list[BlockCopy]:
        """Blocks to copy, all at once, before the next step writes anything. No destination is also a source.

        Sources are held until this call: nothing allocated before it can overwrite them.
        """
        if self.host is not None:
            raise ValueError("with a host tier there are loads and offloads too: use take_transfers")
        return self._copies.take()

    def take_transfers(self) -> Transfers:
        """All that must be copied before the next step writes anything, host tier included."""
        if self.host is None:
            return Transfers([], [], self._copies.take())
        return Transfers(*self.host.take(), self._copies.take(), *self.host.take_disk())

    # -- questions ------------------------------------------------------------------------------------------

    def can_ever_fit(self, num_tokens: int, chunk_tokens: int) -> bool:
        """Whether a sequence of ``num_tokens``, alone and computed ``chunk_tokens`` at a time, fits the pools.

        Blocks that a window gives back on the way count once, so a long prompt may pass.
        """
        demand = BlockDemand(self.pools)
        for group in self.groups:
            demand.add(group.pool, peak_blocks(group, num_tokens, chunk_tokens))
        return demand.fits_empty_pools()

    def can_fit_whole(self, seq: KVSequence, chunk_tokens: int, hit: Hit) -> bool:
        """Whether the whole text of ``seq``, with ``hit``, fits what is available now: ``admit`` asks for a part only.

        A scheduler that starts only what it can finish asks this first. Counts what a window gives back once.
        """
        demand = BlockDemand(self.pools)
        for group, found in zip(self.groups, hit.blocks, strict=True):
            need = peak_blocks(group, seq.num_tokens, chunk_tokens, hit.num_tokens)
            if group.window is None:
                # Blocks of the hit that others use cost nothing; idle ones must be taken out of the available.
                on_device = [block for block in found if block >= 0 and block != group.pool.null_block]
                need -= len(on_device) - group.pool.count_idle(on_device)
            demand.add(group.pool, need)
        return demand.is_available()

    def unhashed_blocks(self, seq: KVSequence) -> list[list[int]]:
        """Per group, the blocks of ``seq`` that no lookup can find; an empty list where there are none."""
        return [
            [
                block
                for block in seq.tables[group.index].ids
                if block != group.pool.null_block and group.pool.hash_of(block) is None
            ]
            for group in self.groups
        ]

    def announce(self, seq: KVSequence, hit: Hit) -> None:
        """Publish the device blocks of ``hit`` as stored, for a listener that was not there. Changes nothing else."""
        if self.events is None:
            return
        for group, found in zip(self.groups, hit.blocks, strict=True):
            held = [i for i, block in enumerate(found) if block >= 0 and block != group.pool.null_block]
            for event in stored_events(seq, group, held):
                self.events.publish(event)

    # -- whole state ----------------------------------------------------------------------------------------

    def reset(self) -> bool:
        """Forget everything cached and count anew. Refused (False, nothing changed) while any block is in use."""
        pools = self.pools if self.host is None else [*self.pools, self.host.pool]
        if any(pool.num_used_blocks for pool in pools):
            return False
        if self.host is not None:
            self.host.reset()
        for pool in self.pools:
            pool.reset()
        self.index.clear()
        if self.stats is not None:
            self.stats = PrefixStats()
        return True

    def drop_cached(self) -> None:
        """Forget everything cached. Running sequences keep their blocks, which nobody else can find any more."""
        for pool in self.pools:
            pool.forget_all()
        if self.host is not None:
            self.host.pool.forget_all()
            if self.host.disk is not None:
                self.host.disk.delete_all()
        self.index.clear()

    def check(self) -> None:
        """Raise ``IntegrityError`` if counts, tables and hashes contradict each other. At any idle moment; O(pool)."""
        for pool in self.pools:
            members = [group for group in self.groups if group.pool is pool]
            tables = [seq.tables[group.index].ids for seq in self._open for group in members]
            pool.check([*tables, *(self._copies.held(group) for group in members)])
        if self.host is not None:
            self.host.check()
        for seq in self._open:
            if seq.num_computed_tokens > min(seq.num_slots, seq.num_tokens):
                raise IntegrityError("a sequence has computed tokens without slots or text")
        self.index.check()

    # -- inside: memory -------------------------------------------------------------------------------------

    def _demand_of_hit(self, hit: Hit, reach: Sequence[int], computed: int) -> BlockDemand:
        """What ``admit`` takes: idle blocks of the hit, device blocks for those on the host, and new ones."""
        demand = BlockDemand(self.pools)
        for group, found in zip(self.groups, hit.blocks, strict=True):
            on_device = found if self.host is None else [block for block in found if block >= 0]
            demand.add(group.pool, group.pool.count_idle(on_device) + len(found) - len(on_device))
            demand.add(group.pool, group.num_missing_blocks(len(found), reach[group.index], computed))
            if hit.partial is not None:
                demand.add(group.pool, group.pool.count_idle([hit.partial.block]))
        return demand

    def _hold(self, hit: Hit) -> None:
        """Take references on all that was found, in every tier, before anything is allocated."""
        for group, found in zip(self.groups, hit.blocks, strict=True):
            if self.host is None:
                group.pool.touch(found)
            else:
                group.pool.touch([block for block in found if block >= 0])
                self.host.hold([-1 - block for block in found if block < 0])
            if hit.partial is not None:
                group.pool.touch([hit.partial.block])

    def _take_hit(self, seq: KVSequence, group: LayerGroup, found: list[int]) -> int:
        """Put held blocks into the table, those on the host by way of new device blocks; returns these blocks' tokens."""
        on_host = [index for index, block in enumerate(found) if block < 0] if self.host is not None else []
        if self.host is not None and on_host:
            hashes = group.own_hashes(seq.digests)
            blocks = group.pool.allocate(len(on_host))
            group.pool.cache(blocks, [hashes[index] for index in on_host], group.pool_group)
            found = list(found)
            for index, block in zip(on_host, blocks, strict=True):
                self.host.load(-1 - found[index], block, group.index)
                found[index] = block
            if self.events is not None:
                for event in stored_events(seq, group, on_host):
                    self.events.publish(event)
        seq.tables[group.index].extend(found)
        seq.num_cached_blocks[group.index] = len(found)
        return len(on_host) * group.block_size

    def _take_partial_hit(self, seq: KVSequence, partial: PartialHit) -> None:
        [group] = self.groups
        [destination] = group.pool.allocate(1)
        seq.tables[0].extend([destination])
        self._copies.add(BlockCopy(partial.block, destination, 0))

    def _extend(self, seq: KVSequence, reach: Sequence[int]) -> None:
        for group, num_tokens in zip(self.groups, reach, strict=True):
            table = seq.tables[group.index]
            missing = group.num_blocks_for(num_tokens) - len(table)
            if missing <= 0:
                continue
            gap = min(missing, group.num_skipped_blocks(seq.num_computed_tokens) - len(table))
            if gap > 0:
                assert group.pool.null_block is not None
                table.extend([group.pool.null_block] * gap)
                missing -= gap
            table.extend(group.pool.allocate(missing))

    def _free_skipped(self, seq: KVSequence) -> None:
        self._skipped.free(seq)
        self._copies.cancel_unwanted()

    def _offload(self, pool: BlockPool, block: int, digest: bytes, pool_group: int) -> None:
        """Keep on the host what ``pool`` is about to evict."""
        assert self.host is not None
        if self.index.is_partial(block):
            return  # it can't be looked up by hash
        group = next(g for g in self.groups if g.pool is pool and g.pool_group == pool_group)
        self.host.store(block, digest, group.index)
