"""How large the measurements are: those of a GPU, and small ones that show on the CPU that each of them runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agentctx_engine.models.config import ModelConfig, Rope
from agentctx_engine.models.random_model import random_config


@dataclass(frozen=True, slots=True)
class Requests:
    """End-to-end measurement: prompts of ``prompt`` tokens, answers of ``answer``, ``batches`` of them together, each
    ``timed_runs`` times."""

    batches: tuple[int, ...]
    prompt: int
    answer: int
    timed_runs: int


@dataclass(frozen=True, slots=True)
class Turn:
    """Turn latency: ``new`` tokens on ``cached`` of them."""

    cached: int
    new: int
    warm_turns: int


@dataclass(frozen=True, slots=True)
class NamedModel:
    name: str
    config: ModelConfig


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured. ``large`` is the model of the turn and of the decode step that has a target."""

    name: str
    longest_checked: int
    checked_attention: int  # how many of the attention configurations are checked
    checked_kv_heads: int
    checked_hidden: int
    copied_bytes: int
    matrix: int  # rows and columns of the product that gives the matrix rate
    heads: int
    kv_heads: int
    head_dim: int
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    # Keys and values of the calls that one timing goes through, several times a GPU's cache.
    rotated_bytes: int
    prompts: tuple[int, ...]
    cached_shares: tuple[float, ...]
    large: NamedModel
    small: NamedModel
    requests: Requests
    turn: Turn
    step_tokens: int


def llama(
    *, layers: int, hidden: int, intermediate: int, heads: int, head_dim: int, tied: bool
) -> ModelConfig:
    """The shape of a Llama 3 with eight KV heads."""
    config = random_config(
        "llama",
        vocab_size=128_256,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=8,
        head_dim=head_dim,
        rope=Rope(theta=500_000.0),
        max_context=131_072,
    )
    return replace(config, windows=(None,) * layers, tied_embeddings=tied)


FULL = Sizes(
    name="full",
    longest_checked=3000,
    checked_attention=8,
    checked_kv_heads=8,
    checked_hidden=4096,
    copied_bytes=4 * 2**30,
    matrix=8192,
    heads=32,
    kv_heads=8,
    head_dim=128,
    batches=(1, 16, 64),
    contexts=(1024, 8192, 32_768),
    rotated_bytes=2**29,
    prompts=(2048, 8192, 32_768),
    cached_shares=(0.0, 0.5, 0.9),
    large=NamedModel(
        "8B",
        llama(layers=32, hidden=4096, intermediate=14_336, heads=32, head_dim=128, tied=False),
    ),
    small=NamedModel(
        "1B", llama(layers=16, hidden=2048, intermediate=8192, heads=32, head_dim=64, tied=True)
    ),
    requests=Requests(batches=(1, 32, 128), prompt=512, answer=128, timed_runs=2),
    turn=Turn(cached=100_000, new=512, warm_turns=5),
    step_tokens=8192,
)

SMALL = Sizes(
    name="small",
    longest_checked=64,
    checked_attention=4,
    checked_kv_heads=2,
    checked_hidden=64,
    copied_bytes=2**20,
    matrix=64,
    heads=4,
    kv_heads=2,
    head_dim=64,
    batches=(1, 2),
    contexts=(32, 64),
    rotated_bytes=1,
    prompts=(32, 64),
    cached_shares=(0.0, 0.5, 0.9),
    large=NamedModel("tiny", random_config("llama", num_layers=1)),
    small=NamedModel("tinier", random_config("llama", num_layers=1, num_heads=2, num_kv_heads=1)),
    requests=Requests(batches=(1, 2), prompt=16, answer=3, timed_runs=1),
    turn=Turn(cached=64, new=16, warm_turns=2),
    step_tokens=64,
)
"""For Triton's interpreter, which takes some tenths of a second for a launch of a few programs."""

BY_NAME = {sizes.name: sizes for sizes in (FULL, SMALL)}
