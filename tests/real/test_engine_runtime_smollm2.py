"""The runtime on a real model, SmolLM2-135M: exact caching, agent turns as predicted, and what determinism costs."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch

from agentctx_engine.models import Model, load_model
from agentctx_engine.runtime import Engine, GenerationResult, SamplingParams

pytestmark = pytest.mark.real
FREE = SamplingParams(max_tokens=3, stop_token_ids=())


@pytest.fixture(scope="module")
def model(smollm2_gguf: Path) -> Model:
    torch.set_num_threads(1)
    return load_model(smollm2_gguf)


def bits(result: GenerationResult) -> np.ndarray:
    logits = result.samples[0].logits
    assert logits is not None
    return logits.view(np.uint32)


def test_deterministic_logits_are_bitwise_equal_however_they_came_about(model: Model) -> None:
    """A 90-token prompt: each way to cut, chunk, batch and block it against a fresh engine without a cache."""
    prompt = Random(1).choices(range(100, 40_000), k=90)
    other = Random(2).choices(range(100, 40_000), k=23)
    with Engine(model, num_blocks=16, prefix_cache="none", deterministic=True) as fresh:
        expected = fresh.generate(prompt, FREE, keep_logits=True)
    settings = [(4, None, "hash"), (16, 33, "hash"), (32, 7, "hash"), (16, None, "radix")]
    for block_size, chunk, kind in settings:
        with Engine(
            model, num_blocks=512 // block_size, block_size=block_size, max_chunk_tokens=chunk, prefix_cache=kind,
            deterministic=True,
        ) as engine:  # fmt: skip
            for cut in (0, 40, 64, 89):
                salt = str(cut)
                if cut:
                    engine.generate([*prompt[:cut], 7], SamplingParams(max_tokens=1), cache_salt=salt)
                mixed = [engine.submit(other, FREE, cache_salt=salt) for _ in range(2)]
                result = engine.generate(prompt, FREE, cache_salt=salt, keep_logits=True)
                assert result.cached_tokens == cut // block_size * block_size
                assert result.cached_tokens + result.computed_tokens == 90
                assert result.token_ids == expected.token_ids
                assert np.array_equal(bits(result), bits(expected)), (block_size, chunk, kind, cut)
                for handle in mixed:
                    handle.result()


def test_ten_agent_turns_hit_exactly_what_the_memory_manager_says(model: Model) -> None:
    """And the whole-prompt rule on real weights: a repeated prompt of 64 tokens computes 16."""
    random = Random(3)
    history = random.choices(range(100, 40_000), k=120)
    with Engine(model, num_blocks=200) as engine:
        predictor = engine.predictor()
        for _ in range(10):
            history += random.choices(range(100, 40_000), k=20)
            lease = predictor.commit(history)
            result = engine.generate(history, SamplingParams(max_tokens=5, stop_token_ids=()))
            assert (result.cached_tokens, result.lost) == (lease.match.hit_tokens, lease.match.lost)
            predictor.release(lease, result.token_ids)
            history += result.token_ids
        prompt = random.choices(range(100, 40_000), k=64)
        assert [engine.generate(prompt, FREE).computed_tokens for _ in range(2)] == [64, 16]


def test_what_determinism_costs_is_known(model: Model, capsys: pytest.CaptureFixture[str]) -> None:
    """Prints how much slower prefill and decode are in deterministic mode; the README's figures come from here."""
    prompt = Random(4).choices(range(100, 40_000), k=256)

    def seconds(deterministic: bool) -> tuple[float, float]:
        with Engine(model, num_blocks=32, prefix_cache="none", deterministic=deterministic) as engine:
            results = [
                engine.generate(prompt, SamplingParams(max_tokens=9, stop_token_ids=())) for _ in range(3)
            ]
        prefill = min(r.time_to_first_token or 0.0 for r in results)
        return prefill, min(r.time_per_token or 0.0 for r in results)

    fast, exact = seconds(False), seconds(True)
    with capsys.disabled():
        print(
            f"\n  deterministic / default, SmolLM2, 1 thread: prefill of 256 tokens {exact[0] / fast[0]:.2f}x, "
            f"decode {exact[1] / fast[1]:.2f}x"
        )
    assert exact[0] < 10 * fast[0]
    assert exact[1] < 10 * fast[1]
