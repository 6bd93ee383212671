"""ModelRunner: a step's chunks become one flat batch, the batch becomes logits. Owns the KV memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from agentctx_engine.attention import kv_cache
from agentctx_engine.attention.batch import Batch, Chunk
from agentctx_engine.attention.quantized import KvKind, Packing, UnpackedLayers
from agentctx_engine.attention.slot_copies import read_slots, write_slots
from agentctx_engine.attention.uploads import upload_index
from agentctx_engine.models.config import ModelConfig
from agentctx_engine.runtime.decode_graphs import GraphSettings
from agentctx_engine.runtime.kv_store import BlockCopy, BlockTable
from agentctx_engine.runtime.quantized_steps import use_blocks
from agentctx_engine.runtime.scheduler import ScheduledChunk, Step


class DecoderModel(Protocol):
    """What the runner needs of a model."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype:
        """Of keys and values."""
        ...

    def forward(self, batch: Batch, kv_caches: Sequence[Tensor], *, deterministic: bool = False) -> Tensor:
        """Logits ``[rows, vocab_size]`` of ``batch.logit_rows``; writes the step's keys and values into ``kv_caches``.

        ``deterministic``: a token's logits depend on its sequence's tokens alone, to the last bit.
        """
        ...


def block_bytes(model: DecoderModel, block_size: int, kv_kind: KvKind | None = None) -> int:
    """Bytes of one block in all layers."""
    return model.config.num_layers * layer_block_bytes(model, block_size, kv_kind)


def layer_block_bytes(model: DecoderModel, block_size: int, kv_kind: KvKind | None = None) -> int:
    """Bytes of one block in one layer."""
    packing = packing_of(model, block_size, kv_kind)
    if packing is not None:
        return 2 * packing.row_bytes
    return model.config.kv_values_per_token * block_size * model.dtype.itemsize


def packing_of(model: DecoderModel, block_size: int, kv_kind: KvKind | None) -> Packing | None:
    if kv_kind is None:
        return None
    config = model.config
    return Packing(kv_kind, block_size, config.num_kv_heads, config.head_dim, model.dtype)


def reads_packed(model: object, packing: Packing) -> bool:
    """Whether the model reads and writes quantized memory itself; else its layers are unpacked for it."""
    reads = getattr(model, "reads_packed", None)
    return reads is not None and bool(reads(packing))


class ModelRunner:
    """Runs steps against the KV memory it allocated: one tensor per layer, ``[2, num_blocks, block_size, kv_heads, head_dim]``."""

    def __init__(
        self,
        model: DecoderModel,
        *,
        num_blocks: int | Sequence[int],
        block_size: int,
        deterministic: bool = False,
        kv_kind: KvKind | None = None,
        graphs: GraphSettings | None = None,
    ) -> None:
        """``num_blocks``: of every layer, or of the layers of each layer group. ``kv_kind``: quantize the KV memory, which
        then holds rows of bytes (see ``attention.quantized``). ``graphs``: record decode steps; each layer then has a
        block more. Raises ``MemoryError`` when it can't be had.
        """
        self.model = model
        self.block_size = block_size
        self.deterministic = deterministic
        config = model.config
        self.group_of_layer = config.group_of_layer
        per_group = [num_blocks] * len(config.layer_groups) if isinstance(num_blocks, int) else num_blocks
        self.packing = packing_of(model, block_size, kv_kind)
        self.reads_packed = self.packing is not None and reads_packed(model, self.packing)
        spare = 0 if graphs is None else 1
        self.kv_caches = [self._allocate(per_group[group] + spare) for group in self.group_of_layer]
        self.graphs = (
            None
            if graphs is None
            else graphs.make(model, self.kv_caches, block_size, per_group, self.packing)
        )

    def _allocate(self, num_blocks: int) -> Tensor:
        """One layer's KV memory."""
        if self.packing is not None:
            return self.packing.allocate(num_blocks, self.model.device)
        config = self.model.config
        [cache] = kv_cache.allocate(
            layers=1,
            num_blocks=num_blocks,
            block_size=self.block_size,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=self.model.dtype,
            device=self.model.device,
        )
        return cache

    @property
    def kernels(self) -> str:
        """What the model decodes with; a model that doesn't say runs on torch."""
        return getattr(self.model, "kernels", "torch")

    def close(self) -> None:
        """Let go of the KV memory, and of the steps recorded over it. Nothing can be run any more."""
        self.kv_caches, self.graphs = [], None

    @property
    def caches_by_group(self) -> list[list[Tensor]]:
        """KV memory of each layer group's layers."""
        return [
            [c for c, g in zip(self.kv_caches, self.group_of_layer, strict=True) if g == group]
            for group in range(len(self.model.config.layer_groups))
        ]

    @torch.inference_mode()
    def run(self, step: Step) -> Tensor:
        """Logits ``[rows, vocabulary]``, one row per chunk with ``last``, in the step's order."""
        self.copy_blocks(step.copies)
        if not self.deterministic:
            return self._forward(step.chunks)
        waves = split_into_waves(step, self.block_size)
        if len(waves) == 1:
            return self._forward(step.chunks)
        logits = torch.cat([self._forward(wave) for wave in waves])
        # Back from the waves' order of rows to the step's.
        place = {chunk.sample: row for row, chunk in enumerate(c for wave in waves for c in wave if c.last)}
        rows = [place[chunk.sample] for chunk in step.chunks if chunk.last]
        return logits[upload_index(rows, logits.device)]

    @property
    def can_run_ahead(self) -> bool:
        """Not where writing a token anew changes those before it, nor in tiles."""
        return self.packing is None and not self.deterministic

    @torch.inference_mode()
    def run_ahead(self, chunks: Sequence[ScheduledChunk], tokens: Tensor) -> Tensor:
        """``run`` for chunks of a token each, whose ids ``tokens`` [chunks] the host doesn't know yet."""
        return self._forward(chunks, tokens)

    def _forward(self, chunks: Sequence[ScheduledChunk], tokens: Tensor | None = None) -> Tensor:
        parts = [
            Chunk(
                token_ids=chunk.sample.kv.tokens[chunk.start : chunk.start + chunk.count]
                if tokens is None
                else (0,),
                start=chunk.start,
                block_tables=chunk.block_tables,
                logit_rows=int(chunk.last),
            )
            for chunk in chunks
        ]
        if self.graphs is not None and self.graphs.take(parts):
            return self.graphs.run(parts, tokens)
        caches: Sequence[Tensor] = self.kv_caches
        if self.packing is not None and not self.reads_packed:
            parts, used = use_blocks(parts, self.model.config, self.block_size, self.model.device)
            caches = UnpackedLayers(self.kv_caches, self.packing, [used[g] for g in self.group_of_layer])
        batch = Batch.build(
            parts,
            block_size=self.block_size,
            device=self.model.device,
            packing=self.packing if self.reads_packed else None,
        )
        if tokens is not None:
            batch.token_ids.copy_(tokens)
        return self.model.forward(batch, caches, deterministic=self.deterministic)

    def read_layer(self, layer: int, table: BlockTable, first: int, end: int) -> tuple[Tensor, Tensor]:
        """(keys, values) of positions ``first`` … ``end - 1``, each [tokens, kv_heads, head_dim], on the CPU."""
        cache, blocks = self.kv_caches[layer], np.asarray(table, dtype=np.int64)
        if self.packing is None:
            return read_slots(cache, blocks, first, end)
        held = slice(first // self.block_size, -(-end // self.block_size))
        index = torch.from_numpy(blocks[held]).to(cache.device)
        flat = self.packing.unpack(cache[:, index]).flatten(1, 2).cpu()
        skipped = held.start * self.block_size
        return flat[0, first - skipped : end - skipped], flat[1, first - skipped : end - skipped]

    def write_layer(self, layer: int, table: BlockTable, first: int, keys: Tensor, values: Tensor) -> None:
        """Write keys and values at the positions from ``first`` on, into blocks that hold nothing else of use."""
        cache, blocks = self.kv_caches[layer], np.asarray(table, dtype=np.int64)
        if self.packing is None:
            write_slots(cache, blocks, first, keys, values)
            return
        before, behind = first % self.block_size, -(first + len(keys)) % self.block_size
        full = F.pad(torch.stack([keys, values]), (0, 0, 0, 0, before, behind)).to(cache.device)
        shape = (2, -1, self.block_size, *full.shape[2:])
        start = first // self.block_size
        index = torch.from_numpy(blocks[start : start + full.shape[1] // self.block_size]).to(cache.device)
        cache[:, index] = self.packing.pack(full.view(shape))

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy whole blocks in every layer, or in those of the layer group that a copy names, at once."""
        if not copies:
            return
        everywhere = [(copy[0], copy[1]) for copy in copies if len(copy) == 2]
        kv_cache.copy_blocks(self.kv_caches, everywhere)
        for group in {copy[2] for copy in copies if len(copy) == 3}:
            pairs = [(copy[0], copy[1]) for copy in copies if len(copy) == 3 and copy[2] == group]
            kv_cache.copy_blocks(self.caches_by_group[group], pairs)


def split_into_waves(step: Step, block_size: int) -> list[list[ScheduledChunk]]:
    """A step's chunks so that none reads what one of its own wave writes.

    An ordinary step is one wave even if samples share blocks that it fills, since each layer writes all keys and values
    before it reads any. A deterministic one runs its tokens a tile after the other through all layers: a sample
    admitted onto blocks that this very step fills must come after the sample that fills them.
    """
    wave_of_block: dict[int, int] = {}  # written in this step
    admitted = set(step.admitted)
    waves: list[list[ScheduledChunk]] = []
    for chunk in step.chunks:
        table = chunk.block_tables[0]
        first, end = chunk.start // block_size, -(-(chunk.start + chunk.count) // block_size)
        wave = 0
        if chunk.sample in admitted and wave_of_block:
            wave = max((wave_of_block.get(int(block), -1) + 1 for block in table[:first]), default=0)
        wave_of_block.update((int(block), wave) for block in table[first:end])
        if wave == len(waves):
            waves.append([])
        waves[wave].append(chunk)
    return waves
