"""KV memory: one tensor per layer, and the copies that copy-on-write needs.

``[2, num_blocks, block_size, kv_heads, head_dim]``: keys at index 0, values at index 1. A *slot* is
``block id * block_size + offset``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from agentctx_engine.attention.uploads import upload_index


def allocate(
    *,
    layers: int,
    num_blocks: int,
    block_size: int,
    kv_heads: int,
    head_dim: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> list[Tensor]:
    """Zeroed KV memory for ``layers`` layers of one group. Raises ``MemoryError`` when it doesn't fit."""
    shape = (2, num_blocks, block_size, kv_heads, head_dim)
    try:
        return [torch.zeros(shape, dtype=dtype, device=device) for _ in range(layers)]
    except RuntimeError as error:  # torch.OutOfMemoryError on a GPU, a plain RuntimeError on the CPU
        size = layers * 2 * num_blocks * block_size * kv_heads * head_dim * dtype.itemsize
        raise MemoryError(
            f"{size:,} bytes of KV memory ({num_blocks} blocks) can't be had: {error}"
        ) from error


def write(cache: Tensor, slots: Tensor, keys: Tensor, values: Tensor) -> None:
    """Store keys and values, each [tokens, kv_heads, head_dim], at ``slots`` [tokens] of one layer."""
    flat = cache.flatten(1, 2)  # [2, slots, kv_heads, head_dim], a view
    flat[0].index_copy_(0, slots, keys)
    flat[1].index_copy_(0, slots, values)


def copy_blocks(caches: Sequence[Tensor], pairs: Sequence[tuple[int, int]]) -> None:
    """Copy whole blocks, ``(source, target)`` ids, in every given layer: the write part of copy-on-write."""
    if not pairs:
        return
    source = upload_index([s for s, _ in pairs], caches[0].device)
    target = upload_index([t for _, t in pairs], caches[0].device)
    for cache in caches:
        cache[:, target] = cache[:, source]
