"""Whole blocks from one place to another: for copy-on-write within a memory, and for moves between two of them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LANES = 1024  # bytes or words that one program moves


@triton.jit
def copy_rows(
    source, target, pairs, size, source_kv_stride, source_block_stride, target_kv_stride, target_block_stride,
    LANES: tl.constexpr,
):  # fmt: skip
    """Program (pair, stretch of a block, keys or values)."""
    pair, which = pairs + tl.program_id(0) * 2, tl.program_id(2).to(tl.int64)
    lane = tl.program_id(1) * LANES + tl.arange(0, LANES)
    read, written = tl.load(pair).to(tl.int64), tl.load(pair + 1).to(tl.int64)
    numbers = tl.load(
        source + which * source_kv_stride + read * source_block_stride + lane, mask=lane < size, other=0
    )
    tl.store(
        target + which * target_kv_stride + written * target_block_stride + lane, numbers, mask=lane < size
    )


def copy_blocks(source: Tensor, target: Tensor, pairs: Tensor) -> None:
    """Copy block ``pairs[i, 0]`` of ``source`` to block ``pairs[i, 1]`` of ``target``, which may be the same memory.

    source, target: [2, num_blocks, …] of one dtype and equal shape beyond the blocks, each block contiguous: memory at
        full width or quantized rows.
    pairs: [pairs, 2] int32. All are copied at once, so no block may be written twice, nor written and read.
    """
    if not len(pairs):
        return
    if source.shape[2:] != target.shape[2:] or source.dtype != target.dtype:
        raise ValueError(
            f"blocks of {tuple(source.shape[2:])} {source.dtype} don't fit {tuple(target.shape[2:])} {target.dtype}"
        )
    # Bits are moved, whatever they mean: in the widest integer that divides a block.
    read, written = (_as_words(memory) for memory in (source, target))
    size = read.shape[2]
    copy_rows[(len(pairs), triton.cdiv(size, LANES), 2)](
        read, written, pairs, size, read.stride(0), read.stride(1), written.stride(0), written.stride(1),
        LANES=LANES, num_warps=4,
    )  # fmt: skip


def _as_words(memory: Tensor) -> Tensor:
    """[2, num_blocks, …] → [2, num_blocks, words] of the same memory."""
    rows = memory.view(*memory.shape[:2], -1)
    size = rows.shape[2] * rows.element_size()
    for dtype in (torch.int64, torch.int32, torch.int16):
        if size % dtype.itemsize == 0:
            return rows.view(dtype)
    return rows.view(torch.int8)
