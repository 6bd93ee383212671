"""PrefixIndex: what the blocks of a memory manager hold - finding it, adding to it, and saying why it is missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from .block_hash import BlockHasher, ExtraKeys
from .errors import IntegrityError
from .explain import HitFacts, explain
from .kv_events import EventLog
from .kv_sequence import KVSequence
from .layer_groups import LayerGroup, longest_common_hit
from .partial_blocks import PartialBlocks, PartialHit
from .prefix_cache import Match
from .prompt_memory import NO_HINTS, BlockHints, KnownText, PromptMemory, memory_text, trusted_tokens
from .stored_events import stored_events

_OTHER_NAMESPACES = 64  # at most so many are searched to tell "salt" from "first difference"


@dataclass(frozen=True, slots=True)
class Hit:
    """What a lookup found: valid until the manager next changes. Holds nothing; ``admit`` takes it.

    ``blocks[g]`` are group g's whole blocks in table order: the null block where a window needs nothing, ``-1 - n``
    for a block that lies in host block n. ``partial`` continues them inside a block.
    """

    num_tokens: int
    blocks: tuple[list[int], ...]
    num_full_tokens: int = 0  # what full attention alone could have served
    partial: PartialHit | None = None

    def in_whole_blocks(self) -> Hit:
        """Without what continues it inside a block."""
        if self.partial is None:
            return self
        tokens = self.num_tokens - self.partial.num_tokens
        return replace(self, num_tokens=tokens, num_full_tokens=tokens, partial=None)


class PrefixIndex:
    """The contents of blocks, by prefix, over the pools of ``groups``. Takes and gives back no block.

    ``token_granular``: find parts of blocks too. ``remember_tokens``: how much computed text is remembered.
    """

    def __init__(
        self,
        groups: Sequence[LayerGroup],
        hasher: BlockHasher,
        *,
        block_size: int,
        alignment: int,
        token_granular: bool,
        remember_tokens: int | None,
        events: EventLog | None,
    ) -> None:
        self.groups = groups
        self.hasher = hasher
        self.block_size = block_size
        self.alignment = alignment
        self.events = events
        self.memory = PromptMemory(block_size, remember_tokens)
        self.partial = PartialBlocks() if token_granular else None
        self._texts_with_images = PromptMemory(block_size, remember_tokens)
        self._full_group = next((group for group in groups if group.window is None), None)
        if self.partial is not None:
            for group in groups:
                group.pool.on_forget = self.partial.discard

    def known(self, packed: bytes, keys: ExtraKeys) -> KnownText:
        """What need not be hashed again of a text, given as native int32 bytes: the hashes of its leading blocks, and
        where these blocks were.
        """
        text = memory_text(np.frombuffer(packed, dtype=np.int32), keys) if keys.images else packed
        known = self.memory.find(text, keys.namespace)
        trusted = trusted_tokens(known.num_tokens, keys) // self.block_size
        if trusted >= len(known.digests):
            return known
        return KnownText(trusted * self.block_size, known.digests[:trusted], known.hints.part(0, trusted))

    def no_hit(self) -> Hit:
        return Hit(0, tuple([] for _ in self.groups))

    def lookup(self, seq: KVSequence) -> Hit:
        """The longest prefix of ``seq``, its last token left out, whose keys and values are there. Changes nothing."""
        limit = seq.num_tokens - 1
        if limit < 1:
            return self.no_hit()
        found = longest_common_hit(
            self.groups, seq.digests, limit, self.alignment, self._hinted_blocks(seq, limit)
        )
        partial = None
        if self.partial is not None and found.num_tokens < limit:
            index = found.num_tokens // self.block_size
            rest = seq.tokens[found.num_tokens : min(limit, found.num_tokens + self.block_size)]
            partial = self.partial.longest(seq.parent_of(index), seq.extra_bytes(index), rest.tobytes())
        tokens = found.num_tokens + (partial.num_tokens if partial else 0)
        full = tokens if partial else found.num_full_tokens
        return Hit(tokens, tuple(found.blocks), full, partial)

    def _hinted_blocks(self, seq: KVSequence, limit: int) -> list[int]:
        """Leading blocks that are where the prompt memory last saw them: their hashes need not be looked up."""
        count = min(len(seq.hints), limit // self.block_size)
        if not count or self._full_group is None:
            return []
        now = np.frombuffer(self._full_group.pool.generations, dtype=np.uint32)
        unchanged = now[seq.hints.blocks[:count]] == seq.hints.generations[:count]
        return seq.hints.ids[: count if unchanged.all() else int(unchanged.argmin())]

    def explain(self, seq: KVSequence, hit: Hit, *, forbidden: bool) -> Match:
        """``hit`` with a reason for every token that it leaves out; ``forbidden``: reuse is not allowed. Changes nothing."""
        text, namespace = memory_text(seq.tokens, seq.keys), seq.keys.namespace
        if forbidden:
            hit = self.lookup(seq)
        remembered = self.memory.equal_tokens(text, namespace)
        elsewhere = 0
        if remembered < len(seq):
            elsewhere = self.memory.equal_tokens_elsewhere(text, namespace, most_namespaces=_OTHER_NAMESPACES)
            elsewhere = max(elsewhere, self._equal_but_for_images(seq))
        granularity = 1 if self.partial is not None else self.alignment
        full_hit = hit.num_full_tokens
        if self._full_group is None:
            # Windows alone: without them the whole remembered text could be reused.
            usable = min(remembered, len(seq) - 1)
            full_hit = usable - usable % granularity
        facts = HitFacts(len(seq), hit.num_tokens, granularity, full_hit, remembered, elsewhere, forbidden)
        return explain(facts)

    def add_blocks(self, seq: KVSequence, group: LayerGroup, start: int, end: int) -> None:
        """Make the sequence's blocks ``start … end - 1`` findable."""
        hashes = group.own_hashes(seq.digests)[start:end]
        blocks = seq.tables[group.index].ids[start:end]
        repeated = {start + i for i in group.pool.cache(blocks, hashes, group.pool_group)}
        if group is self._full_group:
            seq.shadowed_blocks |= repeated
        if self.partial is not None:
            for index, block in enumerate(blocks, start):
                tokens = seq.tokens[index * self.block_size : (index + 1) * self.block_size].tobytes()
                self.partial.add(block, seq.parent_of(index), tokens, seq.extra_bytes(index))
        if self.events is not None:
            null = group.pool.null_block
            new = [i for i, block in enumerate(blocks, start) if block != null and i not in repeated]
            for event in stored_events(seq, group, new):
                self.events.publish(event)

    def add_partial_tail(self, seq: KVSequence) -> None:
        """Keep the partly filled last block findable for token-granular reuse. A sibling that shares it copies it
        before it writes on.
        """
        index, filled = divmod(seq.num_computed_tokens, self.block_size)
        if self.partial is None or not filled:
            return
        pool, block = self.groups[0].pool, seq.tables[0].ids[index]
        if pool.hash_of(block) is not None:
            return
        tokens = seq.tokens[index * self.block_size : seq.num_computed_tokens]
        parent, extra = seq.parent_of(index), seq.extra_bytes(index)
        digest = self.hasher.partial(parent, tokens, extra)
        if pool.lookup(digest) is None:
            pool.cache([block], [digest])
            self.partial.add(block, parent, tokens.tobytes(), extra)

    def remember(self, seq: KVSequence) -> None:
        """Tell the prompt memory what is computed, and where its blocks are."""
        computed = seq.num_computed_tokens
        seq.num_remembered_tokens = computed
        tokens = seq.tokens[:computed]
        full = computed // self.block_size
        hints = self._hints(seq, full)
        self.memory.insert(memory_text(tokens, seq.keys), seq.keys.namespace, seq.digests[:full], hints)
        if seq.keys.images:
            self._texts_with_images.insert(tokens.tobytes(), b"", [], NO_HINTS)

    def is_partial(self, block: int) -> bool:
        """Whether ``block`` is cached as a partly filled block."""
        return self.partial is not None and self.partial.num_tokens(block) < self.block_size

    def clear(self) -> None:
        """Forget all texts. The pools must have forgotten their contents."""
        self.memory.clear()
        self._texts_with_images.clear()

    def check(self) -> None:
        """Raise ``IntegrityError`` if something is offered for partial reuse that a lookup can't find."""
        if self.partial is not None:
            hash_of = self.groups[0].pool.hash_of
            if any(hash_of(block) is None for block in self.partial.blocks()):
                raise IntegrityError("a block is offered for partial reuse that can't be found")

    def _equal_but_for_images(self, seq: KVSequence) -> int:
        """Tokens that are equal to computed text if only the images were the same."""
        return self._texts_with_images.equal_tokens(seq.tokens.tobytes(), b"") if seq.keys.images else 0

    def _hints(self, seq: KVSequence, count: int) -> BlockHints:
        group = self._full_group
        if group is None or group.hashes_per_block > 1:
            return NO_HINTS
        table = seq.tables[group.index]
        ids, blocks = table.ids[:count], table.as_array()[:count].copy()
        for index in seq.shadowed_blocks:
            answering = group.pool.lookup(seq.digests[index], group.pool_group)
            if answering is not None:  # else all was dropped meanwhile, and the generation tells
                ids[index] = blocks[index] = answering
        generations = np.frombuffer(group.pool.generations, dtype=np.uint32)[blocks]
        findable = (generations & 1).astype(bool)
        end = count if findable.all() else int(findable.argmin())
        return BlockHints(ids[:end], blocks[:end], generations[:end])
