"""The cases that the script checks kernels on: the configurations of real models, on data that is new in every run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import torch

from agentctx_engine.attention.quantized import KvKind
from agentctx_engine.attention.triton_kernels.decode import splits_for
from benchmarks.attention_case import AttentionCase
from benchmarks.kernel_checks import (
    Checked,
    CopyCase,
    GateCase,
    NormCase,
    PackedWriteCase,
    RotationCase,
    WriteCase,
    check_block_copy,
    check_decode,
    check_gating,
    check_kv_write,
    check_packed_write,
    check_prefill,
    check_rms_norm,
    check_rotation,
)

Check = Callable[[], Checked]
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32


@dataclass(frozen=True, slots=True)
class Heads:
    """What sets one compiled attention kernel apart from another."""

    dtype: torch.dtype
    head_dim: int
    kv_heads: int
    group: int
    block_size: int
    windowed: bool = False
    kind: KvKind | None = None


ATTENTION = (
    Heads(BF16, 128, 8, 4, 16),  # Llama 3 8B
    Heads(BF16, 128, 8, 4, 16, kind="int8"),
    Heads(F16, 80, 2, 16, 8, kind="fp8"),
    Heads(F32, 64, 2, 7, 24, windowed=True),
    Heads(BF16, 64, 8, 4, 16),  # Llama 3.2 1B
    Heads(BF16, 128, 8, 4, 16, kind="fp8"),
    Heads(BF16, 256, 1, 4, 32, windowed=True),  # Gemma 3
    Heads(F32, 128, 1, 1, 64),
)
"""A short run takes the first of them, which differ most."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """How large the drawn cases are, and where they run."""

    device: str
    processors: int
    longest: int  # tokens of a sequence
    most_kv_heads: int
    hidden: int  # of the kernels around attention
    kinds: tuple[KvKind, ...] = ("int8", "fp8")  # of quantized memory that the device can do
    attention: tuple[Heads, ...] = ATTENTION


def drawn_checks(drawing: Drawing, random: Random) -> Iterator[Check]:
    """Every kernel, some of them several times. Each check is made and run by its call."""
    for heads in drawing.attention:
        if heads.kind is not None and heads.kind not in drawing.kinds:
            continue
        case = _attention(drawing, random, heads, most_computed=1)
        splits = splits_for(len(case.lengths), case.kv_heads, max(case.lengths), drawing.processors)
        yield partial(check_decode, case, splits=splits)
        case = _attention(drawing, random, heads, most_computed=drawing.longest // 4)
        yield partial(check_prefill, case)
    for dtype in (BF16, F16, F32):
        common: dict[str, Any] = {"dtype": dtype, "device": drawing.device}
        yield from _around(drawing, random, common)


def _around(drawing: Drawing, random: Random, common: dict[str, Any]) -> Iterator[Check]:
    """The kernels around attention, in one dtype."""

    def seed() -> int:
        return random.getrandbits(32)

    hidden, heads = drawing.hidden, drawing.most_kv_heads
    write = WriteCase(block_size=16, kv_heads=heads, head_dim=128, tokens=40, seed=seed(), **common)
    yield partial(check_kv_write, write)
    for kind in drawing.kinds:
        chunks = tuple((random.randrange(30), random.randrange(1, 20)) for _ in range(3))
        packed = PackedWriteCase(
            kind, kv_heads=heads, head_dim=128, block_size=16, chunks=chunks, seed=seed(), **common
        )
        yield partial(check_packed_write, packed)
    copy = CopyCase((16, heads, 128), count=3, within=random.random() < 0.5, seed=seed(), **common)
    yield partial(check_block_copy, copy)
    for added in (False, True):
        norm = NormCase(rows=random.randrange(1, 9), size=hidden, added=added, seed=seed(), **common)
        yield partial(check_rms_norm, norm)
    rotation = RotationCase(
        tokens=random.randrange(2, 9), padding=2, kv_heads=heads, group=4, head_dim=128, seed=seed(), **common
    )
    yield partial(check_rotation, rotation)
    for activation in ("silu", "gelu_tanh"):
        rows = random.randrange(1, 9)
        gate = GateCase(rows=rows, size=hidden * 7 // 2, activation=activation, seed=seed(), **common)
        yield partial(check_gating, gate)


def _attention(drawing: Drawing, random: Random, heads: Heads, *, most_computed: int) -> AttentionCase:
    """Four sequences: a long one, one that starts, an empty one and one between."""
    longest = drawing.longest
    lengths = [random.randrange(longest // 2, longest), 0, random.randrange(1, longest // 2)]
    sequences = [(length, random.randrange(1, most_computed + 1)) for length in lengths]
    random.shuffle(sequences)
    return AttentionCase(
        dtype=heads.dtype,
        head_dim=heads.head_dim,
        kv_heads=min(heads.kv_heads, drawing.most_kv_heads),
        group=heads.group,
        block_size=heads.block_size,
        sequences=((0, 0), *sequences),
        window=random.randrange(1, longest // 2) if heads.windowed else None,
        kind=heads.kind,
        seed=random.getrandbits(32),
        device=drawing.device,
    )
