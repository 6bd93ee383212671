"""Quantized KV memory with the Triton backend: kernels read and write it as it is, in Triton's interpreter here."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest

from agentctx_engine import Engine, SamplingParams
from agentctx_engine.attention.named import attention_backend
from agentctx_engine.attention.quantized import KvKind, Packing
from agentctx_engine.models import Family, Model, random_config
from agentctx_engine.models.random_model import RandomWeights
from agentctx_engine.runtime import build

from .tape import TapeRecorder

pytest.importorskip("triton")

PROMPT = [Random(5).randrange(1, 250) for _ in range(19)]
ANSWER = SamplingParams(max_tokens=3, stop_token_ids=())
OPTIONS: dict[str, Any] = {"num_blocks": 24, "block_size": 8, "max_step_tokens": 16, "max_samples": 4}


@cache
def model(family: Family, attention: str = "triton") -> Model:
    layers = 3 if family == "gemma3" else 2
    config = random_config(family, vocab_size=256, num_layers=layers, num_heads=2, num_kv_heads=1, window=16)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTCTX_ENGINE_KERNELS", "torch")  # of which a tape knows nothing
        return Model(RandomWeights(config, seed=1), attention=attention_backend(attention))


def logits(engine: Engine) -> npt.NDArray[np.float32]:
    result = engine.generate(PROMPT, SamplingParams(max_tokens=2, stop_token_ids=()), keep_logits=True)
    assert result.samples[0].logits is not None
    return result.samples[0].logits


def relative_error(ours: npt.NDArray[np.float32], exact: npt.NDArray[np.float32]) -> float:
    """Root mean square of the difference, of that of the logits."""
    return float(np.sqrt(np.mean((ours - exact) ** 2) / np.mean(exact**2)))


@cache
def at_full_width(family: Family) -> npt.NDArray[np.float32]:
    with Engine(model(family, "cpu"), **OPTIONS) as engine:
        return logits(engine)


@pytest.mark.parametrize("family", ["llama", "gemma3"])
@pytest.mark.parametrize(("kind", "most"), [("int8", 0.02), ("fp8", 0.08)])
def test_the_error_of_the_logits(family: Family, kind: KvKind, most: float) -> None:
    """Chunks and decodes, within the bounds of memory that is unpacked first; and no layer ever is."""
    with (
        mock.patch.object(Packing, "unpack", side_effect=AssertionError("a layer was unpacked")),
        mock.patch.object(Packing, "pack", side_effect=AssertionError("a layer was packed")),
        Engine(model(family), kv_kind=kind, **OPTIONS) as engine,
    ):
        error = relative_error(logits(engine), at_full_width(family))
    print(f"{family}, {kind}: logits differ by {error:.2%}")
    assert 0 < error <= most


@pytest.mark.parametrize(
    ("attention", "kind"), [("reference", "int8"), ("reference", "fp8"), ("triton", "fp8")]
)
def test_reuse_forks_and_recorded_decodes_work_as_ever(attention: str, kind: KvKind) -> None:
    """Answers are those that the same engine gives alone, whatever is shared or forked; decodes come from a tape."""
    with Engine(model("llama", attention), prefix_cache="none", kv_kind=kind, **OPTIONS) as engine:
        wanted = engine.generate(PROMPT, ANSWER).token_ids
    tape = TapeRecorder()
    with mock.patch.object(build, "recorder_for", return_value=tape):
        engine = Engine(model("llama", attention), kv_kind=kind, cuda_graphs=True, max_context=48, **OPTIONS)
    with engine:
        several = SamplingParams(max_tokens=3, n=2, stop_token_ids=())
        first = engine.generate(PROMPT, several)
        assert [sample.token_ids for sample in first.samples] == [wanted, wanted]
        again = engine.generate(PROMPT, ANSWER)
        assert (again.cached_tokens, again.token_ids) == (16, wanted)
    assert tape.runs == 2 * (ANSWER.max_tokens - 1)


def test_blocks_whose_scales_are_not_aligned_are_unpacked() -> None:
    """Three tokens of one head of 2 numbers: 6 bytes, then a scale that no kernel can address."""
    backend = attention_backend("triton")
    aligned = Packing("int8", block_size=4, kv_heads=1, head_dim=2, dtype=model("llama").dtype)
    odd = Packing("int8", block_size=3, kv_heads=1, head_dim=2, dtype=model("llama").dtype)
    assert [backend.reads_packed(p) for p in (aligned, odd)] == [True, False]  # type: ignore[attr-defined]
