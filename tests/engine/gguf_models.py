"""A Llama of one layer as a GGUF file, one tensor or setting of which can be replaced: what the loader's tests read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

WIDTH, HEADS, ROWS, VOCABULARY = 256, 4, 3, 8

SHAPES: dict[str, tuple[int, ...]] = {
    "token_embd.weight": (VOCABULARY, WIDTH),
    "blk.0.attn_norm.weight": (WIDTH,),
    "blk.0.attn_q.weight": (WIDTH, WIDTH),
    "blk.0.attn_k.weight": (WIDTH, WIDTH),
    "blk.0.attn_v.weight": (WIDTH, WIDTH),
    "blk.0.attn_output.weight": (WIDTH, WIDTH),
    "blk.0.ffn_norm.weight": (WIDTH,),
    "blk.0.ffn_gate.weight": (ROWS, WIDTH),
    "blk.0.ffn_up.weight": (ROWS, WIDTH),
    "blk.0.ffn_down.weight": (WIDTH, ROWS),
    "output_norm.weight": (WIDTH,),
}

Blocks = tuple[npt.NDArray[np.uint8], gguf.GGMLQuantizationType]  # [rows, bytes of a row], type


def write_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    tensors: Mapping[str, Blocks | npt.NDArray[np.float32] | None] | None = None,
    settings: Mapping[str, int | str] | None = None,
) -> Path:
    """Float32 ones everywhere, but for ``tensors`` (``None``: left out). ``settings`` are added under the architecture's name."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(128)
    writer.add_block_count(1)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(ROWS)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    for key, value in (settings or {}).items():
        kind = gguf.GGUFValueType.STRING if isinstance(value, str) else gguf.GGUFValueType.UINT32
        writer.add_key_value(f"{architecture}.{key}", value, kind)
    changed = {name: np.ones(shape, np.float32) for name, shape in SHAPES.items()} | dict(tensors or {})
    for name, value in changed.items():
        if isinstance(value, tuple):
            writer.add_tensor(name, value[0], raw_dtype=value[1])
        elif value is not None:
            writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
