"""Small models of every family in Hugging Face format, made and computed by ``transformers``: what ours are compared with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from agentctx_engine.attention import kv_cache
from agentctx_engine.attention.batch import Batch, Chunk
from agentctx_engine.models import Model, ModelConfig
from agentctx_engine.models.weights import Weights

VOCABULARY = 512
WINDOW = 100
_SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,  # not hidden_size / heads
    "max_position_embeddings": 2048,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "bos_token_id": 1,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
_YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
}
_LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
_GEMMA_LINEAR = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
}

# Name → the classes, and the settings beside ``_SHAPE``.
CHECKPOINTS: dict[str, tuple[type[Any], type[Any], dict[str, Any]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "llama 3, llama3 scaling": (LlamaConfig, LlamaForCausalLM, {"rope_parameters": _LLAMA3}),
    "llama, linear scaling": (LlamaConfig, LlamaForCausalLM, {"rope_parameters": _LINEAR}),
    "llama, tied": (LlamaConfig, LlamaForCausalLM, {"tie_word_embeddings": True, "rms_norm_eps": 0.01}),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": WINDOW}),
    "qwen2": (
        Qwen2Config,
        Qwen2ForCausalLM,
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    ),
    "qwen2, yarn scaling": (Qwen2Config, Qwen2ForCausalLM, {"rope_parameters": _YARN}),
    "qwen2, windowed upper layers": (
        Qwen2Config,
        Qwen2ForCausalLM,
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 2},
    ),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"tie_word_embeddings": True}),
    "qwen3, yarn scaling": (
        Qwen3Config,
        Qwen3ForCausalLM,
        {"rope_parameters": {**_YARN, "truncate": False, "beta_fast": 16.0, "attention_factor": 1.3}},
    ),
    "gemma3": (
        Gemma3TextConfig,
        Gemma3ForCausalLM,
        {"sliding_window": WINDOW, "num_hidden_layers": 7, "query_pre_attn_scalar": 24},
    ),
    "gemma3, linear scaling": (
        Gemma3TextConfig,
        Gemma3ForCausalLM,
        {
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "rope_parameters": _GEMMA_LINEAR,
        },
    ),
}


def make(name: str) -> PreTrainedModel:
    """The model, float32, eager attention. Weights are as lively as a trained model's: transformers' own start values give nearly
    the same probability to every token, whatever the layers do."""
    config_class, model_class, settings = CHECKPOINTS[name]
    config = config_class(**{**_SHAPE, **settings})
    config._attn_implementation = "eager"
    model: PreTrainedModel = model_class(config).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            weight.copy_(_lively(key, torch.randn(weight.shape, generator=generator), config))
    return model


def _lively(key: str, values: Tensor, config: PreTrainedConfig) -> Tensor:
    gemma = config.model_type.startswith("gemma3")
    # What a token adds of itself to a tied model's output is kept small, or it would always be followed by itself.
    # Gemma enlarges its embedding by sqrt(hidden_size).
    small = (64 if gemma else 16) if config.tie_word_embeddings else 1
    if key.endswith("norm.weight"):
        norm = 0.3 * values + 1
        if key == "model.norm.weight" and small > 1:
            norm *= small / 4
        return norm - 1 if gemma else norm  # stored minus one
    if key.endswith("bias"):
        return values
    if "embed_tokens" in key:
        return values / small
    return values * math.sqrt(2 / values.shape[1])


def save(model: PreTrainedModel, path: Path, **options: Any) -> Path:
    """Written by transformers itself. ``options``: of ``save_pretrained`` (``max_shard_size``)."""
    model.save_pretrained(path, **options)
    return path


class Bent:
    """A checkpoint's weights under another config."""

    def __init__(self, weights: Weights, **changes: Any) -> None:
        self._weights = weights
        self.config: ModelConfig = replace(weights.config, **changes)

    def tensor(self, name: str) -> Tensor:
        return self._weights.tensor(name)


def prompts(count: int, length: int, vocabulary: int = VOCABULARY) -> list[list[int]]:
    random = Random(4)
    return [random.choices(range(3, vocabulary), k=length) for _ in range(count)]


def reference_log_probabilities(model: PreTrainedModel, tokens: Sequence[int]) -> Tensor:
    """[tokens, vocabulary] float32: of the token after each."""
    with torch.inference_mode():
        return torch.log_softmax(model(torch.tensor([tokens])).logits[0].float(), dim=-1)


def reference_greedy(model: PreTrainedModel, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """transformers' own greedy continuation of prompts of one length, in one batch; nothing ends it."""
    ids = torch.tensor(prompts)
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=count,
            min_new_tokens=count,
            eos_token_id=None,
            pad_token_id=0,
        )
    answers: list[list[int]] = out[:, ids.shape[1] :].tolist()
    return answers


def log_probabilities(
    model: Model, tokens: Sequence[int], *, chunk: int = 200, block_size: int = 16
) -> Tensor:
    """Ours, [tokens, vocabulary]: in chunks, through blocks that lie in no order, so that paging is part of what is compared."""
    config = model.config
    blocks = -(-len(tokens) // block_size)
    caches = kv_cache.allocate(
        layers=config.num_layers,
        num_blocks=blocks + 1,
        block_size=block_size,
        kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        dtype=model.dtype,
    )
    tables = tuple(Random(g).sample(range(1, blocks + 1), blocks) for g in range(len(config.layer_groups)))
    rows = []
    for start in range(0, len(tokens), chunk):
        part = tokens[start : start + chunk]
        batch = Batch.build([Chunk(part, start, tables, len(part))], block_size=block_size)
        rows.append(torch.log_softmax(model.forward(batch, caches), dim=-1))
    return torch.cat(rows)
