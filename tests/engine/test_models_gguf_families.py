"""Each GGUF architecture, laid out as llama.cpp's converter does it, against the transformers model that it is made from."""

from __future__ import annotations

import math
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("transformers")

from transformers import PreTrainedModel

from agentctx_engine.models import load_model

from . import reference_models
from .reference_models import log_probabilities, prompts, reference_log_probabilities

BOUND = 1e-3
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


def write(model: PreTrainedModel, path: Path, architecture: str) -> Path:
    config = model.config
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    _add_rope(writer, config.rope_parameters, config.head_dim)
    if architecture == "gemma3":
        writer.add_sliding_window(config.sliding_window)
    for name, value in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        writer.add_tensor(
            stored_name(name, architecture), _stored(name, value.numpy(), architecture, config.head_dim)
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def stored_name(name: str, architecture: str) -> str:
    names = _NAMES | (_GEMMA_NAMES if architecture == "gemma3" else {})
    stem, kind = name.rsplit(".", 1)
    if not stem.startswith("model.layers."):
        return f"{names[stem]}.{kind}"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{names[part]}.{kind}"


def _stored(
    name: str, value: npt.NDArray[np.float32], architecture: str, head_dim: int
) -> npt.NDArray[np.float32]:
    if architecture == "gemma3" and "norm" in name:
        return value + 1
    if architecture == "llama" and ("q_proj" in name or "k_proj" in name):  # a rotation's pairs side by side
        heads = value.reshape(-1, 2, head_dim // 2, *value.shape[1:])
        return np.ascontiguousarray(heads.swapaxes(1, 2).reshape(value.shape))
    return value


def _add_rope(writer: gguf.GGUFWriter, rope: dict[str, float], head_dim: int) -> None:
    full = rope.get("full_attention", rope)
    theta = full["rope_theta"]
    writer.add_rope_freq_base(theta)
    match full["rope_type"]:
        case "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(full["factor"])
        case "yarn":
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(full["factor"])
            writer.add_rope_scaling_orig_ctx_len(full["original_max_position_embeddings"])
        case "llama3":
            writer.add_tensor("rope_freqs.weight", _llama3_divisors(full, theta, head_dim))


def _llama3_divisors(rope: dict[str, float], theta: float, head_dim: int) -> npt.NDArray[np.float32]:
    """As the converter writes them."""
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    context = rope["original_max_position_embeddings"]
    divisors = []
    for pair in range(0, head_dim, 2):
        turns = context / (2 * math.pi * theta ** (pair / head_dim))  # over the original context
        if turns > high:
            divisors.append(1.0)
        elif turns < low:
            divisors.append(factor)
        else:
            smooth = (turns - low) / (high - low)
            divisors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(divisors, np.float32)


CASES = {
    "llama": "llama",
    "llama, tied": "llama",
    "llama, linear scaling": "llama",
    "llama 3, llama3 scaling": "llama",
    "qwen2": "qwen2",
    "qwen2, yarn scaling": "qwen2",
    "qwen3": "qwen3",
    "gemma3": "gemma3",
}


@pytest.mark.parametrize("name", CASES)
def test_log_probabilities(name: str, tmp_path: Path) -> None:
    reference = reference_models.make(name)
    if name == "gemma3":
        reference.config.query_pre_attn_scalar = (
            reference.config.head_dim
        )  # GGUF has no field for another scale
        for layer in reference.model.layers:
            layer.self_attn.scaling = reference.config.head_dim**-0.5
    model = load_model(write(reference, tmp_path / "model.gguf", CASES[name]))
    prompt = prompts(1, 512)[0]
    expected = reference_log_probabilities(reference, prompt)
    assert float((log_probabilities(model, prompt) - expected).abs().max()) <= BOUND
