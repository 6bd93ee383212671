"""Rotary embedding and the KV write in one pass over a step's queries, keys and values."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from agentctx_engine.attention.triton_kernels.kv_view import KvView


@triton.jit
def rotate_rows(
    qkv, turns, slots, numbers, written, row_stride, kv_stride, block_stride,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, PAIRS: tl.constexpr, LANES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    """Program (row, head): query heads are turned in place, key heads turned on their way to their slot, value heads
    only moved. Pairs stand side by side."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    pair = tl.arange(0, LANES)
    inside = pair < PAIRS
    place = qkv + row * row_stride + head * 2 * PAIRS + 2 * pair
    real = tl.load(place, mask=inside, other=0.0)
    imaginary = tl.load(place + 1, mask=inside, other=0.0)
    if head < HEADS + KV_HEADS:
        cosine = tl.load(turns + row * 2 * PAIRS + 2 * pair, mask=inside, other=0.0)
        sine = tl.load(turns + row * 2 * PAIRS + 2 * pair + 1, mask=inside, other=0.0)
        x, y = real.to(tl.float32), imaginary.to(tl.float32)
        real = (x * cosine - y * sine).to(real.dtype)
        imaginary = (x * sine + y * cosine).to(imaginary.dtype)
    if head < HEADS:
        tl.store(place, real, mask=inside)
        tl.store(place + 1, imaginary, mask=inside)
    elif row < written:
        slot = tl.load(slots + row)
        kv_head = head - HEADS
        if kv_head >= KV_HEADS:  # a value
            numbers += kv_stride
            kv_head -= KV_HEADS
        stored = numbers + slot // BLOCK_SIZE * block_stride
        stored += (slot % BLOCK_SIZE * KV_HEADS + kv_head) * 2 * PAIRS + 2 * pair
        inside = pair < tl.where(slot >= 0, PAIRS, 0)
        tl.store(stored, real, mask=inside)
        tl.store(stored + 1, imaginary, mask=inside)


def rotate_and_write(qkv: Tensor, turn: Tensor, kv: KvView, slots: Tensor) -> None:
    """Turn the queries of ``qkv`` [rows, heads + 2 * kv_heads, head_dim] in place by ``turn`` [rows, 1, head_dim // 2]
    complex64, and store turned keys, and values, at ``slots`` [tokens] int64 of memory at full width.

    Rows beyond the slots are padding, of which nothing is stored, nor of a row whose slot is negative.
    """
    rows, heads, head_dim = qkv.shape
    if not rows:
        return
    rotate_rows[(rows, heads)](
        qkv, torch.view_as_real(turn), slots, kv.numbers, len(slots), qkv.stride(0), kv.kv_stride, kv.block_stride,
        HEADS=heads - 2 * kv.kv_heads, KV_HEADS=kv.kv_heads, PAIRS=head_dim // 2,
        LANES=triton.next_power_of_2(head_dim // 2), BLOCK_SIZE=kv.block_size, num_warps=1,
    )  # fmt: skip
