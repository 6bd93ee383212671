"""Every Triton kernel, in Triton's interpreter, against float64 arithmetic in torch.

Outputs are NaN before a kernel runs, and so is all KV memory that no token of the batch has: an element that isn't
written, or one read that shouldn't be, is seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentctx_engine.attention import kv_cache
from agentctx_engine.attention.quantized import KvKind, Packing
from agentctx_engine.models.rope import rotate

pytest.importorskip("triton")

from agentctx_engine.attention.triton_kernels.block_copy import copy_blocks
from agentctx_engine.attention.triton_kernels.decode import DecodeShape, decode_attention, splits_for
from agentctx_engine.attention.triton_kernels.gating import gate_by
from agentctx_engine.attention.triton_kernels.kv_view import KvView
from agentctx_engine.attention.triton_kernels.kv_write import write, write_packed, written_blocks
from agentctx_engine.attention.triton_kernels.online_softmax import INTERPRETED
from agentctx_engine.attention.triton_kernels.prefill import PrefillShape, cut_into_tiles, prefill_attention
from agentctx_engine.attention.triton_kernels.rms_norm import add_rms_norm, rms_norm
from agentctx_engine.attention.triton_kernels.rotation import rotate_and_write

BOUNDS = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Of the largest error of a row, relative to the row's largest value in float64: about 16, 2 and 2 units in the last place.
Weights are rounded to the dtype before they meet the values, and the result once more."""

DTYPES = st.sampled_from(list(BOUNDS))
SETTINGS = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],  # the interpreter is too slow to look for the smallest failure
)
NAN = float("nan")


def relative_error(ours: Tensor, expected: Tensor) -> float:
    """The worst row's; NaN if an element of ours is."""
    ours, expected = ours.double().flatten(1), expected.double().flatten(1)
    largest = expected.abs().amax(1, keepdim=True)
    return float(((ours - expected).abs() / torch.where(largest > 0, largest, 1.0)).max())


def poisoned(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.full(shape, NAN, dtype=dtype)


def numbers(generator: torch.Generator, *shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=generator).to(dtype)


@dataclass(frozen=True)
class Case:
    """A step's attention: sequences as (tokens cached, tokens computed), in blocks that lie in no order."""

    dtype: torch.dtype
    head_dim: int
    kv_heads: int
    group: int
    block_size: int
    sequences: tuple[tuple[int, int], ...]
    window: int | None
    kind: KvKind | None
    seed: int

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group

    @property
    def packing(self) -> Packing:
        return Packing(self.kind or "int8", self.block_size, self.kv_heads, self.head_dim, self.dtype)


@st.composite
def cases(draw: st.DrawFn, counts: st.SearchStrategy[int]) -> Case:
    return Case(
        dtype=draw(DTYPES),
        head_dim=draw(st.sampled_from([64, 80, 128, 256])),
        kv_heads=draw(st.integers(1, 2)),
        group=draw(st.sampled_from([1, 2, 3, 4, 7, 8, 16])),
        block_size=draw(st.sampled_from([8, 16, 24, 32, 64])),
        sequences=tuple(
            draw(
                st.lists(
                    st.tuples(st.sampled_from([0, 0, 1, 15, 16, 40, 77]), counts), min_size=1, max_size=4
                )
            )
        ),
        window=draw(st.sampled_from([None, None, 1, 5, 16, 37, 1000])),
        kind=draw(st.sampled_from([None, None, "int8", "fp8"])),
        seed=draw(st.integers(0, 2**32 - 1)),
    )


@dataclass(frozen=True)
class Memory:
    """A case's KV memory, what it holds in float64, and where each sequence lies."""

    view: KvView
    exact: Tensor  # [2, num_blocks, block_size, kv_heads, head_dim], NaN where no token is
    tables: Tensor  # [sequences, blocks] int32

    @classmethod
    def of(cls, case: Case) -> Memory:
        generator, random = torch.Generator().manual_seed(case.seed), Random(case.seed)
        needed = [-(-sum(lengths) // case.block_size) for lengths in case.sequences]
        total = sum(needed) + 2
        free = random.sample(range(total), total)
        width = max(1, *needed)
        tables = torch.full((len(needed), width), total - 1, dtype=torch.int32)
        full = numbers(generator, 2, total, case.block_size, case.kv_heads, case.head_dim, dtype=case.dtype)
        held = torch.zeros(total, case.block_size, dtype=torch.bool)
        for number, (blocks, lengths) in enumerate(zip(needed, case.sequences, strict=True)):
            mine, free = free[:blocks], free[blocks:]
            tables[number, :blocks] = torch.tensor(mine, dtype=torch.int32)
            for index, block in enumerate(mine):
                held[block, : sum(lengths) - index * case.block_size] = True
        if case.kind is None:
            full[:, ~held] = NAN
            return cls(KvView.full(full), full.double(), tables)
        packed = case.packing.pack(full)
        # A quantized number times its scale is what attention should see, without a rounding to the dtype.
        wide = Packing(case.kind, case.block_size, case.kv_heads, case.head_dim, torch.float64)
        exact = wide.unpack(packed)
        exact[:, ~held] = NAN
        unused = ~held.any(1)
        packed[:, unused, case.packing.numbers :] = torch.tensor([NAN]).view(torch.int8).repeat(case.kv_heads)
        return cls(KvView.packed(packed, case.packing), exact, tables)


def exact_attention(case: Case, memory: Memory, sequence: int, position: int, query: Tensor) -> Tensor:
    """[heads, head_dim] of one token, in float64."""
    first = 0 if case.window is None else max(0, position - case.window + 1)
    seen = torch.arange(first, position + 1)
    table = memory.tables[sequence].long()
    keys, values = memory.exact[:, table[seen // case.block_size], seen % case.block_size]
    keys, values = (part.repeat_interleave(case.group, 1) for part in (keys, values))
    weights = torch.softmax(torch.einsum("hd,khd->hk", query.double(), keys) * case.head_dim**-0.5, -1)
    return torch.einsum("hk,khd->hd", weights, values)


def test_kernels_run_in_the_interpreter() -> None:
    assert INTERPRETED or torch.cuda.is_available()


@SETTINGS
@given(
    case=cases(counts=st.sampled_from([0, 1, 1])),
    splits=st.sampled_from([1, 2, 4, 8]),
    keys=st.sampled_from([16, 32]),
)
def test_decode_attention(case: Case, splits: int, keys: int) -> None:
    """One token of each sequence, whose context may also be empty; rows of queries in any order, some not of the step."""
    memory = Memory.of(case)
    generator = torch.Generator().manual_seed(case.seed)
    lengths = [sum(lengths) for lengths in case.sequences]
    count = len(lengths)
    rows = Random(case.seed).sample(range(count + 1), count)
    queries = numbers(generator, count + 1, case.heads, case.head_dim, dtype=case.dtype)
    out = poisoned(count + 1, case.heads * case.head_dim, dtype=case.dtype)
    decode_attention(
        queries, memory.view, out,
        rows=torch.tensor(rows, dtype=torch.int32), tables=memory.tables,
        lengths=torch.tensor(lengths, dtype=torch.int32), window=case.window, scale=case.head_dim**-0.5,
        splits=splits, shape=DecodeShape(keys=keys, warps=4, stages=1),
    )  # fmt: skip
    expected = torch.zeros(count, case.heads, case.head_dim, dtype=torch.float64)
    for number, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        if length:
            expected[number] = exact_attention(case, memory, number, length - 1, queries[row])
    assert relative_error(out[rows], expected) <= BOUNDS[case.dtype]
    assert out[[row for row in range(count + 1) if row not in rows]].isnan().all()
    event(f"an empty sequence: {0 in lengths}")


@SETTINGS
@given(case=cases(counts=st.sampled_from([0, 1, 2, 9, 20, 33])), rows=st.sampled_from([16, 32, 64]))
def test_prefill_attention(case: Case, rows: int) -> None:
    """Chunks of any lengths in one launch, after prefixes of any lengths; some chunks have no tokens."""
    memory = Memory.of(case)
    generator = torch.Generator().manual_seed(case.seed)
    starts = [0]
    for _, count in case.sequences:
        starts.append(starts[-1] + count)
    queries = numbers(generator, starts[-1] + 1, case.heads, case.head_dim, dtype=case.dtype)
    out = poisoned(starts[-1] + 1, case.heads * case.head_dim, dtype=case.dtype)
    shape = PrefillShape(rows=rows, keys=16, warps=4, stages=1)
    chunks = [
        (number, starts[number], count, cached) for number, (cached, count) in enumerate(case.sequences)
    ]
    tiles = cut_into_tiles(chunks, shape.tokens(case.group))
    prefill_attention(
        queries, memory.view, out,
        tiles=torch.tensor(tiles, dtype=torch.int32).reshape(-1, 4), tables=memory.tables, window=case.window,
        scale=case.head_dim**-0.5, shape=shape,
    )  # fmt: skip
    for number, (cached, count) in enumerate(case.sequences):
        for token in range(count):
            row = starts[number] + token
            expected = exact_attention(case, memory, number, cached + token, queries[row])
            assert relative_error(out[row][None], expected.flatten()[None]) <= BOUNDS[case.dtype]
    assert out[starts[-1] :].isnan().all()


def test_a_group_wider_than_a_tile_is_refused() -> None:
    with pytest.raises(ValueError, match="32 query heads"):
        PrefillShape(rows=16, keys=16, warps=4, stages=1).tokens(32)


def test_splits_fill_the_processors_and_no_more() -> None:
    assert splits_for(1, 8, 32_768, processors=132) == 64
    assert splits_for(64, 8, 8_192, processors=132) == 2
    assert splits_for(256, 8, 8_192, processors=132) == 1
    assert splits_for(1, 8, 600, processors=132) == 2  # runs of at least 256 keys
    assert splits_for(1, 8, 1, processors=132) == 1


@SETTINGS
@given(data=st.data(), dtype=DTYPES, seed=st.integers(0, 2**32 - 1))
def test_kv_write(data: st.DataObject, dtype: torch.dtype, seed: int) -> None:
    """Slots in any order, with padding among them; everything else stays as it was."""
    block_size, kv_heads = data.draw(st.sampled_from([8, 16, 24, 64])), data.draw(st.integers(1, 3))
    head_dim, tokens = data.draw(st.sampled_from([64, 80, 128, 256])), data.draw(st.integers(0, 9))
    generator = torch.Generator().manual_seed(seed)
    cache = numbers(generator, 2, 3, block_size, kv_heads, head_dim, dtype=dtype)
    qkv = numbers(generator, tokens, 3 * kv_heads, head_dim, dtype=dtype)
    _, keys, values = qkv.split(kv_heads, dim=1)
    slots = torch.tensor(Random(seed).sample(range(3 * block_size), tokens), dtype=torch.int64)
    padding = torch.rand(tokens, generator=generator) < 0.2
    expected = cache.clone()
    kv_cache.write(expected, slots[~padding], keys[~padding], values[~padding])
    write(KvView.full(cache), torch.where(padding, -1, slots), keys, values)
    assert torch.equal(cache, expected)


@SETTINGS
@given(
    kind=st.sampled_from(["int8", "fp8"]),
    dtype=DTYPES,
    head_dim=st.sampled_from([64, 80, 128]),
    block_size=st.sampled_from([8, 16, 24]),
    chunks=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), min_size=1, max_size=3),
    seed=st.integers(0, 2**32 - 1),
)
def test_kv_write_into_quantized_blocks(
    kind: KvKind, dtype: torch.dtype, head_dim: int, block_size: int, chunks: list[tuple[int, int]], seed: int
) -> None:
    """The numbers that unpacking, writing and packing with torch give; other blocks keep their bytes."""
    kv_heads, generator = 2, torch.Generator().manual_seed(seed)
    packing = Packing(kind, block_size, kv_heads, head_dim, dtype)
    needed = [-(-sum(lengths) // block_size) for lengths in chunks]
    free = Random(seed).sample(range(sum(needed) + 1), sum(needed) + 1)
    old = numbers(generator, 2, len(free), block_size, kv_heads, head_dim, dtype=dtype)
    packed = packing.pack(old)
    tokens = sum(count for _, count in chunks)
    keys, values = numbers(generator, 2, tokens, kv_heads, head_dim, dtype=dtype) * 2
    single = Packing(kind, block_size, kv_heads, head_dim, torch.float32)
    expected, row, work = single.unpack(packed), 0, []
    touched = set()
    for (start, count), blocks in zip(chunks, needed, strict=True):
        table, free = free[:blocks], free[blocks:]
        work.append((start, count, table))
        for position in range(start, start + count):
            block, offset = table[position // block_size], position % block_size
            touched.add(block)
            expected[:, block, offset:] = 0
            expected[0, block, offset], expected[1, block, offset] = keys[row], values[row]
            row += 1
    expected_rows = packed.clone()
    index = sorted(touched)
    expected_rows[:, index] = packing.pack(expected[:, index])
    blocks, rows, offsets, counts = written_blocks(work, block_size)
    write_packed(packed, packing, keys, values, blocks=blocks, rows=rows, offsets=offsets, counts=counts)
    others = [block for block in range(packed.shape[1]) if block not in touched]
    assert torch.equal(packed[:, others], expected_rows[:, others])
    if index:
        wide = Packing(kind, block_size, kv_heads, head_dim, torch.float64)
        ours, theirs = wide.unpack(packed[:, index]), wide.unpack(expected_rows[:, index])
        # A number on the border of two codes may fall to the other side; scales differ in their last bit at most.
        step = theirs.abs().amax((2, 4), keepdim=True) / (127 if kind == "int8" else 14)
        assert bool(((ours - theirs).abs() <= 1.01 * step).all())
        assert ((ours - theirs).abs() > 1e-6 * step).double().mean() <= 1e-4


@SETTINGS
@given(data=st.data(), dtype=st.sampled_from([*BOUNDS, torch.int8]), seed=st.integers(0, 2**32 - 1))
def test_block_copy(data: st.DataObject, dtype: torch.dtype, seed: int) -> None:
    """Within a memory and between two, blocks of any size to the byte."""
    shape = data.draw(st.sampled_from([(8, 2, 64), (16, 1, 80), (24, 3, 64), (1037,), (5,)]))
    generator, random = torch.Generator().manual_seed(seed), Random(seed)
    source = (numbers(generator, 2, 6, *shape, dtype=torch.float32) * 9).to(dtype)
    chosen = random.sample(range(6), 6)
    count = data.draw(st.integers(0, 3))
    pairs = torch.tensor(list(zip(chosen[:count], chosen[3:], strict=False)), dtype=torch.int32).reshape(
        -1, 2
    )
    target = source if data.draw(st.booleans()) else torch.zeros(2, 9, *shape, dtype=dtype)
    expected = target.clone()
    expected[:, pairs[:, 1].long()] = source[:, pairs[:, 0].long()]
    copy_blocks(source, target, pairs)
    assert torch.equal(target, expected)


def test_blocks_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="don't fit"):
        copy_blocks(torch.zeros(2, 3, 8), torch.zeros(2, 3, 9), torch.zeros(1, 2, dtype=torch.int32))


@SETTINGS
@given(
    dtype=DTYPES,
    rows=st.integers(0, 5),
    size=st.sampled_from([1, 64, 80, 576, 1000]),
    added=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_rms_norm(dtype: torch.dtype, rows: int, size: int, added: bool, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    x, residual = (numbers(generator, rows, size, dtype=dtype) * 3 for _ in range(2))
    weight = numbers(generator, size, dtype=dtype)
    out, summed = (poisoned(rows, size, dtype=dtype) for _ in range(2))
    if added:
        add_rms_norm(x, residual, weight, 1e-6, out=out, summed=summed)
        x = x + residual
        if rows:
            assert (
                relative_error(summed, x) <= BOUNDS[dtype]
            )  # the interpreter cuts bfloat16s off, it doesn't round
        x = summed
    else:
        rms_norm(x, weight, 1e-6, out=out)
    if rows:
        expected = F.rms_norm(x.double(), (size,), weight.double(), 1e-6)
        assert relative_error(out, expected) <= BOUNDS[dtype]


@SETTINGS
@given(
    dtype=DTYPES,
    tokens=st.integers(0, 4),
    padding=st.integers(0, 2),
    kv_heads=st.integers(1, 2),
    group=st.sampled_from([1, 3]),
    head_dim=st.sampled_from([16, 64, 80, 128, 256]),
    seed=st.integers(0, 2**32 - 1),
)
def test_rotation_and_write(
    dtype: torch.dtype, tokens: int, padding: int, kv_heads: int, group: int, head_dim: int, seed: int
) -> None:
    generator, rows = torch.Generator().manual_seed(seed), tokens + padding
    heads = kv_heads * group
    qkv = numbers(generator, rows, heads + 2 * kv_heads, head_dim, dtype=dtype)
    angle = torch.rand(rows, 1, head_dim // 2, generator=generator) * 100
    turn = torch.polar(torch.full_like(angle, 1.1), angle)
    slots = torch.tensor(Random(seed).sample(range(32), tokens), dtype=torch.int64)
    slots[1:2] = -1
    cache = poisoned(2, 4, 8, kv_heads, head_dim, dtype=dtype)
    exact = turned(qkv[:, : heads + kv_heads], turn)
    values = qkv[:, heads + kv_heads :].clone()
    rotate_and_write(qkv, turn, KvView.full(cache), slots)
    if rows:
        assert relative_error(qkv[:, :heads], exact[:, :heads]) <= BOUNDS[dtype]
        kept = rotate(qkv[:, :heads], turn.conj())  # torch's own turns it back
        assert kept.isfinite().all()
    flat = cache.flatten(1, 2)
    real = [row for row in range(tokens) if slots[row] >= 0]
    where = slots[real]
    if real:
        assert relative_error(flat[0, where], exact[real, heads:]) <= BOUNDS[dtype]
        assert torch.equal(flat[1, where], values[real])
    others = [slot for slot in range(32) if slot not in where.tolist()]
    assert flat[:, others].isnan().all()


def turned(heads: Tensor, turn: Tensor) -> Tensor:
    """[rows, heads, head_dim] turned by complex numbers, in float64."""
    pairs = torch.view_as_complex(heads.double().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turn.to(torch.complex128)).flatten(-2)


@SETTINGS
@given(
    dtype=DTYPES,
    rows=st.integers(0, 4),
    size=st.sampled_from([1, 16, 160, 1025, 2048]),
    activation=st.sampled_from(["silu", "gelu_tanh"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_gating(dtype: torch.dtype, rows: int, size: int, activation: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    gate_up = numbers(generator, rows, 2 * size, dtype=dtype) * 4
    out = poisoned(rows, size, dtype=dtype)
    gate_by(gate_up, "silu" if activation == "silu" else "gelu_tanh", out=out)
    if rows:
        gate, up = gate_up.double().chunk(2, dim=-1)
        active = F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")
        assert relative_error(out, active * up) <= BOUNDS[dtype]


def test_tiles_hold_every_token_once() -> None:
    chunks: Sequence[tuple[int, int, int, int]] = [(0, 0, 5, 10), (1, 5, 0, 3), (2, 5, 7, 0)]
    tiles = cut_into_tiles(chunks, 3)
    assert tiles == [(0, 3, 2, 13), (0, 0, 3, 10), (2, 11, 1, 6), (2, 8, 3, 3), (2, 5, 3, 0)]
