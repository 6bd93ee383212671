"""Decode attention: one token of each sequence, its context split among programs, the parts joined by a second kernel.

A small batch with long contexts has too few (sequence, KV head) pairs to fill a GPU, so each pair's keys are cut into
``splits`` runs. The number of splits is part of the grid and lengths are read on the device, so one launch serves any
lengths: CUDA graphs can hold it. Source: Flash-Decoding (Dao, Haziza, Massa, Sizov, 2023).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from agentctx_engine.attention.triton_kernels.kv_view import KvView
from agentctx_engine.attention.triton_kernels.online_softmax import accumulate, wide

NO_WINDOW = 2**31 - 1
MIN_ROWS = 16  # of a matrix product on tensor cores
SHORTEST_SPLIT = 256  # keys: below this, joining costs more than it spreads
PROGRAMS_PER_PROCESSOR = 4


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """How the split kernel is compiled."""

    keys: int  # of one tile
    warps: int
    stages: int

    @classmethod
    def default(cls, head_dim: int, dtype: torch.dtype) -> DecodeShape:
        wide_rows = head_dim * dtype.itemsize > 256
        return cls(keys=32 if wide_rows else 64, warps=4, stages=2 if wide_rows else 3)


@triton.jit
def decode_split(
    queries, numbers, scales, tables, lengths, rows, sums, tops, totals,
    factor, window, query_stride, table_stride, kv_stride, block_stride, scale_kv_stride, scale_block_stride,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_ROWS: tl.constexpr, HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr, BLOCK_SIZE: tl.constexpr, KEYS: tl.constexpr, SPLITS: tl.constexpr,
    QUANTIZED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Program (sequence, KV head, split) → the split's part of each query head of the group."""
    sequence, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    length = tl.load(lengths + sequence)
    row = tl.load(rows + sequence).to(tl.int64)
    member, dims = tl.arange(0, GROUP_ROWS), tl.arange(0, DIMS)
    head = kv_head * GROUP + member
    inside = (member < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    query = tl.load(
        queries + row * query_stride + head[:, None] * HEAD_DIM + dims[None, :], mask=inside, other=0.0
    )
    aligned = tl.maximum(length - window, 0) // KEYS * KEYS
    share = tl.cdiv(tl.cdiv(length - aligned, SPLITS), KEYS) * KEYS
    first = aligned + split * share
    key_numbers = numbers + kv_head * HEAD_DIM
    key_scales = scales + kv_head
    accumulated, top, total = accumulate(
        query,
        tl.zeros([GROUP_ROWS, DIMS], tl.float32),
        tl.full([GROUP_ROWS], float("-inf"), tl.float32),
        tl.zeros([GROUP_ROWS], tl.float32),
        tl.zeros([GROUP_ROWS], tl.int32) + length - 1,
        tables + sequence * table_stride, key_numbers, key_numbers + kv_stride, key_scales,
        key_scales + scale_kv_stride, first, tl.minimum(first + share, length), length, window, factor, block_stride,
        scale_block_stride, KV_HEADS * HEAD_DIM, HEAD_DIM, DIMS, BLOCK_SIZE, KEYS, True, QUANTIZED, WIDE,
    )  # fmt: skip
    part = (sequence * KV_HEADS * GROUP + head) * SPLITS + split
    tl.store(sums + part[:, None] * HEAD_DIM + dims[None, :], accumulated, mask=inside)
    tl.store(tops + part, top, mask=member < GROUP)
    tl.store(totals + part, total, mask=member < GROUP)


@triton.jit
def decode_join(
    sums, tops, totals, rows, out, out_stride,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIMS: tl.constexpr, SPLITS: tl.constexpr,
    SPLIT_ROWS: tl.constexpr,
):  # fmt: skip
    """Program (sequence, head): the parts, each at its own scale, become one row of ``out``; 0 for no keys at all."""
    sequence, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    splits, dims = tl.arange(0, SPLIT_ROWS), tl.arange(0, DIMS)
    part = (sequence * HEADS + head) * SPLITS + splits
    top = tl.load(tops + part, mask=splits < SPLITS, other=float("-inf"))
    total = tl.load(totals + part, mask=splits < SPLITS, other=0.0)
    inside = (splits < SPLITS)[:, None] & (dims < HEAD_DIM)[None, :]
    accumulated = tl.load(sums + part[:, None] * HEAD_DIM + dims[None, :], mask=inside, other=0.0)
    highest = tl.max(top, 0)
    weight = tl.exp2(top - tl.where(highest == float("-inf"), 0.0, highest))
    whole = tl.sum(total * weight, 0)
    result = tl.sum(accumulated * weight[:, None], 0) / tl.where(whole == 0.0, 1.0, whole)
    row = tl.load(rows + sequence).to(tl.int64)
    tl.store(
        out + row * out_stride + head * HEAD_DIM + dims, result.to(out.dtype.element_ty), mask=dims < HEAD_DIM
    )


def splits_for(sequences: int, kv_heads: int, longest: int, processors: int) -> int:
    """Runs that a context is cut into: enough programs for all processors, no run shorter than ``SHORTEST_SPLIT``
    at the longest context; a power of two, at most 64."""
    wanted = -(-PROGRAMS_PER_PROCESSOR * processors // max(1, sequences * kv_heads))
    allowed = max(1, longest // SHORTEST_SPLIT)
    return min(64, 1 << (min(wanted, allowed).bit_length() - 1))


def decode_attention(
    queries: Tensor,
    kv: KvView,
    out: Tensor,
    *,
    rows: Tensor,
    tables: Tensor,
    lengths: Tensor,
    window: int | None,
    scale: float,
    splits: int,
    shape: DecodeShape | None = None,
) -> None:
    """Attention of one token of each sequence over its last ``window`` keys (all, for ``None``), itself included.

    queries: [batch rows, heads, head_dim], heads contiguous; out: [batch rows, heads * head_dim].
    rows, lengths: [sequences] int32, the token's row of both, and the keys of the sequence, which lie in
        ``tables`` [sequences, blocks] int32. A sequence of length 0 gives 0.
    Rows that aren't in ``rows`` are left as they are.
    """
    sequences, heads = len(rows), queries.shape[1]
    if not sequences:
        return
    group, dims = heads // kv.kv_heads, triton.next_power_of_2(kv.head_dim)
    shape = shape or DecodeShape.default(kv.head_dim, queries.dtype)
    sums = torch.empty((sequences, heads, splits, kv.head_dim), dtype=torch.float32, device=queries.device)
    tops, totals = torch.empty((2, sequences, heads, splits), dtype=torch.float32, device=queries.device)
    decode_split[(sequences, kv.kv_heads, splits)](
        queries, kv.numbers, kv.numbers if kv.scales is None else kv.scales, tables, lengths, rows, sums, tops, totals,
        scale * 1.4426950408889634, NO_WINDOW if window is None else window, queries.stride(0), tables.stride(0),
        kv.kv_stride, kv.block_stride, *kv.scale_strides,
        KV_HEADS=kv.kv_heads, GROUP=group, GROUP_ROWS=max(MIN_ROWS, triton.next_power_of_2(group)),
        HEAD_DIM=kv.head_dim, DIMS=dims, BLOCK_SIZE=kv.block_size, KEYS=shape.keys, SPLITS=splits,
        QUANTIZED=kv.scales is not None, WIDE=wide(queries.dtype), num_warps=shape.warps, num_stages=shape.stages,
    )  # fmt: skip
    decode_join[(sequences, heads)](
        sums, tops, totals, rows, out, out.stride(0), HEADS=heads, HEAD_DIM=kv.head_dim, DIMS=dims,
        SPLITS=splits, SPLIT_ROWS=triton.next_power_of_2(splits), num_warps=4,
    )  # fmt: skip
