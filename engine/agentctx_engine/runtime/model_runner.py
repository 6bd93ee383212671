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
from agentctx_engine.runtime.scheduler import Step


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

    def forward(self, batch: Batch, kv_caches: list[Tensor]) -> Tensor:
        """Logits ``[rows, vocab_size]`` of ``batch.logit_rows``; writes the step's keys and values into ``kv_caches``."""
        ...


def block_bytes(model: DecoderModel, block_size: int) -> int:
    """Bytes of one block in all layers."""
    config = model.config
    return config.num_layers * config.kv_values_per_token * block_size * model.dtype.itemsize


class ModelRunner:
    """Runs steps against the KV memory it allocated: one tensor per layer, ``[2, num_blocks, block_size, kv_heads, head_dim]``."""

    def __init__(self, model: DecoderModel, *, num_blocks: int, block_size: int) -> None:
        """Raises ``MemoryError`` when the KV memory can't be had."""
        self.model = model
        self.block_size = block_size
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

    @torch.inference_mode()
    def run(self, step: Step) -> Tensor:
        """Logits ``[rows, vocabulary]``, one row per chunk with ``last``, in the step's order."""
        self.copy_blocks(step.copies)
        batch = Batch.build(
            [
                Chunk(
                    token_ids=chunk.sample.kv.tokens[chunk.start : chunk.start + chunk.count],
                    start=chunk.start,
                    block_tables=chunk.block_tables,
                    logit_rows=int(chunk.last),
                )
                for chunk in step.chunks
            ],
            block_size=self.block_size,
            device=self.model.device,
        )
        return self.model.forward(batch, self.kv_caches)

    def copy_blocks(self, copies: Sequence[BlockCopy]) -> None:
        """Copy whole blocks in every layer, at once."""
        if copies:
            kv_cache.copy_blocks(self.kv_caches, copies)
