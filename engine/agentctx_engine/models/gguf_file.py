"""Weights from a GGUF file, memory-mapped; quantized tensors become floats as they are read."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from agentctx_engine.models.coded_weight import Codes, codes_of
from agentctx_engine.models.config import Family, ModelConfig, Rope
from agentctx_engine.models.errors import CheckpointError
from agentctx_engine.models.fields import Fields
from agentctx_engine.models.gguf_header import GgufHeader, TensorInfo, read_header
from agentctx_engine.models.gguf_scales import scales_of
from agentctx_engine.models.rope import interleave
from agentctx_engine.models.weights import expected_shapes

_FAMILIES: dict[str, Family] = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3"}
_NAMES = {
    "embedding": "token_embd.weight",
    "final_norm": "output_norm.weight",
    "output": "output.weight",
    "attention_norm": "attn_norm.weight",
    "query": "attn_q.weight",
    "key": "attn_k.weight",
    "value": "attn_v.weight",
    "query_bias": "attn_q.bias",
    "key_bias": "attn_k.bias",
    "value_bias": "attn_v.bias",
    "query_norm": "attn_q_norm.weight",
    "key_norm": "attn_k_norm.weight",
    "attention_out": "attn_output.weight",
    "attention_out_norm": "post_attention_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "mlp_out_norm": "post_ffw_norm.weight",
}
_FLOATS = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}
_ROTATED = ("query", "key", "query_bias", "key_bias", "query_norm", "key_norm")
_GEMMA3_LOCAL_THETA = 10_000.0  # not in the files
_GEMMA3_WINDOW_PATTERN = 6  # every sixth layer has no window
_GEMMA3_27B_LAYERS = 62  # the one size whose attention scale isn't head_dim ** -0.5
_ELEMENTS_AT_ONCE = 2**20  # dequantized in one go: keeps the intermediate arrays in the processor's cache


class GgufFile:
    """Opens the file; tensors are read when asked for. Raises ``CheckpointError``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._header = read_header(path)
        self.config: ModelConfig = _config(self._header)
        self._shapes = dict(expected_shapes(self.config))

    def tensor(self, name: str) -> Tensor:
        part, stored = _stored_name(name)
        info = self._header.tensors.get(stored)
        if info is None:
            raise CheckpointError(self.path, "is missing", tensor=stored)
        if info.shape != self._shapes[name]:
            raise CheckpointError(
                self.path,
                f"has shape {list(info.shape)}, the header's settings say {list(self._shapes[name])}",
                tensor=stored,
            )
        return self._in_order(part, _read(self._header, info))

    def codes(self, name: str, values: Tensor) -> Codes | None:
        """See ``CodedWeights``."""
        part, stored = _stored_name(name)
        info = self._header.tensors[stored]
        if info.type in _FLOATS:
            return None
        blocks = np.frombuffer(self._header.data, np.uint8, info.size, info.start)
        parts = scales_of(blocks.reshape(info.shape[0], -1), info.type)
        if parts is None:
            return None
        return codes_of(values, *(self._in_order(part, torch.from_numpy(p)) for p in parts))

    def _in_order(self, part: str, value: Tensor) -> Tensor:
        # Llama files are stored with a rotation's pairs side by side already.
        rotate = part in _ROTATED and self.config.family != "llama"
        return interleave(value, self.config.head_dim) if rotate else value


def _stored_name(name: str) -> tuple[str, str]:
    """``layers.3.query`` → ``query``, ``blk.3.attn_q.weight``."""
    layer, _, part = name.rpartition(".")
    return part, f"{layer.replace('layers', 'blk')}.{_NAMES[part]}" if layer else _NAMES[part]


def _read(header: GgufHeader, info: TensorInfo) -> Tensor:
    """One tensor in float32 (16-bit floats stay as they are), in the header's shape. Where nothing needs converting
    it is the mapped file itself: an embedding that is only looked up is never copied."""
    dtype = _FLOATS.get(info.type)
    if dtype is not None:
        raw = torch.frombuffer(header.data, dtype=torch.uint8, count=info.size, offset=info.start)
        aligned = raw if info.start % dtype.itemsize == 0 else raw.clone()
        return aligned.view(dtype).view(info.shape)
    rows, columns = math.prod(info.shape[:-1]), info.shape[-1]
    blocks = np.frombuffer(header.data, np.uint8, info.size, info.start).reshape(rows, -1)
    out = np.empty((rows, columns), dtype=np.float32)
    step = max(1, _ELEMENTS_AT_ONCE // columns)
    try:
        for start in range(0, rows, step):
            out[start : start + step] = dequantize(blocks[start : start + step], info.type)
    except NotImplementedError as error:
        raise CheckpointError(
            header.path, f"has type {info.type.name}, which can't be dequantized", tensor=info.name
        ) from error
    return torch.from_numpy(out).view(info.shape)


def _config(header: GgufHeader) -> ModelConfig:
    general = Fields(header.path, header.settings)
    architecture = general.text("general.architecture")
    family = _FAMILIES.get(architecture)
    if family is None:
        raise general.error(
            "general.architecture", f"is {architecture!r}; the engine runs {', '.join(_FAMILIES)}"
        )
    if general.has("split.count") and general.integer("split.count", least=0) > 1:
        raise general.error("split.count", "says that this is one part of many", "merge them to one file")
    fields = Fields(header.path, header.settings, architecture + ".")
    embedding = header.tensors.get(_NAMES["embedding"])
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(header.path, "is missing or no matrix", tensor=_NAMES["embedding"])
    layers, hidden = fields.integer("block_count"), fields.integer("embedding_length")
    if layers * 4 > len(header.tensors):
        raise fields.error("block_count", f"is {layers}, and the file has {len(header.tensors)} tensors")
    heads = fields.integer("attention.head_count")
    head_dim = fields.integer("attention.key_length", hidden // heads)
    for name in ("attention.value_length", "rope.dimension_count"):
        if fields.integer(name, head_dim) != head_dim:
            raise fields.error(
                name, f"differs from the head size {head_dim}, which the engine doesn't compute"
            )
    gemma = family == "gemma3"
    windows = _windows(fields, gemma, layers)
    try:
        return ModelConfig(
            family=family,
            vocab_size=embedding.shape[0],
            hidden_size=hidden,
            intermediate_size=fields.integer("feed_forward_length"),
            num_layers=layers,
            num_heads=heads,
            num_kv_heads=fields.integer("attention.head_count_kv", heads),
            head_dim=head_dim,
            windows=windows,
            ropes=_ropes(header, fields, head_dim, gemma, windows),
            max_context=fields.integer("context_length"),
            norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
            tied_embeddings=_NAMES["output"] not in header.tensors,
            attention_bias=family == "qwen2",
            qk_norm=family in ("qwen3", "gemma3"),
            sandwich_norms=gemma,
            activation="gelu_tanh" if gemma else "silu",
            embedding_scale=math.sqrt(hidden) if gemma else 1.0,
            attention_scale=(hidden / heads) ** -0.5 if gemma and layers == _GEMMA3_27B_LAYERS else 0.0,
            eos_token_ids=_end_tokens(general),
        )
    except CheckpointError:
        raise
    except ValueError as error:
        raise CheckpointError(header.path, f"has settings that don't fit: {error}") from error


def _end_tokens(general: Fields) -> tuple[int, ...]:
    ids = [general.integers(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    return tuple(dict.fromkeys(i for many in ids for i in many))


def _windows(fields: Fields, gemma: bool, layers: int) -> tuple[int | None, ...]:
    if not gemma:
        return (None,) * layers
    window = fields.integer("attention.sliding_window")
    pattern = fields.integer("attention.sliding_window_pattern", _GEMMA3_WINDOW_PATTERN)
    return tuple(window if (i + 1) % pattern else None for i in range(layers))


def _ropes(
    header: GgufHeader, fields: Fields, head_dim: int, gemma: bool, windows: tuple[int | None, ...]
) -> tuple[Rope, ...]:
    rope = _rope(header, fields, head_dim)
    if not gemma:
        return (rope,) * len(windows)
    local = Rope(fields.number("rope.freq_base_swa", _GEMMA3_LOCAL_THETA))
    return tuple(rope if window is None else local for window in windows)


def _rope(header: GgufHeader, fields: Fields, head_dim: int) -> Rope:
    theta = fields.number("rope.freq_base", 10_000.0)
    divisors = header.tensors.get("rope_freqs.weight")
    if divisors is not None:  # Llama 3's scaling, worked out per pair when the file was made
        return Rope(theta, divisors=_divisors(header, divisors, head_dim // 2))
    kind = fields.text("rope.scaling.type", "none")
    if kind == "none" and not fields.has("rope.scaling.factor"):
        return Rope(theta)
    factor = fields.number("rope.scaling.factor")
    if kind in ("linear", "none"):
        return Rope(theta, "linear", factor)
    if kind != "yarn":
        raise fields.error("rope.scaling.type", f"is {kind!r}; the engine knows linear and yarn")
    return Rope(
        theta,
        "yarn",
        factor,
        fields.integer("rope.scaling.original_context_length"),
        beta_fast=fields.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=fields.number("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=fields.number("rope.scaling.attn_factor", 1.0) * (1 + 0.1 * math.log(factor)),
    )


def _divisors(header: GgufHeader, info: TensorInfo, pairs: int) -> tuple[float, ...]:
    if info.shape != (pairs,):
        raise CheckpointError(
            header.path,
            f"has shape {list(info.shape)}, a head has {pairs} pairs to rotate",
            tensor=info.name,
        )
    values: list[float] = _read(header, info).float().tolist()
    if not all(0 < value < math.inf for value in values):
        raise CheckpointError(header.path, "has a value that is not a positive number", tensor=info.name)
    return tuple(values)
