"""CopyQueue: blocks that must be copied because someone is about to write what another still reads."""

from __future__ import annotations

from collections.abc import Sequence

from .block_pool import BlockPool
from .host_tier import BlockCopy
from .kv_sequence import KVSequence
from .layer_groups import LayerGroup


class CopyQueue:
    """Copies that the engine has not taken yet. Each holds a reference on its source, so that nobody reuses it.

    All queued copies run at once and before anything else is written, so a source may be written right after.
    """

    __slots__ = ("_copies", "_groups")

    def __init__(self, groups: Sequence[LayerGroup]) -> None:
        self._groups = groups
        self._copies: list[BlockCopy] = []

    def __len__(self) -> int:
        return len(self._copies)

    def shared_block(self, seq: KVSequence, group: LayerGroup, num_tokens: int) -> int | None:
        """Logical index of the partly filled block that writing up to ``num_tokens`` would change for someone else."""
        index, offset = divmod(seq.num_computed_tokens, group.block_size)
        ids = seq.tables[group.index].ids
        if not offset or num_tokens <= seq.num_computed_tokens or index >= len(ids):
            return None
        block = ids[index]
        if group.pool.hash_of(block) is not None:
            return index
        readers = group.pool.ref_count(block)
        if readers > 1 and self._copies:
            readers -= sum(copy.source == block and self._pool(copy) is group.pool for copy in self._copies)
        return index if readers > 1 else None

    def replace_block(self, seq: KVSequence, group: LayerGroup, index: int) -> None:
        """Give ``seq`` its own copy of its block ``index``. Takes one block."""
        [destination] = group.pool.allocate(1)
        source = seq.tables[group.index].replace(index, destination)
        # The table's reference on the source becomes the queue's.
        self.add(BlockCopy(source, destination, group.index))

    def add(self, copy: BlockCopy) -> None:
        """Queue a copy whose source the caller has taken a reference on for it."""
        pool = self._pool(copy)
        for pending in self._copies:
            if pending.destination == copy.source and self._pool(pending) is pool:
                # Its source is still to be filled: copy from where that comes from, as all run at once.
                pool.share([pending.source])
                pool.free([copy.source])
                copy = BlockCopy(pending.source, copy.destination, copy.group)
                break
        self._copies.append(copy)

    def take(self) -> list[BlockCopy]:
        """The queued copies; their sources are held no longer."""
        copies, self._copies = self._copies, []
        for copy in copies:
            self._pool(copy).free([copy.source])
        return copies

    def cancel_unwanted(self) -> None:
        """Drop copies into blocks that nobody holds any more, before these are handed out again."""
        if not self._copies:
            return
        kept = []
        for copy in self._copies:
            pool = self._pool(copy)
            if pool.ref_count(copy.destination):
                kept.append(copy)
            else:
                pool.free([copy.source])
        self._copies = kept

    def held(self, group: LayerGroup) -> list[int]:
        """Sources that are held in ``group``, one entry for each reference."""
        return [copy.source for copy in self._copies if copy.group == group.index]

    def _pool(self, copy: BlockCopy) -> BlockPool:
        return self._groups[copy.group].pool
