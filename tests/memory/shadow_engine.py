"""An engine without tensors: each slot holds the *prefix* whose keys and values it would hold, so a wrong reuse shows."""

from __future__ import annotations

from agentctx_engine.memory import Hit, KVManager, KVSequence
from agentctx_engine.memory.disk_tier import DiskDelete

Key = tuple[object, ...]


class ShadowEngine:
    """Drives a KVManager as an engine does, and checks what every sequence would read.

    ``device[g][block][offset]`` is the text up to that token, adapter and images included; the salt too, since nothing may
    be shared across salts.
    """

    def __init__(self, kv: KVManager) -> None:
        self.kv = kv
        groups = range(len(kv.groups))
        self.device: list[dict[int, dict[int, Key]]] = [{} for _ in groups]
        self.host: list[dict[int, dict[int, Key]]] = [{} for _ in groups]
        self.files: dict[tuple[bytes, int], dict[int, Key]] = {}
        self.running: list[KVSequence] = []
        self.by_digest: dict[bytes, Key] = {}

    def key(self, seq: KVSequence, position: int) -> Key:
        """What the keys and values at ``position`` depend on."""
        images = tuple(
            (image.content_hash, image.start)
            for image in seq.keys.images
            if image.start <= position and image.length
        )
        adapter = seq.keys.adapter
        return (
            seq.keys.cache_salt,
            adapter and (adapter.name, adapter.path),
            images,
            *seq.tokens[: position + 1].tolist(),
        )

    def admit(self, seq: KVSequence, hit: Hit, num_tokens: int) -> bool:
        if not self.kv.admit(seq, num_tokens, hit):
            return False
        self.running.append(seq)
        assert seq.num_computed_tokens == hit.num_tokens
        return True

    def fork(self, seq: KVSequence) -> KVSequence:
        child = self.kv.fork(seq)
        self.running.append(child)
        return child

    def stop(self, seq: KVSequence, *, preempt: bool = False) -> None:
        self.running = [other for other in self.running if other is not seq]
        (self.kv.preempt if preempt else self.kv.free)(seq)

    def step(self, work: list[tuple[KVSequence, int]], *, commit_first: bool) -> None:
        """Compute each sequence's positions up to a bound, for which there is room. ``work`` runs as one batch."""
        starts = [seq.num_computed_tokens for seq, _ in work]
        if commit_first:
            for seq, end in work:
                self.kv.commit(seq, end)
        self._transfer()
        for (seq, end), start in zip(work, starts, strict=True):
            self._write(seq, start, end)
        for (seq, end), start in zip(work, starts, strict=True):
            self._read(seq, start, end)
        if not commit_first:
            for seq, end in work:
                self.kv.commit(seq, end)
        for seq, _ in work:
            for index, digest in enumerate(seq.digests):
                self.by_digest[digest] = self.key(seq, (index + 1) * self.kv.block_size - 1)

    def check(self) -> None:
        """What is computed is still there, and what can be found is what its hash says. Ends with the integrity check."""
        self._transfer()
        for seq in self.running:
            self._read(seq, seq.num_computed_tokens, seq.num_computed_tokens)
        for group in self.kv.groups:
            for digest, key in self.by_digest.items():
                block = group.find(digest)
                if block is None:
                    continue
                contents = (
                    self.device[group.index][block]
                    if block >= 0
                    else self._below(-1 - block, digest, group.index)
                )
                assert contents[group.block_size - 1] == key, (
                    "a block holds something else than its hash says"
                )
        self.kv.check()

    def _below(self, block: int, digest: bytes, group: int) -> dict[int, Key]:
        """What stands in a lower tier, host blocks coming first in its numbers."""
        assert self.kv.host is not None
        if block < self.kv.host.pool.num_blocks:
            return self.host[group][block]
        return self.files[digest, group]

    def _transfer(self) -> None:
        transfers = self.kv.take_transfers()
        for change in transfers.disk_changes:
            if isinstance(change, DiskDelete):
                del self.files[change.digest, change.group]
                continue
            held = self.device if change.on_device else self.host
            assert (change.digest, change.group) not in self.files, "a file is written twice"
            self.files[change.digest, change.group] = dict(held[change.group][change.source])
        for copy in transfers.offloads:
            self.host[copy.group][copy.destination] = dict(self.device[copy.group][copy.source])
        for copy in transfers.loads:
            self.device[copy.group][copy.destination] = dict(self.host[copy.group][copy.source])
        for load in transfers.disk_reads:
            self.device[load.group][load.destination] = dict(self.files[load.digest, load.group])
        if self.kv.host is not None and self.kv.host.disk is not None:
            pool = self.kv.host.disk.pool
            assert len(self.files) == pool.num_findable_hashes <= pool.num_usable_blocks
        # All at once: no destination may be another copy's source.
        read = [dict(self.device[copy.group].get(copy.source, {})) for copy in transfers.copies]
        for copy, contents in zip(transfers.copies, read, strict=True):
            self.device[copy.group][copy.destination] = contents
        destinations = {(copy.group, copy.destination) for copy in transfers.copies}
        assert not destinations & {(copy.group, copy.source) for copy in transfers.copies}

    def _write(self, seq: KVSequence, start: int, end: int) -> None:
        for group in self.kv.groups:
            slots = seq.slot_mapping(start, end, group.index).tolist()
            for position, slot in zip(range(start, end), slots, strict=True):
                block, offset = divmod(slot, group.block_size)
                assert block != group.pool.null_block, "a token would be written into the null block"
                self.device[group.index].setdefault(block, {})[offset] = self.key(seq, position)

    def _read(self, seq: KVSequence, first_query: int, end: int) -> None:
        """A query at ``first_query`` and later ones read what each group lets them see of the positions before ``end``."""
        for group in self.kv.groups:
            oldest = 0 if group.window is None else max(0, first_query - group.window + 1)
            for position in range(oldest, end):
                block, offset = divmod(seq.tables[group.index].slot(position), group.block_size)
                held = self.device[group.index].get(block, {}).get(offset)
                assert held == self.key(seq, position), f"position {position} would read {held}"
