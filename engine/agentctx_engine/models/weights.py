"""Weights: where a model's tensors come from, under one set of names.

Names, for layer ``i`` (those in brackets only where the config has them)::

    embedding                              [vocab_size, hidden_size]
    layers.i.attention_norm                [hidden_size]
    layers.i.query, .key, .value           [heads * head_dim, hidden_size]
    [layers.i.query_bias, .key_bias, .value_bias]
    [layers.i.query_norm, .key_norm]       [head_dim]
    layers.i.attention_out                 [hidden_size, heads * head_dim]
    [layers.i.attention_out_norm]          [hidden_size]
    layers.i.mlp_norm                      [hidden_size]
    layers.i.gate, .up                     [intermediate_size, hidden_size]
    layers.i.down                          [hidden_size, intermediate_size]
    [layers.i.mlp_out_norm]                [hidden_size]
    final_norm                             [hidden_size]
    [output]                               [vocab_size, hidden_size], unless tied to the embedding

Norm weights multiply as they are (Gemma's checkpoints store them minus one: the reader adds it). Query and key
projections, biases and norms have a rotation's pair of numbers side by side (see ``models.rope``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

from torch import Tensor

from agentctx_engine.models.coded_weight import Codes
from agentctx_engine.models.config import ModelConfig

Progress = Callable[[int, int], None]
"""Called with (tensors read, tensors in all) while a model loads."""


class Weights(Protocol):
    """Tensors by the names above, in any float dtype; read one at a time, so that a file can stay on disk."""

    @property
    def config(self) -> ModelConfig: ...

    def tensor(self, name: str) -> Tensor:
        """Raises ``CheckpointError`` when it is missing or has the wrong shape."""
        ...


@runtime_checkable
class CodedWeights(Weights, Protocol):
    """Weights that may stand quantized in their file."""

    def codes(self, name: str, values: Tensor) -> Codes | None:
        """The codes of ``values``, which ``tensor(name)`` gave; ``None`` if they don't stand in the file as codes."""
        ...


def expected_shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor that a model of this config has, in the order of the forward pass."""
    hidden, head_dim = config.hidden_size, config.head_dim
    queries, keys = config.num_heads * head_dim, config.num_kv_heads * head_dim
    yield "embedding", (config.vocab_size, hidden)
    for i in range(config.num_layers):
        layer: list[tuple[str, tuple[int, ...]]] = [
            ("attention_norm", (hidden,)),
            ("query", (queries, hidden)),
            ("key", (keys, hidden)),
            ("value", (keys, hidden)),
            ("attention_out", (hidden, queries)),
            ("mlp_norm", (hidden,)),
            ("gate", (config.intermediate_size, hidden)),
            ("up", (config.intermediate_size, hidden)),
            ("down", (hidden, config.intermediate_size)),
        ]
        if config.attention_bias:
            layer += [("query_bias", (queries,)), ("key_bias", (keys,)), ("value_bias", (keys,))]
        if config.qk_norm:
            layer += [("query_norm", (head_dim,)), ("key_norm", (head_dim,))]
        if config.sandwich_norms:
            layer += [("attention_out_norm", (hidden,)), ("mlp_out_norm", (hidden,))]
        for name, shape in layer:
            yield f"layers.{i}.{name}", shape
    yield "final_norm", (hidden,)
    if not config.tied_embeddings:
        yield "output", (config.vocab_size, hidden)
