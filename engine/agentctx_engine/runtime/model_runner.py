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
    config = model.config
    return config.num_layers * config.kv_values_per_token * block_size * model.dtype.itemsize


class ModelRunner:
    """Runs steps against the KV memory it allocated: one tensor per layer, ``[2, num_blocks, block_size, kv_heads, head_dim]``."""

    def __init__(
        self, model: DecoderModel, *, num_blocks: int, block_size: int, deterministic: bool = False
    ) -> None:
        """Raises ``MemoryError`` when the KV memory can't be had."""
        self.model = model
        self.block_size = block_size
        self.deterministic = deterministic
        config = model.config
        self.kv_caches = kv_cache.allocate(
            layers=config.num_layers,
            num_blocks=num_blocks,
            block_size=block_size,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            dtype=model.dtype,
            device=model.device,
        )

    @property
    def kernels(self) -> str:
        """What the model decodes with; a model that doesn't say runs on torch."""
        return getattr(self.model, "kernels", "torch")

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
        """Copy whole blocks in every layer, at once."""
        if copies:
            kv_cache.copy_blocks(self.kv_caches, copies)


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
