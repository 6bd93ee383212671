"""Same numbers as transformers: every family in Hugging Face format, written by transformers, read and run by ours, in float32.

The bound is the one of real models (``tests/real/test_models_transformers.py``). Here every rule of every family is bent once, to
see that the comparison notices.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

from transformers import AutoModelForCausalLM, Gemma3Config, Gemma3ForConditionalGeneration, PreTrainedModel

from agentctx_engine.models import Model, hf_directory, load_model, open_weights
from agentctx_engine.models.weights import Weights
from agentctx_engine.runtime import Engine, SamplingParams

from . import reference_models
from .reference_models import (
    CHECKPOINTS,
    WINDOW,
    Bent,
    log_probabilities,
    prompts,
    reference_log_probabilities,
)

BOUND = 1e-3
LONG = prompts(1, 512)[0]


@dataclass(frozen=True)
class Checkpoint:
    reference: PreTrainedModel
    path: Path
    expected: Tensor  # [512, vocabulary], of the long prompt

    def difference(self, model: Model) -> float:
        return float((log_probabilities(model, LONG) - self.expected).abs().max())


Checkpoints = Callable[[str], Checkpoint]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    made: dict[str, Checkpoint] = {}

    def get(name: str) -> Checkpoint:
        if name not in made:
            reference = reference_models.make(name)
            path = reference_models.save(reference, tmp_path_factory.mktemp("checkpoint"))
            made[name] = Checkpoint(reference, path, reference_log_probabilities(reference, LONG))
        return made[name]

    return get


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_log_probabilities(name: str, checkpoints: Checkpoints) -> None:
    """Of each token after each of 512, several times the window; ours in chunks, through scattered blocks."""
    checkpoint = checkpoints(name)
    model = load_model(checkpoint.path)
    assert all(window is None or window == WINDOW for window in model.config.windows)
    assert checkpoint.difference(model) <= BOUND


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_greedy_continuations(name: str, checkpoints: Checkpoints) -> None:
    """10 prompts longer than the window, 64 tokens each: the whole engine, all ten in one batch, against ``generate``."""
    checkpoint = checkpoints(name)
    questions = prompts(10, WINDOW + 20)
    expected = reference_models.reference_greedy(checkpoint.reference, questions, 64)
    # Windows kept whole, else a finished text has outgrown the window that its own prompt would need.
    with Engine(load_model(checkpoint.path), num_blocks=256, full_window_cache=True) as engine:
        params = SamplingParams(max_tokens=64, stop_token_ids=())
        results = engine.generate_many(questions, params)
        again = engine.generate(questions[0], params)
    assert [list(result.token_ids) for result in results] == expected
    assert (list(again.token_ids), again.cached_tokens) == (expected[0], 112)


def test_shards_and_half_precision(tmp_path: Path) -> None:
    """Many files with an index; and weights in bfloat16, which are exact in float32."""
    reference = reference_models.make("qwen3").to(torch.bfloat16)
    reference_models.save(reference, tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 5
    # Read again: ``.to`` has rounded its rotation too.
    reread = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager")
    expected = reference_log_probabilities(reread, LONG)
    seen: list[tuple[int, int]] = []
    model = load_model(tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert float((log_probabilities(model, LONG) - expected).abs().max()) <= BOUND
    assert seen == [(i + 1, 46) for i in range(46)]


def test_the_language_model_of_one_that_sees(tmp_path: Path) -> None:
    """Gemma 3 with its image tower: another layout of config.json and other tensor names."""
    text = reference_models.make("gemma3")
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = Gemma3Config(
        text_config=text.config, vision_config={**vision, "image_size": 28, "patch_size": 14}
    )
    seeing = Gemma3ForConditionalGeneration(config)
    seeing.model.language_model.load_state_dict(text.model.state_dict())
    model = load_model(reference_models.save(seeing, tmp_path))
    expected = reference_log_probabilities(text, LONG)
    assert float((log_probabilities(model, LONG) - expected).abs().max()) <= BOUND


def ropes(weights: Weights, **changes: Any) -> dict[str, Any]:
    return {"ropes": tuple(replace(rope, **changes) for rope in weights.config.ropes)}


def windows(weights: Weights, change: Callable[[int], int | None]) -> dict[str, Any]:
    return {"windows": tuple(window and change(window) for window in weights.config.windows)}


Bend = Callable[[Weights], dict[str, Any]]

# What is bent: the checkpoint that should notice, and the change of its config.
BENDS: dict[str, tuple[str, Bend]] = {
    "rope base": ("llama", lambda w: ropes(w, theta=10_500.0)),
    "norm epsilon": ("llama, tied", lambda w: {"norm_eps": 1e-6}),
    "attention scale": ("llama", lambda w: {"attention_scale": 0.17}),
    "activation": ("llama", lambda w: {"activation": "gelu_tanh"}),
    "linear scaling left out": ("llama, linear scaling", lambda w: ropes(w, scaling="none")),
    "llama3 scaling left out": ("llama 3, llama3 scaling", lambda w: ropes(w, scaling="none")),
    "llama3 factor": ("llama 3, llama3 scaling", lambda w: ropes(w, factor=7.0)),
    "llama3 low factor": ("llama 3, llama3 scaling", lambda w: ropes(w, low_freq_factor=2.0)),
    "llama3 high factor": ("llama 3, llama3 scaling", lambda w: ropes(w, high_freq_factor=5.0)),
    "llama3 original context": ("llama 3, llama3 scaling", lambda w: ropes(w, original_context=256)),
    "yarn attention factor": ("qwen2, yarn scaling", lambda w: ropes(w, attention_factor=1.0)),
    "yarn's fast end": ("qwen3, yarn scaling", lambda w: ropes(w, beta_fast=32.0)),
    "yarn's slow end": ("qwen3, yarn scaling", lambda w: ropes(w, beta_slow=2.0)),
    "yarn's whole dimensions": ("qwen3, yarn scaling", lambda w: ropes(w, truncate=True)),
    "qwen2's biases": ("qwen2", lambda w: {"attention_bias": False}),
    "qwen3's head norms": ("qwen3", lambda w: {"qk_norm": False}),
    "mistral's window": ("mistral", lambda w: windows(w, lambda n: n + 1)),
    "qwen2's window": ("qwen2, windowed upper layers", lambda w: windows(w, lambda n: n - 1)),
    "gemma's window": ("gemma3", lambda w: windows(w, lambda n: n + 1)),
    "no window": ("gemma3", lambda w: windows(w, lambda n: None)),
    "gemma's local rope": ("gemma3", lambda w: ropes(w, theta=1e6)),
    "gemma's head norms": ("gemma3", lambda w: {"qk_norm": False}),
    "gemma's second norms": ("gemma3", lambda w: {"sandwich_norms": False}),
    "gemma's embedding scale": ("gemma3", lambda w: {"embedding_scale": 1.0}),
    "gemma's attention scale": ("gemma3", lambda w: {"attention_scale": 0.0}),
    "gemma's activation": ("gemma3", lambda w: {"activation": "silu"}),
}  # fmt: skip


@pytest.mark.parametrize("what", BENDS)
def test_a_bent_rule_is_noticed(what: str, checkpoints: Checkpoints) -> None:
    name, bend = BENDS[what]
    checkpoint = checkpoints(name)
    weights = open_weights(checkpoint.path)
    assert checkpoint.difference(Model(Bent(weights, **bend(weights)))) > 5 * BOUND


def test_a_wrong_order_of_rotation_pairs_is_noticed(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = checkpoints("llama")
    monkeypatch.setattr(hf_directory, "interleave", lambda weight, head_dim: weight)
    assert checkpoint.difference(load_model(checkpoint.path)) > 5 * BOUND
