"""One check for each Triton kernel: a case in, its error against float64 and everything else that is wrong out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from agentctx_engine.attention import kv_cache
from agentctx_engine.attention.quantized import KvKind, Packing
from agentctx_engine.attention.triton_kernels.block_copy import copy_blocks
from agentctx_engine.attention.triton_kernels.decode import DecodeShape, decode_attention
from agentctx_engine.attention.triton_kernels.gating import gate_by
from agentctx_engine.attention.triton_kernels.kv_view import KvView
from agentctx_engine.attention.triton_kernels.kv_write import write, write_packed, written_blocks
from agentctx_engine.attention.triton_kernels.prefill import PrefillShape, cut_into_tiles, prefill_attention
from agentctx_engine.attention.triton_kernels.rms_norm import add_rms_norm, rms_norm
from agentctx_engine.attention.triton_kernels.rotation import rotate_and_write
from benchmarks.attention_case import AttentionCase, PagedMemory, exact_rows
from benchmarks.exact import BOUNDS, gated, normed, numbers, poisoned, relative_error, turned


@dataclass(frozen=True, slots=True)
class Checked:
    """What a kernel made of one case: its worst error, what that may be, and what else was wrong."""

    kernel: str
    case: str
    error: float
    bound: float
    faults: tuple[str, ...] = ()

    @property
    def is_right(self) -> bool:
        return not self.faults and self.error <= self.bound  # not for NaN

    @classmethod
    def of(cls, kernel: str, case: object, error: float, bound: float, **faults_seen: bool) -> Checked:
        """``faults_seen``: whether there is this fault, by its name."""
        faults = [name.replace("_", " ") for name, seen in faults_seen.items() if seen]
        if math.isnan(error):
            faults.append("an element was not written, or is no number")
        return cls(kernel, str(case), error, bound, tuple(faults))


def check_decode(case: AttentionCase, *, splits: int, shape: DecodeShape | None = None) -> Checked:
    """One token of each sequence, whose context may also be empty; rows of queries in any order, some not of the step."""
    memory, device = PagedMemory.of(case), case.device
    generator = torch.Generator().manual_seed(case.seed)
    count = len(case.lengths)
    rows = Random(case.seed).sample(range(count + 1), count)
    queries = numbers(generator, count + 1, case.heads, case.head_dim, dtype=case.dtype).to(device)
    out = poisoned(count + 1, case.heads * case.head_dim, dtype=case.dtype, device=device)
    decode_attention(
        queries, memory.view, out,
        rows=torch.tensor(rows, dtype=torch.int32, device=device), tables=memory.tables,
        lengths=torch.tensor(case.lengths, dtype=torch.int32, device=device), window=case.window, scale=case.scale,
        splits=splits, shape=shape,
    )  # fmt: skip
    expected = torch.zeros(count, case.heads, case.head_dim, dtype=torch.float64, device=device)
    for number, (row, length) in enumerate(zip(rows, case.lengths, strict=True)):
        if length:
            [expected[number]] = exact_rows(case, memory, number, [length - 1], queries[row][None])
    others = [row for row in range(count + 1) if row not in rows]
    return Checked.of(
        "decode attention", f"{case}, {splits} splits", relative_error(out[rows], expected), BOUNDS[case.dtype],
        a_row_of_no_sequence_was_written=not out[others].isnan().all(),
    )  # fmt: skip


def check_prefill(case: AttentionCase, *, shape: PrefillShape | None = None) -> Checked:
    """Chunks of any lengths in one launch, after prefixes of any lengths; some chunks have no tokens."""
    memory, device = PagedMemory.of(case), case.device
    generator = torch.Generator().manual_seed(case.seed)
    shape = shape or PrefillShape.default(case.head_dim, case.dtype)
    starts = [0]
    for _, count in case.sequences:
        starts.append(starts[-1] + count)
    queries = numbers(generator, starts[-1] + 1, case.heads, case.head_dim, dtype=case.dtype).to(device)
    out = poisoned(starts[-1] + 1, case.heads * case.head_dim, dtype=case.dtype, device=device)
    chunks = [
        (number, starts[number], count, cached) for number, (cached, count) in enumerate(case.sequences)
    ]
    tiles = torch.tensor(cut_into_tiles(chunks, shape.tokens(case.group)), dtype=torch.int32, device=device)
    prefill_attention(
        queries, memory.view, out, tiles=tiles.reshape(-1, 4), tables=memory.tables, window=case.window,
        scale=case.scale, shape=shape,
    )  # fmt: skip
    expected = torch.zeros(starts[-1], case.heads, case.head_dim, dtype=torch.float64, device=device)
    for number, (cached, count) in enumerate(case.sequences):
        if count:
            rows = slice(starts[number], starts[number] + count)
            positions = range(cached, cached + count)
            expected[rows] = exact_rows(case, memory, number, positions, queries[rows])
    return Checked.of(
        "prefill attention", case, relative_error(out[: starts[-1]], expected), BOUNDS[case.dtype],
        a_row_of_no_chunk_was_written=not out[starts[-1] :].isnan().all(),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class WriteCase:
    """Tokens into three blocks, their slots in any order, with padding among them."""

    dtype: torch.dtype
    block_size: int
    kv_heads: int
    head_dim: int
    tokens: int
    seed: int
    device: str = "cpu"


def check_kv_write(case: WriteCase) -> Checked:
    """Everything else stays as it was."""
    generator = torch.Generator().manual_seed(case.seed)
    cache = numbers(generator, 2, 3, case.block_size, case.kv_heads, case.head_dim, dtype=case.dtype)
    qkv = numbers(generator, case.tokens, 3 * case.kv_heads, case.head_dim, dtype=case.dtype)
    slots = torch.tensor(Random(case.seed).sample(range(3 * case.block_size), case.tokens), dtype=torch.int64)
    padding = torch.rand(case.tokens, generator=generator) < 0.2
    expected, given = cache.clone(), cache.to(case.device)
    _, keys, values = torch.split(qkv, case.kv_heads, dim=1)
    kv_cache.write(expected, slots[~padding], keys[~padding], values[~padding])
    _, keys, values = torch.split(qkv.to(case.device), case.kv_heads, dim=1)
    write(KvView.full(given), torch.where(padding, -1, slots).to(case.device), keys, values)
    return Checked.of("KV write", case, _differing(given, expected), 0.0)


def _differing(ours: Tensor, expected: Tensor) -> float:
    """The share of elements that aren't equal."""
    return float((ours.cpu() != expected.cpu()).double().mean()) if ours.numel() else 0.0


@dataclass(frozen=True, slots=True)
class PackedWriteCase:
    """Chunks, each (first position, tokens), into quantized blocks that hold what stands before them."""

    kind: KvKind
    dtype: torch.dtype
    kv_heads: int
    head_dim: int
    block_size: int
    chunks: tuple[tuple[int, int], ...]
    seed: int
    device: str = "cpu"


def check_packed_write(case: PackedWriteCase) -> Checked:
    """The numbers that unpacking, writing and packing with torch give; other blocks keep their bytes. The error is in
    units of a code: a number on the border of two may fall to the other side; scales differ in their last bit at most."""
    generator, size = torch.Generator().manual_seed(case.seed), case.block_size
    packing = Packing(case.kind, size, case.kv_heads, case.head_dim, case.dtype)
    needed = [-(-sum(lengths) // size) for lengths in case.chunks]
    free = Random(case.seed).sample(range(sum(needed) + 1), sum(needed) + 1)
    old = numbers(generator, 2, len(free), size, case.kv_heads, case.head_dim, dtype=case.dtype)
    tokens = sum(count for _, count in case.chunks)
    keys, values = numbers(generator, 2, tokens, case.kv_heads, case.head_dim, dtype=case.dtype) * 2
    packed = packing.pack(old)
    work = []
    for (start, count), blocks_needed in zip(case.chunks, needed, strict=True):
        table, free = free[:blocks_needed], free[blocks_needed:]
        work.append((start, count, table))
    expected = _packed_by_torch(case, packed, work, keys, values)
    ours = packed.to(case.device)
    blocks, rows, offsets, counts = written_blocks(work, size, case.device)
    write_packed(
        ours, packing, keys.to(case.device), values.to(case.device),
        blocks=blocks, rows=rows, offsets=offsets, counts=counts,
    )  # fmt: skip
    ours = ours.cpu()
    index = sorted(set(blocks.tolist()))
    others = [block for block in range(packed.shape[1]) if block not in index]
    untouched = torch.equal(ours[:, others], expected[:, others])
    wide = Packing(case.kind, size, case.kv_heads, case.head_dim, torch.float64)
    mine, theirs = wide.unpack(ours[:, index]), wide.unpack(expected[:, index])
    step = theirs.abs().amax((2, 4), keepdim=True) / (127 if case.kind == "int8" else 14)
    codes = (mine - theirs).abs() / torch.where(step > 0, step, 1e-300)
    return Checked.of(
        f"KV write, {case.kind}", case, float(codes.max()) if index else 0.0, 1.01,
        another_block_was_written=not untouched,
        too_many_numbers_fell_to_another_code=bool(index) and float((codes > 1e-6).double().mean()) > 1e-4,
    )  # fmt: skip


def _packed_by_torch(
    case: PackedWriteCase,
    packed: Tensor,
    work: Sequence[tuple[int, int, list[int]]],
    keys: Tensor,
    values: Tensor,
) -> Tensor:
    """``packed`` after the write."""
    size = case.block_size
    packing = Packing(case.kind, size, case.kv_heads, case.head_dim, case.dtype)
    full = Packing(case.kind, size, case.kv_heads, case.head_dim, torch.float32).unpack(packed)
    touched, row = set(), 0
    for start, count, table in work:
        for position in range(start, start + count):
            block, offset = table[position // size], position % size
            touched.add(block)
            full[:, block, offset:] = 0
            full[0, block, offset], full[1, block, offset] = keys[row], values[row]
            row += 1
    result, index = packed.clone(), sorted(touched)
    result[:, index] = packing.pack(full[:, index])
    return result


@dataclass(frozen=True, slots=True)
class CopyCase:
    """``count`` blocks of six, within one memory or into another."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    count: int
    within: bool
    seed: int
    device: str = "cpu"


def check_block_copy(case: CopyCase) -> Checked:
    """Blocks of any size, to the byte."""
    generator, random = torch.Generator().manual_seed(case.seed), Random(case.seed)
    source = (numbers(generator, 2, 6, *case.shape, dtype=torch.float32) * 9).to(case.dtype)
    chosen = random.sample(range(6), 6)
    pairs = torch.tensor(list(zip(chosen[: case.count], chosen[3:], strict=False)), dtype=torch.int32)
    pairs = pairs.reshape(-1, 2)
    target = source if case.within else torch.zeros(2, 9, *case.shape, dtype=case.dtype)
    expected = target.clone()
    expected[:, pairs[:, 1].long()] = source[:, pairs[:, 0].long()]
    read = source.to(case.device)
    written = read if case.within else target.to(case.device)
    copy_blocks(read, written, pairs.to(case.device))
    return Checked.of("block copy", case, _differing(written, expected), 0.0)


@dataclass(frozen=True, slots=True)
class NormCase:
    """Rows to norm, with a residual added before or not."""

    dtype: torch.dtype
    rows: int
    size: int
    added: bool
    seed: int
    device: str = "cpu"


def check_rms_norm(case: NormCase) -> Checked:
    """Of the sum, if there is one, and of the norm; the norm is that of the sum as it was stored."""
    generator, shape = torch.Generator().manual_seed(case.seed), (case.rows, case.size)
    x, residual = ((numbers(generator, *shape, dtype=case.dtype) * 3).to(case.device) for _ in range(2))
    weight = numbers(generator, case.size, dtype=case.dtype).to(case.device)
    out, summed = (poisoned(*shape, dtype=case.dtype, device=case.device) for _ in range(2))
    error = 0.0
    if case.added:
        add_rms_norm(x, residual, weight, 1e-6, out=out, summed=summed)
        error = relative_error(summed, x + residual)  # the interpreter cuts bfloat16s off, it doesn't round
        x = summed
    else:
        rms_norm(x, weight, 1e-6, out=out)
    errors = torch.tensor([error, relative_error(out, normed(x, weight, 1e-6))])
    return Checked.of("RMS norm", case, float(errors.max()), BOUNDS[case.dtype])


@dataclass(frozen=True, slots=True)
class RotationCase:
    """Tokens, and padding rows behind them, into four blocks of eight; the second token has no slot."""

    dtype: torch.dtype
    tokens: int
    padding: int
    kv_heads: int
    group: int
    head_dim: int
    seed: int
    device: str = "cpu"


def check_rotation(case: RotationCase) -> Checked:
    """Queries turned in place, turned keys and plain values in their slots, nothing else written."""
    generator, rows = torch.Generator().manual_seed(case.seed), case.tokens + case.padding
    kv_heads, heads = case.kv_heads, case.kv_heads * case.group
    qkv = numbers(generator, rows, heads + 2 * kv_heads, case.head_dim, dtype=case.dtype)
    angle = torch.rand(rows, 1, case.head_dim // 2, generator=generator) * 100
    turn = torch.polar(torch.full_like(angle, 1.1), angle)
    slots = torch.tensor(Random(case.seed).sample(range(32), case.tokens), dtype=torch.int64)
    slots[1:2] = -1
    exact = turned(qkv[:, : heads + kv_heads], turn)
    values = qkv[:, heads + kv_heads :].clone()
    qkv, cache = (
        qkv.to(case.device),
        poisoned(2, 4, 8, kv_heads, case.head_dim, dtype=case.dtype, device=case.device),
    )
    rotate_and_write(qkv, turn.to(case.device), KvView.full(cache), slots.to(case.device))
    flat = cache.flatten(1, 2).cpu()
    real = [row for row in range(case.tokens) if slots[row] >= 0]
    where = slots[real]
    others = [slot for slot in range(32) if slot not in where.tolist()]
    queries = relative_error(qkv[:, :heads].cpu(), exact[:, :heads])
    keys = relative_error(flat[0, where], exact[real, heads:])
    return Checked.of(
        "rotation and KV write", case, float(torch.tensor([queries, keys]).max()), BOUNDS[case.dtype],
        a_value_was_changed=not torch.equal(flat[1, where], values[real]),
        a_slot_of_no_token_was_written=not flat[:, others].isnan().all(),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class GateCase:
    """Rows whose first half, activated, multiplies the second."""

    dtype: torch.dtype
    rows: int
    size: int
    activation: str
    seed: int
    device: str = "cpu"


def check_gating(case: GateCase) -> Checked:
    generator = torch.Generator().manual_seed(case.seed)
    gate_up = (numbers(generator, case.rows, 2 * case.size, dtype=case.dtype) * 4).to(case.device)
    out = poisoned(case.rows, case.size, dtype=case.dtype, device=case.device)
    gate_by(gate_up, "silu" if case.activation == "silu" else "gelu_tanh", out=out)
    error = relative_error(out, gated(gate_up, case.activation))
    return Checked.of("gating", case, error, BOUNDS[case.dtype])
