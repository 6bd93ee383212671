"""TierCopier: moves blocks between KV memory, host memory and files, while the engine computes.

One thread copies memory, also from block to block on the device, and one works on files, each in the order in which it was
asked, so that nothing is overwritten before it was read; a task waits for earlier ones of the other thread that bring what
it reads, or read what it overwrites. All that a task waits for was asked for before it, so that they can't wait for each
other. A step waits for the blocks that it is about to overwrite to be copied (``wait_until_safe``), never for a file. Samples
wait for their own blocks that are on their way (``is_arriving``); the others compute meanwhile. A block that a preempted or
cancelled sample was waiting for may be given to another text before it has arrived: who writes to it waits (``wait_for``).
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from agentctx_engine.attention.kv_cache import copy_blocks
from agentctx_engine.memory.disk_tier import DiskDelete, DiskRead, DiskWrite
from agentctx_engine.memory.host_tier import BlockCopy, Transfers
from agentctx_engine.runtime.block_directory import BlockDirectory
from agentctx_engine.runtime.errors import SnapshotError
from agentctx_engine.runtime.kv_store import BlockTable, CopiedBytes

_MOST_WAITING_WRITES = 64


class TierCopier:
    """``caches[g]``: KV memory of group g's layers. Host memory is pinned where the KV memory is on a GPU."""

    def __init__(
        self, caches: Sequence[Sequence[Tensor]], host_blocks: int, directory: BlockDirectory | None = None
    ) -> None:
        """Raises ``MemoryError`` when the host memory can't be had."""
        self._caches = caches
        self._directory = directory
        self.bytes = CopiedBytes()
        layers = max(map(len, caches))
        sample = caches[0][0]
        shape = (host_blocks, layers, 2, *sample.shape[2:])
        try:
            self._host = torch.zeros(shape, dtype=sample.dtype, pin_memory=sample.device.type == "cuda")
        except RuntimeError as error:
            raise MemoryError(f"{host_blocks} blocks of host memory can't be had: {error}") from error
        self._memory = ThreadPoolExecutor(1, thread_name_prefix="agentctx-tiers-memory")
        self._files = ThreadPoolExecutor(1, thread_name_prefix="agentctx-tiers-files")
        self._unsafe: list[Future[Any]] = []  # what reads blocks that may be given away meanwhile
        self._writing: deque[Future[None]] = deque()
        self._arriving: dict[tuple[int, int], Future[None]] = {}  # by group and device block
        self._failed: list[DiskRead | BlockCopy] = []

    def start(self, transfers: Transfers) -> None:
        """Begin what the memory manager asks for. Nothing may be written to KV memory before ``wait_until_safe``."""
        changes, offloads = transfers.disk_changes, transfers.offloads
        if changes or offloads:
            sources = [(c.group, c.source) for c in offloads]
            sources += [(c.group, c.source) for c in changes if isinstance(c, DiskWrite) and c.on_device]
            moved = self._memory.submit(self._move_down, changes, offloads, self._earlier(sources))
            self._unsafe.append(moved)
            if changes:
                self._writing.append(self._files.submit(self._change, changes, moved))
        if transfers.loads:
            places = [(c.group, c.destination) for c in transfers.loads]
            arrival = self._memory.submit(self._load, transfers.loads, self._earlier(places))
            self._arriving |= dict.fromkeys(places, arrival)
        for read in transfers.disk_reads:
            place = (read.group, read.destination)
            earlier = self._earlier([place]).union(self._unsafe)
            self._arriving[place] = self._files.submit(self._read, read, earlier)
        if transfers.copies:
            targets = [(c.group, c.destination) for c in transfers.copies]
            earlier = self._earlier([(c.group, c.source) for c in transfers.copies] + targets)
            copied = self._memory.submit(self._copy, transfers.copies, earlier)
            self._unsafe.append(copied)
            self._arriving |= dict.fromkeys(targets, copied)

    def _earlier(self, blocks: Sequence[tuple[int, int]]) -> set[Future[Any]]:
        """What is still on its way into these device blocks."""
        return {self._arriving[block] for block in blocks if block in self._arriving}

    def wait_until_safe(self) -> None:
        """Return when everything that a step may overwrite has been copied. Raises what went wrong."""
        unsafe, self._unsafe = self._unsafe, []
        wait(unsafe)  # for all of them, though one went wrong: nothing may be overwritten while it is read
        for moved in unsafe:
            moved.result()
        while self._writing and (self._writing[0].done() or len(self._writing) > _MOST_WAITING_WRITES):
            self._writing.popleft().result()  # each holds copies of its blocks

    def wait_for(self, group: int, blocks: BlockTable) -> None:
        """Return when nothing is on its way into these device blocks any more."""
        if self._arriving:
            wait(self._earlier([(group, int(block)) for block in blocks]))

    def is_arriving(self, group: int, blocks: Sequence[int]) -> bool:
        """Whether some of these device blocks are still on their way, or a failure says that any block may be wrong."""
        self._forget_arrived()
        if self._failed:
            return True  # until it is known which blocks were made from the file meanwhile: see take_failed
        return any((group, int(block)) in self._arriving for block in blocks)

    @property
    def is_idle(self) -> bool:
        self._forget_arrived()
        return not self._arriving and not self._failed

    def wait_for_arrival(self, news: Future[None] | None = None) -> None:
        """Return when one more block has arrived, none is on its way, or ``news`` is done."""
        if self._arriving:
            others = () if news is None else (news,)
            wait({*self._arriving.values(), *others}, return_when=FIRST_COMPLETED)

    def take_failed(self) -> list[DiskRead | BlockCopy]:
        """What could not be brought into its device block, since the last call: a file, a block of the host or a copy."""
        failed, self._failed = self._failed, []
        return failed

    def close(self) -> None:
        """Finish what was begun and end the threads."""
        self._memory.shutdown()
        self._files.shutdown()

    def let_go(self) -> None:
        """Of all memory, after ``close``."""
        self._arriving.clear()
        self._unsafe.clear()
        self._writing.clear()
        self._caches, self._host = (), self._host[:0].clone()

    def _forget_arrived(self) -> None:
        for block in [block for block, future in self._arriving.items() if future.done()]:
            del self._arriving[block]  # that it failed, if it did, stands in _failed

    # -- on the threads -------------------------------------------------------------------------------------

    @torch.inference_mode()
    def _move_down(
        self,
        changes: Sequence[DiskWrite | DiskDelete],
        offloads: Sequence[BlockCopy],
        earlier: set[Future[Any]],
    ) -> list[Tensor]:
        """Returns the contents of the blocks to write, in order."""
        wait(earlier)
        contents = [self._contents(change) for change in changes if isinstance(change, DiskWrite)]
        for group, caches in enumerate(self._caches):
            source, target = _index(offloads, group)
            if source is None or target is None:
                continue
            for layer, cache in enumerate(caches):
                self._host[target, layer] = cache[:, source.to(cache.device)].transpose(0, 1).cpu()
            self.bytes.to_host += len(source) * self._block_bytes(group)
        return contents

    def _contents(self, write: DiskWrite) -> Tensor:
        caches = self._caches[write.group]
        if write.on_device:
            return torch.stack([cache[:, write.source] for cache in caches]).cpu()
        return self._host[write.source, : len(caches)].clone()

    def _change(self, changes: Sequence[DiskWrite | DiskDelete], moved: Future[list[Tensor]]) -> None:
        assert self._directory is not None
        wait([moved])
        # If moving failed, the step that waits for it says so.
        contents = iter(moved.result() if moved.exception() is None else ())
        for change in changes:
            if isinstance(change, DiskDelete):
                self._directory.delete(change.digest, change.group)
                continue
            content = next(contents, None)
            # A full disk, no memory: the block is lost, which its reading will notice.
            with contextlib.suppress(Exception):
                if content is not None:
                    self._directory.write(change.digest, change.group, content)
                    self.bytes.to_disk += self._block_bytes(change.group)

    @torch.inference_mode()
    def _load(self, loads: Sequence[BlockCopy], earlier: set[Future[Any]]) -> None:
        wait(earlier)
        try:
            for group, caches in enumerate(self._caches):
                source, target = _index(loads, group)
                if source is None or target is None:
                    continue
                for layer, cache in enumerate(caches):
                    blocks = self._host[source, layer].to(cache.device)
                    cache[:, target.to(cache.device)] = blocks.transpose(0, 1)
                self.bytes.from_host += len(source) * self._block_bytes(group)
        except Exception:  # no memory, say: whoever waits for them computes them
            self._failed.extend(loads)

    @torch.inference_mode()
    def _copy(self, copies: Sequence[BlockCopy], earlier: set[Future[Any]]) -> None:
        wait(earlier)
        try:
            for group, caches in enumerate(self._caches):
                copy_blocks(caches, [(c.source, c.destination) for c in copies if c.group == group])
        except Exception:
            self._failed.extend(copies)
            raise  # in the step that waits for it, which may be about to read it

    @torch.inference_mode()
    def _read(self, read: DiskRead, earlier: set[Future[Any]]) -> None:
        assert self._directory is not None
        wait(earlier)
        caches = self._caches[read.group]
        try:
            kv = self._directory.read(read.digest, read.group)
            if kv.shape != (len(caches), 2, *caches[0].shape[2:]) or kv.dtype != caches[0].dtype:
                raise SnapshotError(f"a file holds {kv.dtype} of shape {tuple(kv.shape)}")
            for layer, cache in enumerate(caches):
                cache[:, read.destination] = kv[layer].to(cache.device)
        except Exception:  # which file of whom, says nobody: it counts as failed and is computed anew
            self._failed.append(read)
            return
        self.bytes.from_disk += self._block_bytes(read.group)

    def _block_bytes(self, group: int) -> int:
        cache = self._caches[group][0]
        return len(self._caches[group]) * cache[:, 0].numel() * cache.element_size()


@dataclass(frozen=True, slots=True)
class Tiers:
    """Sizes in blocks, who moves them, and the files (hash, group) that are there already, least recently used first."""

    host_blocks: int
    disk_blocks: int
    copier: TierCopier
    files: list[tuple[bytes, int]]


def _index(copies: Sequence[BlockCopy], group: int) -> tuple[Tensor | None, Tensor | None]:
    """(sources, destinations) of one group's copies."""
    pairs = [(copy.source, copy.destination) for copy in copies if copy.group == group]
    if not pairs:
        return None, None
    index = torch.tensor(pairs)
    return index[:, 0], index[:, 1]
