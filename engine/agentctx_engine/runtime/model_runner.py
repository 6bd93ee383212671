"""ModelRunner: a step's chunks become one flat batch, the batch becomes logits. Owns the KV memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from agentctx_engine.attention import kv_cache
from agentctx_engine.attention.batch import Batch, Chunk
from agentctx_engine.models.config import ModelConfig
from agentctx_engine.runtime.kv_store import BlockCopy
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


def block_bytes(model: DecoderModel, block_size: int) -> int:
    """Bytes of one block in all layers."""
    return model.config.num_layers * layer_block_bytes(model, block_size)


def layer_block_bytes(model: DecoderModel, block_size: int) -> int:
    """Bytes of one block in one layer."""
    return model.config.kv_values_per_token * block_size * model.dtype.itemsize


class ModelRunner:
    """Runs steps against the KV memory it allocated: one tensor per layer, ``[2, num_blocks, block_size, kv_heads, head_dim]``."""

    def __init__(
        self,
        model: DecoderModel,
        *,
        num_blocks: int | Sequence[int],
        block_size: int,
        deterministic: bool = False,
    ) -> None:
        """``num_blocks``: of every layer, or of the layers of each layer group. Raises ``MemoryError`` when the KV memory
        can't be had.
        """
        self.model = model
        self.block_size = block_size
        self.deterministic = deterministic
        config = model.config
        self.group_of_layer = [
            next(g for g, group in enumerate(config.layer_groups) if layer in group.layers)
            for layer in range(config.num_layers)
        ]
        per_group = [num_blocks] * len(config.layer_groups) if isinstance(num_blocks, int) else num_blocks
        self.kv_caches = [
            cache
            for group in self.group_of_layer
            for cache in kv_cache.allocate(
                layers=1,
                num_blocks=per_group[group],
                block_size=block_size,
                kv_heads=config.num_kv_heads,
                head_dim=config.head_dim,
                dtype=model.dtype,
                device=model.device,
            )
        ]

    @property
    def kernels(self) -> str:
        """What the model decodes with; a model that doesn't say runs on torch."""
        return getattr(self.model, "kernels", "torch")

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
        return logits[torch.tensor(rows, dtype=torch.long, device=logits.device)]

    def _forward(self, chunks: Sequence[ScheduledChunk]) -> Tensor:
        batch = Batch.build(
            [
                Chunk(
                    token_ids=chunk.sample.kv.tokens[chunk.start : chunk.start + chunk.count],
                    start=chunk.start,
                    block_tables=chunk.block_tables,
                    logit_rows=int(chunk.last),
                )
                for chunk in chunks
            ],
            block_size=self.block_size,
            device=self.model.device,
        )
        return self.model.forward(batch, self.kv_caches, deterministic=self.deterministic)

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
