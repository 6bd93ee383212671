"""Same numbers as transformers on real weights: SmolLM2-135M and Gemma 3 270M, both read from the same quantized GGUF, in float32."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

from transformers import AutoModelForCausalLM, PreTrainedModel

from agentctx_engine.models import Model, load_model, open_weights
from agentctx_engine.runtime import Engine, SamplingParams
from tests.engine.reference_models import (
    Bent,
    log_probabilities,
    reference_greedy,
    reference_log_probabilities,
)

from .continuations import openings

pytestmark = pytest.mark.real

BOUND = 1e-3
NEW = SamplingParams(max_tokens=64, stop_token_ids=())


class Pair:
    """One file, read by transformers and by us, and both answers to one prompt of random tokens."""

    def __init__(self, gguf: Path, prompt_tokens: int, *, begin: bool) -> None:
        torch.set_num_threads(1)
        self.gguf = gguf
        self.ours: Model = load_model(gguf)
        self.reference: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            gguf.parent, gguf_file=gguf.name, dtype=torch.float32
        )
        self.openings = openings(gguf, begin=begin)
        self.prompt = Random(6).choices(range(1000, 40_000), k=prompt_tokens)
        self.expected: Tensor = reference_log_probabilities(self.reference, self.prompt)

    def difference(self, model: Model) -> float:
        """The largest among the log-probabilities of every token after each of the prompt's."""
        return float((log_probabilities(model, self.prompt) - self.expected).abs_().max())

    def continuations(self, prompts: list[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
        """Ours, through the engine, and transformers'; the prompts have one length."""
        with Engine(self.ours, num_blocks=128) as engine:
            results = engine.generate_many(prompts, NEW)
        return [list(result.token_ids) for result in results], reference_greedy(self.reference, prompts, 64)


@pytest.fixture(scope="module")
def smollm2(smollm2_gguf: Path) -> Pair:
    return Pair(smollm2_gguf, 512, begin=False)


@pytest.fixture(scope="module")
def gemma3(gemma3_gguf: Path) -> Pair:
    return Pair(gemma3_gguf, 560, begin=True)  # its window is 512


def shown(pair: Pair, name: str, capsys: pytest.CaptureFixture[str]) -> float:
    difference = pair.difference(pair.ours)
    with capsys.disabled():
        print(
            f"\n  {name}, {len(pair.prompt)} tokens: largest difference of log-probabilities {difference:.1e}"
        )
    return difference


def test_smollm2_log_probabilities(smollm2: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(smollm2, "SmolLM2", capsys) <= BOUND


def test_gemma3_log_probabilities(gemma3: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(gemma3, "Gemma 3", capsys) <= BOUND


def test_smollm2_greedy_continuations(smollm2: Pair) -> None:
    ours, expected = smollm2.continuations([opening[:16] for opening in smollm2.openings])
    assert ours == expected


def test_gemma3_greedy_continuations(gemma3: Pair) -> None:
    ours, expected = gemma3.continuations([opening[:17] for opening in gemma3.openings])
    assert ours == expected


def test_gemma3_continues_across_its_window(gemma3: Pair) -> None:
    """490 tokens and 64 more: the first of them leave the window of 512 while it generates."""
    text = [token for opening in gemma3.openings for token in opening]
    ours, expected = gemma3.continuations([(text * 3)[:490]])
    assert ours == expected


def test_a_rope_base_off_by_a_hundredth_is_noticed(smollm2: Pair) -> None:
    weights = open_weights(smollm2.gguf)
    ropes = tuple(replace(rope, theta=rope.theta * 1.01) for rope in weights.config.ropes)
    assert smollm2.difference(Model(Bent(weights, ropes=ropes))) > 5 * BOUND


def test_a_window_off_by_one_is_noticed(gemma3: Pair) -> None:
    weights = open_weights(gemma3.gguf)
    windows = tuple(window and window + 1 for window in weights.config.windows)
    assert gemma3.difference(Model(Bent(weights, windows=windows))) > 5 * BOUND
