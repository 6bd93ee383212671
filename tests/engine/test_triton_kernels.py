"""Every Triton kernel, in Triton's interpreter, against float64 arithmetic in torch (``benchmarks.kernel_checks``).

Outputs are NaN before a kernel runs, and so is all KV memory that no token of the batch has: an element that isn't
written, or one read that shouldn't be, is seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from agentctx_engine.attention.quantized import KvKind
from agentctx_engine.attention.triton_kernels.block_copy import copy_blocks
from agentctx_engine.attention.triton_kernels.decode import DecodeShape, splits_for
from agentctx_engine.attention.triton_kernels.online_softmax import INTERPRETED
from agentctx_engine.attention.triton_kernels.prefill import PrefillShape, cut_into_tiles
from benchmarks import kernel_checks
from benchmarks.attention_case import AttentionCase
from benchmarks.exact import BOUNDS
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

DTYPES = st.sampled_from(list(BOUNDS))
SEEDS = st.integers(0, 2**32 - 1)
SETTINGS = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],  # the interpreter is too slow to look for the smallest failure
)


def is_right(checked: Checked) -> bool:
    """For asserts, whose message then shows all that is known."""
    return checked.is_right


def cases(counts: st.SearchStrategy[int]) -> st.SearchStrategy[AttentionCase]:
    cached = st.sampled_from([0, 0, 1, 15, 16, 40, 77])
    return st.builds(
        AttentionCase,
        dtype=DTYPES,
        head_dim=st.sampled_from([64, 80, 128, 256]),
        kv_heads=st.integers(1, 2),
        group=st.sampled_from([1, 2, 3, 4, 7, 8, 16]),
        block_size=st.sampled_from([8, 16, 24, 32, 64]),
        sequences=st.lists(st.tuples(cached, counts), min_size=1, max_size=4).map(tuple),
        window=st.sampled_from([None, None, 1, 5, 16, 37, 1000]),
        kind=st.sampled_from([None, None, "int8", "fp8"]),
        seed=SEEDS,
        device=st.just("cpu"),
    )


LLAMA = AttentionCase(
    torch.bfloat16, head_dim=64, kv_heads=2, group=4, block_size=16, sequences=((20, 3), (0, 0)), window=None,
    kind=None, seed=3,
)  # fmt: skip


@pytest.mark.parametrize("kind", [None, "int8", "fp8"])
@pytest.mark.parametrize("dtype", BOUNDS)
def test_every_kind_of_memory_with_every_dtype(dtype: torch.dtype, kind: KvKind | None) -> None:
    case = replace(LLAMA, dtype=dtype, kind=kind)
    assert is_right(check_decode(case, splits=1))
    assert is_right(check_prefill(case))


def test_kernels_run_in_the_interpreter() -> None:
    assert INTERPRETED or torch.cuda.is_available()


@SETTINGS
@given(
    case=cases(counts=st.sampled_from([0, 1, 1])),
    splits=st.sampled_from([1, 2, 4, 8]),
    keys=st.sampled_from([16, 32]),
)
def test_decode_attention(case: AttentionCase, splits: int, keys: int) -> None:
    assert is_right(check_decode(case, splits=splits, shape=DecodeShape(keys=keys, warps=4, stages=1)))
    event(f"an empty sequence: {0 in case.lengths}")


@SETTINGS
@given(case=cases(counts=st.sampled_from([0, 1, 2, 9, 20, 33])), rows=st.sampled_from([16, 32, 64]))
def test_prefill_attention(case: AttentionCase, rows: int) -> None:
    assert is_right(check_prefill(case, shape=PrefillShape(rows=rows, keys=16, warps=4, stages=1)))


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
@given(
    st.builds(
        WriteCase,
        dtype=DTYPES,
        block_size=st.sampled_from([8, 16, 24, 64]),
        kv_heads=st.integers(1, 3),
        head_dim=st.sampled_from([64, 80, 128, 256]),
        tokens=st.integers(0, 9),
        seed=SEEDS,
        device=st.just("cpu"),
    )
)
def test_kv_write(case: WriteCase) -> None:
    assert is_right(check_kv_write(case))


@SETTINGS
@given(
    st.builds(
        PackedWriteCase,
        kind=st.sampled_from(["int8", "fp8"]),
        dtype=DTYPES,
        kv_heads=st.just(2),
        head_dim=st.sampled_from([64, 80, 128]),
        block_size=st.sampled_from([8, 16, 24]),
        chunks=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 20)), min_size=1, max_size=3).map(tuple),
        seed=SEEDS,
        device=st.just("cpu"),
    )
)
def test_kv_write_into_quantized_blocks(case: PackedWriteCase) -> None:
    assert is_right(check_packed_write(case))


@SETTINGS
@given(
    st.builds(
        CopyCase,
        shape=st.sampled_from([(8, 2, 64), (16, 1, 80), (24, 3, 64), (1037,), (5,)]),
        dtype=st.sampled_from([*BOUNDS, torch.int8]),
        count=st.integers(0, 3),
        within=st.booleans(),
        seed=SEEDS,
        device=st.just("cpu"),
    )
)
def test_block_copy(case: CopyCase) -> None:
    assert is_right(check_block_copy(case))


def test_blocks_of_another_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="don't fit"):
        copy_blocks(torch.zeros(2, 3, 8), torch.zeros(2, 3, 9), torch.zeros(1, 2, dtype=torch.int32))


@SETTINGS
@given(
    st.builds(
        NormCase,
        dtype=DTYPES,
        rows=st.integers(0, 5),
        size=st.sampled_from([1, 64, 80, 576, 1000]),
        added=st.booleans(),
        seed=SEEDS,
        device=st.just("cpu"),
    )
)
def test_rms_norm(case: NormCase) -> None:
    assert is_right(check_rms_norm(case))


@SETTINGS
@given(
    st.builds(
        RotationCase,
        dtype=DTYPES,
        tokens=st.integers(0, 4),
        padding=st.integers(0, 2),
        kv_heads=st.integers(1, 2),
        group=st.sampled_from([1, 3]),
        head_dim=st.sampled_from([16, 64, 80, 128, 256]),
        seed=SEEDS,
        device=st.just("cpu"),
    )
)
def test_rotation_and_write(case: RotationCase) -> None:
    assert is_right(check_rotation(case))


@SETTINGS
@given(
    st.builds(
        GateCase,
        dtype=DTYPES,
        rows=st.integers(0, 4),
        size=st.sampled_from([1, 16, 160, 1025, 2048]),
        activation=st.sampled_from(["silu", "gelu_tanh"]),
        seed=SEEDS,
        device=st.just("cpu"),
    )
)
def test_gating(case: GateCase) -> None:
    assert is_right(check_gating(case))


def test_tiles_hold_every_token_once() -> None:
    chunks: Sequence[tuple[int, int, int, int]] = [(0, 0, 5, 10), (1, 5, 0, 3), (2, 5, 7, 0)]
    tiles = cut_into_tiles(chunks, 3)
    assert tiles == [(0, 3, 2, 13), (0, 0, 3, 10), (2, 11, 1, 6), (2, 8, 3, 3), (2, 5, 3, 0)]


def missing_tile(patch: pytest.MonkeyPatch) -> Checked:
    """A tile of prefill isn't computed, so that its rows stay as they were."""
    right = kernel_checks.cut_into_tiles
    patch.setattr(kernel_checks, "cut_into_tiles", lambda chunks, tokens: right(chunks, tokens)[1:])
    return check_prefill(LLAMA)


def key_of_the_future(patch: pytest.MonkeyPatch) -> Checked:
    """Decoding reads one key more than there are."""
    right = kernel_checks.decode_attention
    patch.setattr(
        kernel_checks, "decode_attention",
        lambda *given, lengths, **named: right(*given, lengths=lengths + 1, **named),
    )  # fmt: skip
    return check_decode(LLAMA, splits=1)


def padding_written(patch: pytest.MonkeyPatch) -> Checked:
    """A padding row goes to a slot."""
    right = kernel_checks.rotate_and_write
    patch.setattr(
        kernel_checks, "rotate_and_write",
        lambda qkv, turn, kv, slots: right(qkv, turn, kv, slots.where(slots >= 0, 31 - slots.max())),
    )  # fmt: skip
    return check_rotation(RotationCase(torch.float32, 3, 1, kv_heads=1, group=1, head_dim=64, seed=5))


def other_block_written(patch: pytest.MonkeyPatch) -> Checked:
    """A quantized block goes to its neighbour's place."""
    right = kernel_checks.write_packed

    def wrong(memory: torch.Tensor, *given: Any, blocks: torch.Tensor, **named: Any) -> None:
        right(memory, *given, blocks=(blocks + 1) % memory.shape[1], **named)

    patch.setattr(kernel_checks, "write_packed", wrong)
    chunks = ((3, 9),)
    return check_packed_write(PackedWriteCase("int8", torch.float32, 2, 64, 16, chunks, seed=1))


def slightly_wrong_norm(patch: pytest.MonkeyPatch) -> Checked:
    """One element in five hundred is 1 % off."""
    right = kernel_checks.rms_norm

    def wrong(*given: Any, out: torch.Tensor) -> None:
        right(*given, out=out)
        out[0, out[0].abs().argmax()] *= 1.01

    patch.setattr(kernel_checks, "rms_norm", wrong)
    return check_rms_norm(NormCase(torch.float16, 1, 500, added=False, seed=1))


@pytest.mark.parametrize(
    "mistake", [missing_tile, key_of_the_future, padding_written, other_block_written, slightly_wrong_norm]
)
def test_these_checks_notice(mistake: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = mistake(monkeypatch)
    assert not checked.is_right
    if mistake is other_block_written:
        assert "another block was written" in checked.faults
