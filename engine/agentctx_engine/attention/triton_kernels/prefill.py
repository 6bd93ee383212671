"""Prefill attention: chunks of any lengths in one launch, each token over its sequence's keys up to its own.

A tile is some neighbouring tokens of one chunk, times the query heads of one KV head. Its keys are those cached before
the chunk and those of the chunk itself, which are in their slots already; only tiles of keys that the diagonal or the
window's edge crosses are masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from agentctx_engine.attention.triton_kernels.decode import NO_WINDOW
from agentctx_engine.attention.triton_kernels.kv_view import KvView
from agentctx_engine.attention.triton_kernels.online_softmax import accumulate, wide


@dataclass(frozen=True, slots=True)
class PrefillShape:
    """How the kernel is compiled."""

    rows: int  # (token, query head) pairs of one tile, a power of two from 16
    keys: int  # of one tile
    warps: int
    stages: int

    @classmethod
    def default(cls, head_dim: int, dtype: torch.dtype) -> PrefillShape:
        if (
            dtype.itemsize > 2
        ):  # no tensor cores at full precision: small tiles, or the sums don't fit registers
            return cls(rows=32, keys=32, warps=4, stages=1)
        if head_dim > 128:
            return cls(rows=128, keys=32, warps=8, stages=2)
        return cls(rows=128, keys=64, warps=8, stages=3)

    def tokens(self, group: int) -> int:
        """Of one tile, when ``group`` query heads share a KV head."""
        if group > self.rows:
            raise ValueError(f"{group} query heads on one KV head don't fit a tile of {self.rows} rows")
        return self.rows // group


@triton.jit
def prefill_tiles(
    queries, numbers, scales, tables, tiles, out,
    factor, window, query_stride, out_stride, table_stride, kv_stride, block_stride, scale_kv_stride,
    scale_block_stride,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr, BLOCK_SIZE: tl.constexpr, KEYS: tl.constexpr, WINDOWED: tl.constexpr,
    QUANTIZED: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """Program (tile, KV head)."""
    tile, kv_head = tiles + tl.program_id(0) * 4, tl.program_id(1)
    sequence = tl.load(tile).to(tl.int64)
    first_row = tl.load(tile + 1)
    tokens = tl.load(tile + 2)
    first_position = tl.load(tile + 3)
    pair, dims = tl.arange(0, ROWS), tl.arange(0, DIMS)
    token, head = pair // GROUP, kv_head * GROUP + pair % GROUP
    row = (first_row + token).to(tl.int64)
    position = first_position + token
    inside = (token < tokens)[:, None] & (dims < HEAD_DIM)[None, :]
    query = tl.load(
        queries + row[:, None] * query_stride + head[:, None] * HEAD_DIM + dims[None, :],
        mask=inside,
        other=0.0,
    )
    accumulated = tl.zeros([ROWS, DIMS], tl.float32)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    length = first_position + tokens
    table = tables + sequence * table_stride
    key_numbers = numbers + kv_head * HEAD_DIM
    value_numbers = key_numbers + kv_stride
    key_scales = scales + kv_head
    value_scales = key_scales + scale_kv_stride
    # Tiles of keys that every row sees whole: from ``whole`` on, up to ``diagonal``.
    diagonal = (first_position + 1) // KEYS * KEYS
    whole = 0
    if WINDOWED:
        first = tl.maximum(first_position - window + 1, 0) // KEYS * KEYS
        whole = tl.minimum(tl.cdiv(tl.maximum(length - window, 0), KEYS) * KEYS, diagonal)
        accumulated, top, total = accumulate(
            query, accumulated, top, total, position, table, key_numbers, value_numbers, key_scales, value_scales,
            first, whole, length, window, factor, block_stride, scale_block_stride,
            KV_HEADS * HEAD_DIM, HEAD_DIM, DIMS, BLOCK_SIZE, KEYS, True, QUANTIZED, WIDE,
        )  # fmt: skip
    accumulated, top, total = accumulate(
        query, accumulated, top, total, position, table, key_numbers, value_numbers, key_scales, value_scales,
        whole, diagonal, length, window, factor, block_stride, scale_block_stride,
        KV_HEADS * HEAD_DIM, HEAD_DIM, DIMS, BLOCK_SIZE, KEYS, False, QUANTIZED, WIDE,
    )  # fmt: skip
    accumulated, top, total = accumulate(
        query, accumulated, top, total, position, table, key_numbers, value_numbers, key_scales, value_scales,
        diagonal, length, length, window, factor, block_stride, scale_block_stride,
        KV_HEADS * HEAD_DIM, HEAD_DIM, DIMS, BLOCK_SIZE, KEYS, True, QUANTIZED, WIDE,
    )  # fmt: skip
    result = accumulated / tl.where(total == 0.0, 1.0, total)[:, None]
    tl.store(
        out + row[:, None] * out_stride + head[:, None] * HEAD_DIM + dims[None, :],
        result.to(out.dtype.element_ty),
        mask=inside,
    )


def cut_into_tiles(
    chunks: Sequence[tuple[int, int, int, int]], tokens: int
) -> list[tuple[int, int, int, int]]:
    """Chunks, each (sequence, first row, tokens, first position), in pieces of ``tokens`` at most, in the same terms.

    Those with most keys come first, so that the last ones to end are short.
    """
    tiles = [
        (sequence, row + done, min(tokens, count - done), position + done)
        for sequence, row, count, position in chunks
        for done in range(0, count, tokens)
    ]
    return sorted(tiles, key=lambda tile: -(tile[2] + tile[3]))


def prefill_attention(
    queries: Tensor,
    kv: KvView,
    out: Tensor,
    *,
    tiles: Tensor,
    tables: Tensor,
    window: int | None,
    scale: float,
    shape: PrefillShape,
) -> None:
    """Causal attention of the tiles' tokens over their sequences' keys, each over the last ``window`` up to its own.

    queries: [batch rows, heads, head_dim], heads contiguous; out: [batch rows, heads * head_dim].
    tiles: [tiles, 4] int32 as ``cut_into_tiles`` makes them with ``shape.tokens(heads // kv_heads)``; the sequence is a row
        of ``tables`` [sequences, blocks] int32.
    Rows in no tile are left as they are.
    """
    if not len(tiles):
        return
    group = queries.shape[1] // kv.kv_heads
    prefill_tiles[(len(tiles), kv.kv_heads)](
        queries, kv.numbers, kv.numbers if kv.scales is None else kv.scales, tables, tiles, out,
        scale * 1.4426950408889634, NO_WINDOW if window is None else window, queries.stride(0), out.stride(0),
        tables.stride(0), kv.kv_stride, kv.block_stride, *kv.scale_strides,
        KV_HEADS=kv.kv_heads, GROUP=group, ROWS=shape.rows, HEAD_DIM=kv.head_dim,
        DIMS=triton.next_power_of_2(kv.head_dim), BLOCK_SIZE=kv.block_size, KEYS=shape.keys,
        WINDOWED=window is not None, QUANTIZED=kv.scales is not None, WIDE=wide(queries.dtype),
        num_warps=shape.warps, num_stages=shape.stages,
    )  # fmt: skip
