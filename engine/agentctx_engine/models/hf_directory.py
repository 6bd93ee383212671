"""Weights from a Hugging Face model directory: ``config.json`` and one or many safetensors files, memory-mapped.

Nothing but JSON and safetensors is read: a directory that only has pickled weights is refused.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from agentctx_engine.models.config import ModelConfig
from agentctx_engine.models.errors import CheckpointError
from agentctx_engine.models.fields import Fields
from agentctx_engine.models.hf_config import from_hf
from agentctx_engine.models.rope import interleave
from agentctx_engine.models.weights import expected_shapes

_LARGEST_JSON = 64 * 2**20
_NAMES = {
    "embedding": "embed_tokens.weight",
    "final_norm": "norm.weight",
    "attention_norm": "input_layernorm.weight",
    "query": "self_attn.q_proj.weight",
    "key": "self_attn.k_proj.weight",
    "value": "self_attn.v_proj.weight",
    "query_bias": "self_attn.q_proj.bias",
    "key_bias": "self_attn.k_proj.bias",
    "value_bias": "self_attn.v_proj.bias",
    "query_norm": "self_attn.q_norm.weight",
    "key_norm": "self_attn.k_norm.weight",
    "attention_out": "self_attn.o_proj.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
}
_SANDWICH_NAMES = {
    "attention_out_norm": "post_attention_layernorm.weight",
    "mlp_norm": "pre_feedforward_layernorm.weight",
    "mlp_out_norm": "post_feedforward_layernorm.weight",
}
# Where the language model's tensors start in the files: alone, and inside a model that also sees images.
_PREFIXES = ("model.", "language_model.model.", "model.language_model.")
_OUTPUTS = ("lm_head.weight", "language_model.lm_head.weight")
_ROTATED = ("query", "key", "query_bias", "key_bias", "query_norm", "key_norm")


class HfDirectory:
    """Opens the directory; tensors are read when asked for. Raises ``CheckpointError``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config: ModelConfig = from_hf(Fields(path / "config.json", _read_json(path / "config.json")))
        self._files = _tensor_files(path)
        self._open: dict[Path, Any] = {}
        self._shapes = dict(expected_shapes(self.config))
        self._names = _NAMES | (_SANDWICH_NAMES if self.config.sandwich_norms else {})

    def tensor(self, name: str) -> Tensor:
        stored, file = self._locate(name)
        try:
            if file not in self._open:
                self._open[file] = safe_open(file, framework="pt")
            value: Tensor = self._open[file].get_tensor(stored)
        except (SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(file, f"can't be read: {error}", tensor=stored) from error
        if tuple(value.shape) != self._shapes[name]:
            raise CheckpointError(
                file,
                f"has shape {list(value.shape)}, config.json says {list(self._shapes[name])}",
                tensor=stored,
            )
        if not value.is_floating_point():
            raise CheckpointError(file, f"has type {value.dtype}, not a float type", tensor=stored)
        part = name.rsplit(".", 1)[-1]
        if self.config.family == "gemma3" and part.endswith("norm"):
            value = value.float() + 1  # stored minus one
        return interleave(value, self.config.head_dim) if part in _ROTATED else value

    def _locate(self, name: str) -> tuple[str, Path]:
        if name == "output":
            candidates = list(_OUTPUTS)
        else:
            layer, _, part = name.rpartition(".")
            tail = f"{layer}.{self._names[part]}" if layer else self._names[part]
            candidates = [prefix + tail for prefix in _PREFIXES]
        for candidate in candidates:
            if candidate in self._files:
                return candidate, self._files[candidate]
        raise CheckpointError(self.path, "is in none of the safetensors files", tensor=candidates[0])


def _tensor_files(path: Path) -> dict[str, Path]:
    """Which file holds which tensor."""
    index = path / "model.safetensors.index.json"
    if index.is_file():
        names = Fields(index, _read_json(index)).section("weight_map").values
        for tensor, file in names.items():
            if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
                raise CheckpointError(
                    index, f"says file {file!r:.80}, not a safetensors file beside it", tensor=tensor
                )
        return {tensor: path / file for tensor, file in names.items()}
    single = path / "model.safetensors"
    if not single.is_file():
        raise CheckpointError(path, "has no model.safetensors", remedy="convert the weights to safetensors")
    try:
        with safe_open(single, framework="pt") as file:
            return dict.fromkeys(file.keys(), single)
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(single, f"can't be read: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise CheckpointError(path, f"is larger than {_LARGEST_JSON:,} bytes")
        data = json.loads(path.read_bytes())
    except OSError as error:
        raise CheckpointError(path, f"can't be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(path, f"is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise CheckpointError(path, "is not a JSON object")
    return data
