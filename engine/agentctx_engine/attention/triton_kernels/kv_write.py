"""Keys and values of a step into their slots: as they are, or packed into quantized blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from agentctx_engine.attention.batch import IntArray
from agentctx_engine.attention.quantized import LARGEST, Packing
from agentctx_engine.attention.triton_kernels.kv_view import KvView
from agentctx_engine.attention.uploads import upload


@triton.jit
def write_slots(
    keys, values, slots, numbers, key_stride, value_stride, kv_stride, block_stride,
    BLOCK_SIZE: tl.constexpr, NUMBERS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Program (token): all its heads, which lie side by side. A negative slot is padding and writes nothing."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots + token)
    lane = tl.arange(0, LANES)
    inside = lane < tl.where(slot >= 0, NUMBERS, 0)
    target = numbers + slot // BLOCK_SIZE * block_stride + slot % BLOCK_SIZE * NUMBERS + lane
    tl.store(target, tl.load(keys + token * key_stride + lane, mask=inside), mask=inside)
    tl.store(target + kv_stride, tl.load(values + token * value_stride + lane, mask=inside), mask=inside)


def write(kv: KvView, slots: Tensor, keys: Tensor, values: Tensor) -> None:
    """Store keys and values, each [tokens, kv_heads, head_dim] with contiguous heads, at ``slots`` [tokens] int64 of
    memory at full width. Slots are distinct; a negative one is skipped."""
    if not len(slots):
        return
    numbers = kv.kv_heads * kv.head_dim
    write_slots[(len(slots),)](
        keys, values, slots, kv.numbers, keys.stride(0), values.stride(0), kv.kv_stride, kv.block_stride,
        BLOCK_SIZE=kv.block_size, NUMBERS=numbers, LANES=triton.next_power_of_2(numbers), num_warps=4,
    )  # fmt: skip


@triton.jit
def write_packed_blocks(
    keys, values, numbers, scales, blocks, rows, offsets, counts, key_stride, value_stride, kv_stride,
    block_stride, scale_kv_stride, scale_block_stride,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, DIMS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    TOKENS: tl.constexpr, LARGEST: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Program (written block, KV head, keys or values): what the block held before ``offset``, then the new tokens,
    then zeros, under the scale that the largest of them needs."""
    written, head, which = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    block = tl.load(blocks + written).to(tl.int64)
    row = tl.load(rows + written).to(tl.int64)
    offset = tl.load(offsets + written)
    count = tl.load(counts + written)
    token, dims = tl.arange(0, TOKENS), tl.arange(0, DIMS)
    narrow = (dims < HEAD_DIM)[None, :]
    place = numbers + which * kv_stride + block * block_stride
    place = place + (token[:, None] * KV_HEADS + head) * HEAD_DIM + dims[None, :]
    scale_place = scales + which * scale_kv_stride + block * scale_block_stride + head
    old = tl.load(place, mask=(token < offset)[:, None] & narrow, other=0.0).to(tl.float32)
    old *= tl.load(scale_place)
    old = tl.where((token < offset)[:, None], old, 0.0)  # also where the scale is no number
    source = (row + token - offset)[:, None]
    fresh = ((token >= offset) & (token < offset + count))[:, None] & narrow
    place_in_head = head * HEAD_DIM + dims[None, :]
    if which == 0:
        new = tl.load(keys + source * key_stride + place_in_head, mask=fresh, other=0.0).to(tl.float32)
    else:
        new = tl.load(values + source * value_stride + place_in_head, mask=fresh, other=0.0).to(tl.float32)
    full = tl.where(fresh, new, old)
    scale = tl.max(tl.max(tl.abs(full), 1), 0) / LARGEST
    scaled = full / tl.where(scale > 0, scale, 1.0)
    # To the nearest that the code has, the even one of two, as torch rounds: the cast that follows is then exact, also in
    # the interpreter, which would lose a carry.
    if WHOLE:
        step = tl.full(scaled.shape, 1.0, tl.float32)
    else:  # e4m3: three bits behind the first one, down to 2^-9
        power = (scaled.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)
        step = tl.maximum(power, 0.015625) * 0.125
    steps = scaled / step
    below = tl.floor(steps)
    above = steps - below
    odd = below - 2.0 * tl.floor(below * 0.5)
    scaled = (below + tl.where((above > 0.5) | ((above == 0.5) & (odd == 1.0)), 1.0, 0.0)) * step
    inside = (token < BLOCK_SIZE)[:, None] & narrow
    tl.store(place, scaled.to(numbers.dtype.element_ty), mask=inside)
    tl.store(scale_place, scale)


def write_packed(
    rows_of_bytes: Tensor,
    packing: Packing,
    keys: Tensor,
    values: Tensor,
    *,
    blocks: Tensor,
    rows: Tensor,
    offsets: Tensor,
    counts: Tensor,
) -> None:
    """Put tokens behind what quantized blocks already hold, and pack those blocks anew.

    rows_of_bytes: [2, num_blocks, row_bytes] int8, laid out by ``packing``. keys, values: [tokens, kv_heads, head_dim].
    blocks, rows, offsets, counts: [written] int32. Block ``blocks[i]`` keeps its first ``offsets[i]`` tokens, then takes the
        ``counts[i]`` rows of ``keys`` and ``values`` from ``rows[i]`` on; what stands behind becomes 0. Blocks are distinct.
    """
    if not len(blocks):
        return
    kv = KvView.packed(rows_of_bytes, packing)
    write_packed_blocks[(len(blocks), kv.kv_heads, 2)](
        keys, values, kv.numbers, kv.scales, blocks, rows, offsets, counts, keys.stride(0), values.stride(0),
        kv.kv_stride, kv.block_stride, *kv.scale_strides,
        KV_HEADS=kv.kv_heads, HEAD_DIM=kv.head_dim, DIMS=triton.next_power_of_2(kv.head_dim),
        BLOCK_SIZE=kv.block_size, TOKENS=triton.next_power_of_2(kv.block_size), LARGEST=LARGEST[packing.kind],
        WHOLE=packing.kind == "int8", num_warps=4,
    )  # fmt: skip


def written_blocks(
    chunks: Sequence[tuple[int, int, IntArray]], block_size: int, device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(blocks, rows, offsets, counts) for ``write_packed``: of chunks, each (first position, tokens, block table), whose
    rows follow one another."""
    entries: list[tuple[int, int, int, int]] = []
    row = 0
    for start, count, table in chunks:
        position, end = start, start + count
        while position < end:
            offset = position % block_size
            taken = min(block_size - offset, end - position)
            entries.append((int(table[position // block_size]), row, offset, taken))
            position, row = position + taken, row + taken
    columns = upload(entries, device, torch.int32).reshape(-1, 4).t().contiguous()
    blocks, rows, offsets, counts = columns
    return blocks, rows, offsets, counts
