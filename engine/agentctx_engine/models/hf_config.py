"""A Hugging Face ``config.json`` as a ModelConfig, in the spelling of transformers 4 and of 5."""

from __future__ import annotations

import math
from typing import Literal

from agentctx_engine.models.config import Family, ModelConfig, Rope
from agentctx_engine.models.errors import CheckpointError
from agentctx_engine.models.fields import Fields

_FAMILIES: dict[str, Family] = {
    "llama": "llama",
    "mistral": "mistral",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3_text": "gemma3",
    "gemma3": "gemma3",
}
_ACTIVATIONS: dict[str, Literal["silu", "gelu_tanh"]] = {
    "silu": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_MOST_LAYERS = 1024
_UNSUPPORTED = (
    "mlp_bias",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "use_bidirectional_attention",
    "quantization_config",
)


def from_hf(fields: Fields) -> ModelConfig:
    """Raises ``CheckpointError`` that names the field for a model that the decoder can't run exactly."""
    model_type = fields.text("model_type")
    family = _FAMILIES.get(model_type)
    if family is None:
        known = ", ".join(sorted(_FAMILIES))
        raise fields.error("model_type", f"is {model_type!r}; the engine runs {known}")
    if fields.has("text_config"):  # a model that also sees images: its language model
        fields = fields.section("text_config")
    _refuse_unsupported(fields, family)
    layers = fields.integer("num_hidden_layers")
    if layers > _MOST_LAYERS:
        raise fields.error("num_hidden_layers", f"is {layers}, more than {_MOST_LAYERS}")
    hidden, heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    head_dim = fields.integer("head_dim", hidden // heads)
    gemma = family == "gemma3"
    windows = _windows(fields, family, layers)
    scale = fields.number("query_pre_attn_scalar", head_dim) ** -0.5 if gemma else 0.0
    try:
        return ModelConfig(
            family=family,
            vocab_size=fields.integer("vocab_size", 262_208 if gemma else None),
            hidden_size=hidden,
            intermediate_size=fields.integer("intermediate_size"),
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=fields.integer("num_key_value_heads", heads),
            head_dim=head_dim,
            windows=windows,
            ropes=_ropes(fields, gemma, windows),
            max_context=fields.integer("max_position_embeddings"),
            norm_eps=fields.number("rms_norm_eps", 1e-6),
            tied_embeddings=fields.flag("tie_word_embeddings", gemma),
            attention_bias=family == "qwen2",
            qk_norm=family in ("qwen3", "gemma3"),
            sandwich_norms=gemma,
            activation=_activation(fields, gemma),
            embedding_scale=math.sqrt(hidden) if gemma else 1.0,
            attention_scale=scale,
            eos_token_ids=fields.integers("eos_token_id"),
        )
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(fields.path, f"has settings that don't fit: {error}") from error


def _refuse_unsupported(fields: Fields, family: Family) -> None:
    for name in _UNSUPPORTED:
        if fields.values.get(name):
            raise fields.error(name, f"is {fields.values[name]!r:.80}, which the engine doesn't compute")
    if fields.values.get("attention_bias") and family != "qwen2":
        raise fields.error("attention_bias", f"is set, which the engine doesn't compute for {family}")


def _activation(fields: Fields, gemma: bool) -> Literal["silu", "gelu_tanh"]:
    name = "hidden_activation" if gemma else "hidden_act"
    value = fields.text(name, "gelu_pytorch_tanh" if gemma else "silu")
    if value not in _ACTIVATIONS:
        raise fields.error(name, f"is {value!r}, which the engine doesn't compute")
    return _ACTIVATIONS[value]


def _windows(fields: Fields, family: Family, layers: int) -> tuple[int | None, ...]:
    kinds = fields.texts("layer_types")
    if not kinds:
        kinds = _layer_kinds(fields, family, layers)
    if len(kinds) != layers:
        raise fields.error("layer_types", f"has {len(kinds)} entries for {layers} layers")
    unknown = set(kinds) - {"full_attention", "sliding_attention"}
    if unknown:
        raise fields.error("layer_types", f"has {min(unknown)!r}, which the engine doesn't compute")
    if "sliding_attention" not in kinds:
        return (None,) * layers
    window = fields.integer("sliding_window")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _layer_kinds(fields: Fields, family: Family, layers: int) -> tuple[str, ...]:
    """Which layers have a window, where the file doesn't list them."""
    match family:
        case "gemma3":
            pattern = fields.integer("sliding_window_pattern", fields.integer("_sliding_window_pattern", 6))
            sliding = [bool((i + 1) % pattern) for i in range(layers)]
        case "mistral":
            sliding = [fields.has("sliding_window")] * layers
        case "qwen2" | "qwen3":
            used = fields.flag("use_sliding_window", False) and fields.has("sliding_window")
            first = fields.integer("max_window_layers", 28, least=0)
            sliding = [used and i >= first for i in range(layers)]
        case "llama":
            sliding = [False] * layers
    return tuple("sliding_attention" if s else "full_attention" for s in sliding)


def _ropes(fields: Fields, gemma: bool, windows: tuple[int | None, ...]) -> tuple[Rope, ...]:
    context = fields.integer("max_position_embeddings")
    parameters = fields.section("rope_parameters" if fields.has("rope_parameters") else "rope_scaling")
    if not gemma:
        theta = fields.number("rope_theta", 10_000.0)
        return (_rope(parameters, theta, context),) * len(windows)
    full = parameters.section("full_attention") if parameters.has("full_attention") else parameters
    local = parameters.section("sliding_attention")
    full_rope = _rope(full, fields.number("rope_theta", 1_000_000.0), context)
    local_rope = _rope(local, fields.number("rope_local_base_freq", 10_000.0), context)
    return tuple(full_rope if window is None else local_rope for window in windows)


def _rope(fields: Fields, theta: float, context: int) -> Rope:
    """A rope section. ``theta`` holds where the section doesn't give it, ``context`` where it names no original."""
    theta = fields.number("rope_theta", theta)
    kind = fields.text("rope_type", fields.text("type", "default"))
    if fields.number("partial_rotary_factor", 1.0) != 1.0:
        raise fields.error("partial_rotary_factor", "is not 1, which the engine doesn't compute")
    if kind == "default":
        return Rope(theta)
    factor = fields.number("factor")
    original = fields.integer("original_max_position_embeddings", context)
    if kind == "linear":
        return Rope(theta, "linear", factor)
    if kind == "llama3":
        low, high = fields.number("low_freq_factor"), fields.number("high_freq_factor")
        return Rope(theta, "llama3", factor, original, low_freq_factor=low, high_freq_factor=high)
    if kind == "yarn":
        return Rope(
            theta,
            "yarn",
            factor,
            original,
            beta_fast=fields.number("beta_fast", 32.0),
            beta_slow=fields.number("beta_slow", 1.0),
            attention_factor=_yarn_attention_factor(fields, factor),
            truncate=fields.flag("truncate", True),
        )
    raise fields.error("rope_type", f"is {kind!r}; the engine knows default, linear, llama3 and yarn")


def _yarn_attention_factor(fields: Fields, factor: float) -> float:
    """The one given, or else the paper's, scaled by ``mscale`` and ``mscale_all_dim`` where both are there."""
    if fields.has("attention_factor"):
        return fields.number("attention_factor")
    growth = 0.1 * math.log(factor) if factor > 1 else 0.0
    if fields.has("mscale") and fields.has("mscale_all_dim"):
        return (1 + fields.number("mscale") * growth) / (1 + fields.number("mscale_all_dim") * growth)
    return 1 + growth
