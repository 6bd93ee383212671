"""Scales and offsets of a GGUF file's quantized blocks, for types whose weights are ``scale * code + offset`` (ggml-common.h)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import Q4_K

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_ZERO_CODES = {
    GGMLQuantizationType.Q4_0: 8,
    GGMLQuantizationType.Q5_0: 16,
    GGMLQuantizationType.Q8_0: 128,
}
_WITH_OFFSETS = (GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q5_1)
_WITH_MINIMA = (GGMLQuantizationType.Q4_K, GGMLQuantizationType.Q5_K)
_KNOWN = {*_ZERO_CODES, *_WITH_OFFSETS, *_WITH_MINIMA, GGMLQuantizationType.Q6_K}


def scales_of(blocks: Bytes, kind: GGMLQuantizationType) -> tuple[Floats, Floats] | None:
    """Scales and offsets, each [rows, groups], of a matrix's file bytes ``blocks`` [rows, bytes]; ``None`` for a type that
    has no such form."""
    if kind not in _KNOWN:
        return None
    _, block_bytes = GGML_QUANT_SIZES[kind]
    scale, offset = _block_scales(blocks.reshape(-1, block_bytes), kind)
    rows = blocks.shape[0]
    return np.ascontiguousarray(scale.reshape(rows, -1)), np.ascontiguousarray(offset.reshape(rows, -1))


def _block_scales(blocks: Bytes, kind: GGMLQuantizationType) -> tuple[Floats, Floats]:
    if kind in _WITH_OFFSETS:  # d, m: f16, …
        return _halves(blocks, 0), _halves(blocks, 2)
    if kind in _WITH_MINIMA:  # d, dmin: f16, 8 scales and minima in 12 bytes
        scales, minima = Q4_K.get_scale_min(np.ascontiguousarray(blocks[:, 4:16]))
        return _halves(blocks, 0) * scales.astype(np.float32), -(
            _halves(blocks, 2) * minima.astype(np.float32)
        )
    if kind is GGMLQuantizationType.Q6_K:  # …, 16 scales: i8, d: f16
        scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
        scale = _halves(blocks, 208) * scales.astype(np.float32)
        return scale, scale * np.float32(-32)
    d = _halves(blocks, 0)  # d: f16, …
    return d, d * np.float32(-_ZERO_CODES[kind])


def _halves(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte ``at`` of each block: [blocks, 1] float32."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)
