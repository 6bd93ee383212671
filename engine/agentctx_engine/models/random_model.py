"""Tiny models of each family with random weights, made in memory from a seed: nothing to download, nothing to learn."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

from agentctx_engine.models.config import Family, ModelConfig, Rope
from agentctx_engine.models.model import Model
from agentctx_engine.models.weights import expected_shapes


def random_config(
    family: Family,
    *,
    vocab_size: int = 512,
    hidden_size: int = 64,
    intermediate_size: int = 160,
    num_layers: int = 4,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    window: int = 32,
    rope: Rope | None = None,
    max_context: int = 8192,
) -> ModelConfig:
    """A small config with everything that sets its family apart.

    ``window`` counts for the families that have windowed layers: all layers of ``mistral``, and of ``gemma3`` all but
    every third (so that four layers hold both kinds).
    """
    gemma = family == "gemma3"
    rope = rope or Rope(theta=1_000_000.0 if gemma else 10_000.0)
    full = [not gemma or i % 3 == 2 for i in range(num_layers)]
    windows = tuple(None if f and family != "mistral" else window for f in full)
    return ModelConfig(
        family=family,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        windows=windows,
        ropes=tuple(rope if f else Rope(theta=10_000.0) for f in full),
        max_context=max_context,
        tied_embeddings=family in ("qwen3", "gemma3"),
        attention_bias=family == "qwen2",
        qk_norm=family in ("qwen3", "gemma3"),
        sandwich_norms=gemma,
        activation="gelu_tanh" if gemma else "silu",
        embedding_scale=math.sqrt(hidden_size) if gemma else 1.0,
    )


@dataclass(frozen=True)
class RandomWeights:
    """Each tensor from its own generator, so that it depends on the seed, its name and its shape alone.

    device: where tensors are made. Those of a model of billions of weights take minutes on a CPU; each kind of device draws others.
    """

    config: ModelConfig
    seed: int
    device: torch.device | str = "cpu"

    def tensor(self, name: str) -> Tensor:
        shape = dict(expected_shapes(self.config))[name]
        generator = torch.Generator(self.device)
        generator.manual_seed(zlib.crc32(name.encode(), self.seed))  # it has 32 bits
        values = torch.randn(shape, generator=generator, device=self.device)
        if name.endswith("norm"):
            return 1 + 0.1 * values
        if name.endswith("bias"):
            return 0.1 * values
        if name == "embedding":
            return values / self.config.embedding_scale
        return values / math.sqrt(shape[1])


def random_model(
    family: Family = "llama",
    seed: int = 0,
    *,
    config: ModelConfig | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Model:
    """A model of ``family`` in its ``random_config``, or of the given config; equal seeds give equal weights."""
    return Model(RandomWeights(config or random_config(family), seed), dtype=dtype, device=device)
