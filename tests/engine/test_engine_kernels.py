"""The C kernels beside PyTorch: weights to the last bit, products and attention to rounding, and an engine without them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from gguf.constants import GGMLQuantizationType
from hypothesis import given, settings
from hypothesis import strategies as st

from agentctx_engine.attention import kv_cache
from agentctx_engine.attention.batch import Batch, Chunk
from agentctx_engine.attention.cpu import CpuAttention
from agentctx_engine.attention.reference import ReferenceAttention
from agentctx_engine.attention.tiles import TILE
from agentctx_engine.kernels import MOST_ROWS, Kernels, library, load_kernels
from agentctx_engine.models import random_model
from agentctx_engine.models.coded_weight import CodedWeight, Codes, codes_of, stack
from agentctx_engine.models.config import Rope
from agentctx_engine.models.gguf_scales import scales_of
from agentctx_engine.models.rope import Rotation, rotate
from agentctx_engine.runtime import Engine, SamplingParams
from tests.conftest import require

SIMPLE = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
IN_256 = ("Q4_K", "Q5_K", "Q6_K")


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    found = load_kernels()
    require(found is not None, "a C compiler")
    assert found is not None
    return found


def file_bytes(kind: str, rows: int, columns: int, seed: int) -> np.ndarray:
    """A quantized matrix as it stands in a file: [rows, bytes]."""
    random = np.random.default_rng(seed)
    if kind in SIMPLE:
        values = random.standard_normal((rows, columns)).astype(np.float32)
        return gguf.quantize(values, GGMLQuantizationType[kind])
    size = {"Q4_K": 144, "Q5_K": 176, "Q6_K": 210}[kind]  # any bytes will do, but the halves must be numbers
    blocks = random.integers(0, 256, (rows, columns // 256, size), dtype=np.uint8)
    halves = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}[kind]
    for at in halves:
        scale = random.standard_normal((rows, columns // 256, 1)).astype(np.float16)
        blocks[..., at : at + 2] = scale.view(np.uint8).reshape(rows, columns // 256, 2)
    return blocks.reshape(rows, -1)


def coded(kind: str, rows: int, columns: int, seed: int = 0) -> tuple[Codes, torch.Tensor]:
    """The codes of a matrix, and its values as the gguf package gives them."""
    raw = file_bytes(kind, rows, columns, seed)
    values = torch.from_numpy(gguf.dequantize(raw, GGMLQuantizationType[kind]).reshape(rows, columns))
    parts = scales_of(raw, GGMLQuantizationType[kind])
    assert parts is not None
    codes = codes_of(values, *(torch.from_numpy(p) for p in parts))
    assert codes is not None, "some value has no code"
    return codes, values


@pytest.mark.parametrize("kind", SIMPLE + IN_256)
def test_codes_give_the_dequantized_weights_to_the_last_bit(kind: str, kernels: Kernels) -> None:
    """In the kernel itself: rows of the identity read the matrix back, and a sum with zeros doesn't round."""
    codes, values = coded(kind, 16, 256)
    weight = CodedWeight(codes, kernels)
    identity = torch.eye(256)
    back = torch.cat([weight(identity[i : i + MOST_ROWS]) for i in range(0, 256, MOST_ROWS)]).T
    assert torch.equal(back.contiguous(), values)


def test_values_that_are_no_codes_stay_floats() -> None:
    codes, values = coded("Q4_1", 4, 64)
    values[2, 3] = float(np.nextafter(np.float32(values[2, 3]), np.float32(np.inf)))
    assert codes_of(values, codes.scale, codes.offset) is None
    assert scales_of(np.zeros((4, 8), np.uint8), GGMLQuantizationType.Q2_K) is None


@pytest.mark.parametrize("rows", range(1, MOST_ROWS + 1))
@pytest.mark.parametrize("kinds", [("Q4_1",), ("Q6_K",), ("Q8_0", "Q6_K", "Q4_K")])
def test_products_equal_those_of_float64(rows: int, kinds: tuple[str, ...], kernels: Kernels) -> None:
    parts = [coded(kind, 20 + 4 * i, 512, seed=i) for i, kind in enumerate(kinds)]
    weight = CodedWeight(stack([codes for codes, _ in parts]), kernels)
    values = torch.cat([v for _, v in parts])
    x = torch.randn(rows, 512, generator=torch.Generator().manual_seed(rows))
    exact = x.double() @ values.double().T
    bound = 512 * 2.0**-24 * (x.abs().double() @ values.abs().double().T)
    assert bool(((weight(x).double() - exact).abs() <= bound).all())


def test_more_threads_give_the_same_bits(kernels: Kernels) -> None:
    weight = CodedWeight(coded("Q4_1", 512, 256)[0], kernels)
    x = torch.randn(3, 256)
    alone = weight(x)
    torch.set_num_threads(3)
    try:
        assert torch.equal(weight(x), alone)
    finally:
        torch.set_num_threads(1)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_attention_equals_the_reference(kernels: Kernels, data: st.DataObject) -> None:
    """Decoding sequences among prefill chunks, scattered blocks, windows, several heads on one KV head."""
    block_size = data.draw(st.sampled_from([4, 16]))
    head_dim = data.draw(st.sampled_from([16, 48, 64, 128, 256]))
    kv_heads, sharing = data.draw(st.sampled_from([1, 2])), data.draw(st.sampled_from([1, 2, 3, 8]))
    window = data.draw(st.sampled_from([None, 1, 7, 40]))
    starts = data.draw(st.lists(st.integers(0, 90), min_size=1, max_size=4))
    counts = data.draw(st.lists(st.sampled_from([1, 1, 2, 9]), min_size=len(starts), max_size=len(starts)))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    needed = [-(-(s + c) // block_size) for s, c in zip(starts, counts, strict=True)]
    ids = iter(torch.randperm(sum(needed), generator=generator).tolist())
    tables = [np.array([next(ids) for _ in range(n)], np.int32) for n in needed]
    chunks = [Chunk([0] * c, s, (t,)) for s, c, t in zip(starts, counts, tables, strict=True)]
    batch = Batch.build(chunks, block_size=block_size)
    shape = (2, sum(needed), block_size, kv_heads, head_dim)
    cache = torch.randn(shape, generator=generator)
    queries = torch.randn((batch.num_tokens, kv_heads * sharing, head_dim), generator=generator)
    plans = [a.plan(batch, [window], torch.float32) for a in (CpuAttention(kernels), ReferenceAttention())]
    ours, exact = (plan.attend(0, queries, cache, 0.3) for plan in plans)
    assert torch.allclose(ours, exact, atol=2e-5, rtol=1e-4)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_attention_of_chunks_equals_the_reference(kernels: Kernels, data: st.DataObject) -> None:
    """More keys than the kernel takes at once, more rows than a panel has, rows that are part of wider ones; on every
    machine, though only those with wide vectors prefer it."""
    head_dim = data.draw(st.sampled_from([16, 48, 64, 256]))
    kv_heads, sharing = data.draw(st.sampled_from([1, 3])), data.draw(st.sampled_from([1, 3, 4]))
    window = data.draw(st.sampled_from([None, 1, 40, 129, 300]))
    start, count = data.draw(st.integers(0, 400)), data.draw(st.sampled_from([1, 2, 5, 16, 17, 70]))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 999)))
    blocks = -(-(start + count) // 16)
    table = torch.randperm(blocks + 3, generator=generator)[:blocks].int()
    batch = Batch.build([Chunk([0] * count, start, (table.numpy(),))], block_size=16)
    cache = torch.full(
        (2, blocks + 3, 16, kv_heads, head_dim), float("nan")
    )  # of other sequences, and not yet there
    slots = (table.long()[:, None] * 16 + torch.arange(16)).flatten()[: start + count]
    held = torch.randn((2, start + count, kv_heads, head_dim), generator=generator)
    cache.flatten(1, 2)[:, slots] = held
    wider = torch.randn((count, kv_heads * (sharing + 2), head_dim), generator=generator)
    queries = wider[:, : kv_heads * sharing]
    exact = ReferenceAttention().plan(batch, [window], torch.float32).attend(0, queries, cache, 0.3)
    for threads in (1, 3):
        torch.set_num_threads(threads)
        try:
            out = torch.full((count, kv_heads * sharing * head_dim), float("nan"))
            kernels.chunk_attention(queries, cache, out, table=table, start=start, window=window, scale=0.3)
        finally:
            torch.set_num_threads(1)
        torch.testing.assert_close(out, exact, atol=2e-5, rtol=1e-4)


def test_a_key_that_is_no_number_shows(kernels: Kernels) -> None:
    """In every row that sees it, so that the step is known to have failed."""
    cache, queries, out = torch.randn(2, 2, 16, 1, 16), torch.randn(20, 1, 16), torch.zeros(20, 16)
    cache[0, 0, 3] = float("nan")
    table = torch.tensor([0, 1], dtype=torch.int32)
    kernels.chunk_attention(queries, cache, out, table=table, start=0, window=None, scale=1.0)
    assert bool(out[3:].isnan().all())
    assert bool(out[:3].isfinite().all())


@pytest.mark.parametrize("size", [16, 40, 576])
def test_norms_and_gates_equal_those_of_torch(size: int, kernels: Kernels) -> None:
    generator = torch.Generator().manual_seed(size)
    x, weight = torch.randn(3, size, generator=generator) * 30, torch.randn(size, generator=generator)
    expected = F.rms_norm(x, (size,), weight, 1e-5)
    torch.testing.assert_close(kernels.rms_norm(x, weight, 1e-5), expected, rtol=1e-5, atol=1e-6)
    gate_up = torch.randn(3, 2 * 16 * size, generator=generator) * 40
    gate_up[0, :4] = torch.tensor([0.0, -0.0, 200.0, -200.0])
    gate, up = gate_up.chunk(2, dim=-1)
    torch.testing.assert_close(kernels.gate_silu(gate_up), F.silu(gate) * up, rtol=1e-5, atol=1e-6)


def test_rotating_and_writing_equal_those_of_torch(kernels: Kernels) -> None:
    """Four rows of which three are tokens: the padding row is written nowhere."""
    heads, kv_heads, head_dim = 6, 2, 16
    generator = torch.Generator().manual_seed(2)
    qkv = torch.randn(4, heads + 2 * kv_heads, head_dim, generator=generator)
    turn = Rotation([Rope(theta=100.0)], head_dim).at(torch.tensor([3, 900, 41, 0]))[Rope(theta=100.0)]
    slots = torch.tensor([17, 0, 5])
    expected, ours = torch.zeros(2, 2, 5, 4, kv_heads, head_dim)
    turned = rotate(qkv[:, : heads + kv_heads], turn)
    kv_cache.write(expected, slots, turned[:3, heads:], qkv[:3, heads + kv_heads :])
    own = qkv.clone()
    kernels.rotate_and_write(own, turn, ours, slots, heads + kv_heads)
    torch.testing.assert_close(own[:3, :heads], turned[:3, :heads], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)


def test_scores_far_apart_are_no_overflow(kernels: Kernels) -> None:
    batch = Batch.build([Chunk([0], 40, (np.arange(3, dtype=np.int32),))], block_size=16)
    cache = torch.randn(2, 3, 16, 1, 64) * 300
    queries = torch.randn(1, 2, 64) * 300
    plans = [a.plan(batch, [None], torch.float32) for a in (CpuAttention(kernels), ReferenceAttention())]
    ours, exact = (plan.attend(0, queries, cache, 1.0) for plan in plans)
    torch.testing.assert_close(ours, exact, rtol=1e-4, atol=1e-2)


def test_deterministic_tiles_never_reach_the_kernels(
    monkeypatch: pytest.MonkeyPatch, kernels: Kernels
) -> None:
    """They read the float matrices, whatever is compiled: their bits don't depend on a compiler."""
    assert TILE > MOST_ROWS, "or a product of codes might be taken"
    calls = []
    names = ("rms_norm", "gate_silu", "rotate_and_write", "paged_attention", "chunk_attention")
    for name in names:
        original = getattr(Kernels, name)

        def counted(
            self: Kernels, *args: Any, name: str = name, original: Any = original, **more: Any
        ) -> Any:
            calls.append(name)
            return original(self, *args, **more)

        monkeypatch.setattr(Kernels, name, counted)
    for deterministic in (True, False):
        with Engine(random_model("llama"), num_blocks=32, deterministic=deterministic) as engine:
            engine.generate(list(range(50)), SamplingParams(max_tokens=3, stop_token_ids=()))
        if deterministic:
            assert calls == []
    assert set(calls) >= {*names} - {"chunk_attention"}


def test_an_engine_says_which_it_uses(monkeypatch: pytest.MonkeyPatch, kernels: Kernels) -> None:
    prompt = list(range(50))
    texts = {}
    for choice in ("c", "torch"):
        monkeypatch.setenv("AGENTCTX_ENGINE_KERNELS", choice)
        with Engine(random_model("gemma3"), num_blocks=32) as engine:
            assert engine.state().kernels == choice
            texts[choice] = engine.generate(
                prompt, SamplingParams(max_tokens=24, stop_token_ids=())
            ).token_ids
    assert texts["c"] == texts["torch"]


def test_without_a_compiler_it_is_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for compiler in ("no-such-compiler", "false"):
        monkeypatch.setenv("CC", compiler)
        library._load.cache_clear()
        assert load_kernels() is None
    library._load.cache_clear()
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [], "a failed build leaves nothing behind"


def test_a_library_that_others_may_write_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "agentctx").mkdir()
    (tmp_path / "agentctx").chmod(0o777)
    library._load.cache_clear()
    assert load_kernels() is None
    library._load.cache_clear()


def test_processes_that_start_together_all_get_it(tmp_path: Path, kernels: Kernels) -> None:
    code = "from agentctx_engine.kernels import load_kernels; assert load_kernels() is not None"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    started = [subprocess.Popen([sys.executable, "-c", code], env=environment) for _ in range(3)]
    assert [process.wait(timeout=300) for process in started] == [0, 0, 0]
    assert len(list(tmp_path.rglob("*.so"))) == 1
