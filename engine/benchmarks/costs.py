"""What work costs at least: bytes through memory, and floating-point operations of matrix products."""

from __future__ import annotations

from math import prod

from agentctx_engine.models.config import ModelConfig
from agentctx_engine.models.weights import expected_shapes


def decode_bytes(batch: int, context: int, *, heads: int, kv_heads: int, head_dim: int, itemsize: int) -> int:
    """Of one layer's decode attention: each key and value read once, queries read, results written."""
    cached = 2 * context * kv_heads * head_dim
    return batch * (cached + 2 * heads * head_dim) * itemsize


def prefill_flops(tokens: int, cached: int, *, heads: int, head_dim: int) -> int:
    """Of one layer's attention of positions ``cached`` … ``tokens - 1``, each over the positions up to its own: two
    products, two operations a number."""
    keys = (tokens * (tokens + 1) - cached * (cached + 1)) // 2
    return 4 * heads * head_dim * keys


def parameters(config: ModelConfig) -> int:
    """Numbers that a model of this shape has."""
    return sum(prod(shape) for _, shape in expected_shapes(config))


def step_weight_bytes(config: ModelConfig, itemsize: int) -> int:
    """Of the weights that a decode step reads: all but the embedding, of which it reads a row a token, unless the
    embedding is the output matrix too."""
    read = parameters(config)
    if not config.tied_embeddings:
        read -= config.vocab_size * config.hidden_size
    return read * itemsize


def kv_token_bytes(config: ModelConfig, itemsize: int) -> int:
    """Keys and values of one token in all layers."""
    return config.num_layers * config.kv_values_per_token * itemsize
