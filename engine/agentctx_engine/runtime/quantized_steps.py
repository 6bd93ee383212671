"""Steps on quantized KV memory: which blocks a step unpacks, and its block tables in terms of the unpacked ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from agentctx_engine.attention.batch import Chunk
from agentctx_engine.attention.quantized import UsedBlocks
from agentctx_engine.models.config import ModelConfig

Table = npt.NDArray[np.int64]


def use_blocks(
    chunks: Sequence[Chunk], config: ModelConfig, block_size: int, device: torch.device
) -> tuple[list[Chunk], list[UsedBlocks]]:
    """(the chunks with tables of scratch blocks, per layer group what stands for what)."""
    tables: list[list[Table]] = []
    used: list[UsedBlocks] = []
    for number, group in enumerate(config.layer_groups):
        remapped, blocks = _of_group(chunks, number, group.window, block_size, device)
        tables.append(remapped)
        used.append(blocks)
    return [
        Chunk(chunk.token_ids, chunk.start, tuple(group[i] for group in tables), chunk.logit_rows)
        for i, chunk in enumerate(chunks)
    ], used


def _of_group(
    chunks: Sequence[Chunk], group: int, window: int | None, block_size: int, device: torch.device
) -> tuple[list[Table], UsedBlocks]:
    seen: list[slice] = []
    for chunk in chunks:
        first = 0 if window is None else max(0, chunk.start - window + 1)
        seen.append(slice(first // block_size, -(-chunk.context_len // block_size)))
    held = [np.asarray(chunk.block_tables[group], dtype=np.int64) for chunk in chunks]
    blocks = np.unique(np.concatenate([table[part] for table, part in zip(held, seen, strict=True)]))
    remapped: list[Table] = []
    written: list[int] = []
    valid: list[int] = []
    for chunk, table, part in zip(chunks, held, seen, strict=True):
        entries = np.zeros(part.stop, dtype=np.int64)
        entries[part] = np.searchsorted(blocks, table[part])
        remapped.append(entries)
        for index in range(chunk.start // block_size, part.stop):
            written.append(int(entries[index]))
            valid.append(min(block_size, chunk.context_len - index * block_size))
    return remapped, UsedBlocks(
        torch.from_numpy(blocks).to(device),
        torch.tensor(written, device=device),
        torch.tensor(valid, device=device),
    )
