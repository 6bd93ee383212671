"""The loop that decode and prefill share: rows of queries over a run of paged keys, softmax on the fly.

Rows are (token, query head) pairs of one KV head, so that all query heads of a group use a key once it is loaded.
Scores are kept in units of log2, because ``exp2`` is what the hardware has. Sources: FlashAttention-2 (arXiv
2307.08691), PagedAttention (arXiv 2309.06180).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction


@triton.jit
def product(a, b, WIDE: tl.constexpr):
    """Matrix product with a float32 sum; ``WIDE`` widens the factors first, which changes no product of bfloat16s."""
    if WIDE:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def accumulate(
    query, accumulated, top, total,
    position, table, key_numbers, value_numbers, key_scales, value_scales,
    first, end, length, window, factor, block_stride, scale_block_stride,
    TOKEN_STRIDE: tl.constexpr, HEAD_DIM: tl.constexpr, DIMS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    KEYS: tl.constexpr, MASKED: tl.constexpr, QUANTIZED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Keys ``first`` … ``end - 1`` in tiles of ``KEYS`` (``first`` is a multiple of it), of which those below ``length``
    are there. A row at ``position`` sees the ``window`` keys up to its own; without ``MASKED`` all of them.

    query [rows, DIMS]; accumulated [rows, DIMS] = Σ weight·value, top [rows] = highest score, total [rows] = Σ weight,
    with weight = 2^(score - top). The pointers are those of one KV head. Returns (accumulated, top, total).
    """
    dims = tl.arange(0, DIMS)
    for start in range(first, end, KEYS):
        keys = start + tl.arange(0, KEYS)
        if MASKED:
            block = tl.load(table + keys // BLOCK_SIZE, mask=keys < length, other=0).to(tl.int64)
        else:
            block = tl.load(table + keys // BLOCK_SIZE).to(tl.int64)
        place = block * block_stride + (keys % BLOCK_SIZE) * TOKEN_STRIDE
        key_at = key_numbers + place[None, :] + dims[:, None]
        value_at = value_numbers + place[:, None] + dims[None, :]
        if MASKED:
            here = keys < length
            key = tl.load(key_at, mask=here[None, :] & (dims < HEAD_DIM)[:, None], other=0.0)
            value = tl.load(value_at, mask=here[:, None] & (dims < HEAD_DIM)[None, :], other=0.0)
        elif HEAD_DIM < DIMS:
            key = tl.load(key_at, mask=(dims < HEAD_DIM)[:, None], other=0.0)
            value = tl.load(value_at, mask=(dims < HEAD_DIM)[None, :], other=0.0)
        else:
            key = tl.load(key_at)
            value = tl.load(value_at)
        if not WIDE:  # the interpreter can't make bfloat16s of integers either
            key = key.to(query.dtype)
            value = value.to(query.dtype)
        scores = product(query, key, WIDE) * factor
        if QUANTIZED:
            scale_place = block * scale_block_stride
            if MASKED:
                key_scale = tl.load(key_scales + scale_place, mask=here, other=0.0)
                value_scale = tl.load(value_scales + scale_place, mask=here, other=0.0)
            else:
                key_scale = tl.load(key_scales + scale_place)
                value_scale = tl.load(value_scales + scale_place)
            scores *= key_scale[None, :]
        if MASKED:
            seen = (keys[None, :] <= position[:, None]) & (keys[None, :] > position[:, None] - window)
            scores = tl.where(seen & (keys < length)[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        shift = higher
        if MASKED:  # a row that has seen nothing yet
            shift = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - shift[:, None])
        shrink = tl.exp2(top - shift)
        total = total * shrink + tl.sum(weights, 1)
        if QUANTIZED:
            weights *= value_scale[None, :]
        accumulated = accumulated * shrink[:, None] + product(weights.to(query.dtype), value, WIDE)
        top = higher
    return accumulated, top, total


INTERPRETED = not isinstance(accumulate, JITFunction)
"""Whether kernels run on the CPU, in Triton's interpreter."""


def wide(dtype: torch.dtype) -> bool:
    """Whether factors of ``dtype`` must be widened: the interpreter multiplies bfloat16s as if they were integers."""
    return INTERPRETED and dtype == torch.bfloat16
