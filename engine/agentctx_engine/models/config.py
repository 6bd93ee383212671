"""ModelConfig: everything that tells one decoder from another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Family = Literal["llama", "mistral", "qwen2", "qwen3", "gemma3"]
FAMILIES: tuple[Family, ...] = ("llama", "mistral", "qwen2", "qwen3", "gemma3")


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding: base frequency, and how it is stretched beyond the trained context.

    scaling: ``linear`` divides every frequency by ``factor``; ``llama3`` divides the low ones and blends
    between ``low_freq_factor`` and ``high_freq_factor`` wavelengths of ``original_context`` (Llama 3.1);
    ``yarn`` blends by ``beta_fast``/``beta_slow`` rotations and multiplies queries and keys by
    ``attention_factor`` (arXiv 2309.00071).
    """

    theta: float = 10_000.0
    scaling: Literal["none", "linear", "llama3", "yarn"] = "none"
    factor: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True  # yarn: round the blend's bounds to whole dimensions
    divisors: tuple[float, ...] = ()  # per pair, as GGUF files store llama3's scaling; replaces ``scaling``

    def __post_init__(self) -> None:
        if not self.theta > 1:
            raise ValueError(f"a rope base of {self.theta} turns nothing: it must be above 1")
        if self.scaling == "llama3" and not self.low_freq_factor < self.high_freq_factor:
            raise ValueError(
                f"llama3's low_freq_factor {self.low_freq_factor} must be below its "
                f"high_freq_factor {self.high_freq_factor}"
            )


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that see the same part of the context, and so share block tables."""

    window: int | None  # a token sees itself and the window - 1 tokens before it; None: all
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The shape and the rules of one decoder. ``windows`` and ``ropes`` have one entry per layer."""

    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    windows: tuple[int | None, ...]
    ropes: tuple[Rope, ...]
    max_context: int
    norm_eps: float = 1e-6
    tied_embeddings: bool = False
    attention_bias: bool = False  # Qwen2: biases on the query, key and value projections
    qk_norm: bool = False  # Qwen3, Gemma 3: RMS norm of each query and key head before the rotation
    sandwich_norms: bool = False  # Gemma: a second norm after attention and after the MLP
    activation: Literal["silu", "gelu_tanh"] = "silu"
    embedding_scale: float = 1.0
    attention_scale: float = field(default=0.0)  # 0: head_dim ** -0.5
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"{self.num_heads} heads can't share {self.num_kv_heads} KV heads evenly")
        if self.head_dim % 2:
            raise ValueError(f"a head of {self.head_dim} numbers has no pairs to rotate")
        for name, per_layer in (("windows", self.windows), ("ropes", self.ropes)):
            if len(per_layer) != self.num_layers:
                raise ValueError(f"{name} has {len(per_layer)} entries for {self.num_layers} layers")

    @property
    def softmax_scale(self) -> float:
        return self.attention_scale or self.head_dim**-0.5

    @property
    def layer_groups(self) -> tuple[LayerGroup, ...]:
        """Layers by window, full attention first, then wider windows before narrower ones."""
        windows = sorted(set(self.windows), key=lambda w: (w is not None, -(w or 0)))
        return tuple(
            LayerGroup(window, tuple(i for i, w in enumerate(self.windows) if w == window))
            for window in windows
        )

    @property
    def group_of_layer(self) -> tuple[int, ...]:
        """Of each layer, which of ``layer_groups`` it is in."""
        groups = {group.window: number for number, group in enumerate(self.layer_groups)}
        return tuple(groups[window] for window in self.windows)

    @property
    def kv_values_per_token(self) -> int:
        """Numbers (not bytes) stored per token in one layer: keys and values of all KV heads."""
        return 2 * self.num_kv_heads * self.head_dim
