"""Quantized KV memory: how far it is from the full width, and that nothing else changes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentctx_engine import Engine, SamplingParams
from agentctx_engine.attention.quantized import KvKind, Packing
from agentctx_engine.models import Family, Model, load_model, random_config, random_model
from agentctx_engine.runtime import EngineMemoryError

KINDS: tuple[KvKind, ...] = ("int8", "fp8")
# Of the largest number of its block and head: half a step of 127. Of the number itself: half of the last of 3 bits.
INT8_BOUND, FP8_BOUND = 0.5 / 127, 2.0**-4
ANSWER = SamplingParams(max_tokens=8, stop_token_ids=())
PROMPT = [Random(5).randrange(1, 250) for _ in range(100)]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), kind=st.sampled_from(KINDS), exponent=st.integers(-12, 12))
def test_a_packed_number_is_as_near_as_its_bits_allow(seed: int, kind: KvKind, exponent: int) -> None:
    packing = Packing(kind, block_size=4, kv_heads=2, head_dim=8, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randn((2, 3, 4, 2, 8), generator=generator) * 10.0**exponent
    blocks[:, 1, :, 0] = 0
    packed = packing.pack(blocks)
    assert packed.shape == (2, 3, packing.row_bytes)
    back = packing.unpack(packed)
    largest = blocks.abs().amax(dim=(2, 4), keepdim=True)
    error = (back - blocks).abs()
    bound = largest * INT8_BOUND if kind == "int8" else blocks.abs() * FP8_BOUND + largest * 2.0**-9 / 448
    assert (error <= bound * 1.001).all()
    assert torch.equal(packing.unpack(packing.pack(back)), back), "packing again moves what was packed"


@cache
def model(family: Family) -> Model:
    return random_model(family, config=random_config(family, vocab_size=256, num_layers=3, window=24))


def logits(engine: Engine, prompt: list[int] = PROMPT) -> npt.NDArray[np.float32]:
    result = engine.generate(prompt, SamplingParams(max_tokens=1), keep_logits=True)
    assert result.samples[0].logits is not None
    return np.asarray(result.samples[0].logits[0], dtype=np.float32)


def relative_error(ours: npt.NDArray[np.float32], exact: npt.NDArray[np.float32]) -> float:
    """Root mean square of the difference, of that of the logits."""
    return float(np.sqrt(np.mean((ours - exact) ** 2) / np.mean(exact**2)))


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize(("kind", "most"), [("int8", 0.02), ("fp8", 0.08)])
def test_the_error_of_the_logits(family: Family, kind: KvKind, most: float) -> None:
    """Read in chunks, so that all but the last chunk's keys and values are read back from the packed memory."""
    options: dict[str, Any] = {"num_blocks": 40, "max_step_tokens": 16, "max_samples": 4, "block_size": 8}
    with Engine(model(family), **options) as engine:
        exact = logits(engine)
    with Engine(model(family), kv_kind=kind, **options) as engine:
        error = relative_error(logits(engine), exact)
        again = logits(engine)  # the prefix is reused
    print(f"{family}, {kind}: logits differ by {error:.2%}")
    assert 0 < error <= most
    assert relative_error(again, exact) <= most


@pytest.mark.parametrize("kind", KINDS)
def test_reuse_forks_and_decodes_work_as_ever(kind: KvKind) -> None:
    """Answers are those that the same engine gives alone, whatever is shared, forked or evicted around them."""
    options: dict[str, Any] = {"num_blocks": 30, "block_size": 8, "kv_kind": kind}
    with Engine(model("llama"), prefix_cache="none", **options) as engine:
        wanted = engine.generate(PROMPT, ANSWER).token_ids
    with Engine(model("llama"), **options) as engine:
        several = SamplingParams(max_tokens=8, n=2, stop_token_ids=())
        first = engine.generate(PROMPT, several)
        assert [sample.token_ids for sample in first.samples] == [wanted, wanted]
        again = engine.generate(PROMPT, ANSWER)
        assert (again.cached_tokens, again.token_ids) == (96, wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_every_tier_and_snapshots_keep_it(kind: KvKind, tmp_path: Path) -> None:
    options: dict[str, Any] = {"num_blocks": 16, "block_size": 8, "kv_kind": kind}
    texts = [[Random(seed).randrange(1, 250) for _ in range(100)] for seed in range(4)]
    with Engine(model("llama"), prefix_cache="none", **options) as engine:
        wanted = [engine.generate(text, ANSWER).token_ids for text in texts]
    with Engine(model("llama"), host_blocks=14, disk_dir=tmp_path / "tier", **options) as engine:
        for text, answer in zip(texts, wanted, strict=True):
            assert engine.generate(text, ANSWER).token_ids == answer
        for text, answer in zip(texts, wanted, strict=True):
            result = engine.generate(text, ANSWER)
            assert result.token_ids == answer
            assert result.host_tokens + result.disk_tokens > 0
        engine.save(texts[0], tmp_path / "prefix")
    with Engine(model("llama"), **options) as engine:
        engine.restore(tmp_path / "prefix")
        result = engine.generate(texts[0], ANSWER)
        assert (result.cached_tokens, result.token_ids) == (96, wanted[0])


def test_it_takes_a_quarter_of_the_memory() -> None:
    with (
        Engine(model("llama"), num_blocks=16) as full,
        Engine(model("llama"), num_blocks=16, kv_kind="int8") as packed,
    ):
        # 16 tokens of 2 heads of 16 numbers, and 2 scales of 4 bytes.
        assert packed.state().block_bytes / full.state().block_bytes == (512 + 8) / 2048


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="kv_kind='int4'"):
        Engine(model("llama"), kv_kind="int4")
    with pytest.raises(ValueError, match="drop kv_kind"):
        Engine(model("llama"), kv_kind="int8", deterministic=True)
    with pytest.raises(EngineMemoryError, match="can't be had"):
        Engine(model("llama"), kv_kind="int8", num_blocks=2**44)


@pytest.mark.real
def test_the_error_on_smollm2(smollm2_gguf: Path) -> None:
    """After 400 tokens, read in chunks."""
    smollm2 = load_model(smollm2_gguf)
    random = Random(1)
    prompt = [random.randrange(smollm2.config.vocab_size) for _ in range(400)]

    def run(**options: Any) -> npt.NDArray[np.float32]:
        with Engine(smollm2, num_blocks=64, max_step_tokens=128, **options) as engine:
            return logits(engine, prompt)

    exact = run()
    for kind, most in (("int8", 0.03), ("fp8", 0.1)):
        error = relative_error(run(kv_kind=kind), exact)
        print(f"SmolLM2, {kind}: logits differ by {error:.2%}")
        assert 0 < error <= most
