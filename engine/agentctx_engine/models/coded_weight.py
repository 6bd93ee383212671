"""CodedWeight: a quantized matrix in its codes, for products that are bound by memory.

Decoding one token reads every weight once and does little else, so bytes are what it costs. A quantized file's weights
are ``scale * code + offset`` with one scale and offset for 16 or 32 neighbours: the C kernel reads one byte a weight (and
a quarter for the scales) and forms the very float32 that dequantizing gives, in a register. Nothing is rounded
that isn't rounded without it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from gguf.constants import GGMLQuantizationType
from gguf.quants import Q4_K
from torch import Tensor

from agentctx_engine.kernels import Kernels

OUTPUTS_TOGETHER = 4  # rows of a matrix that lie interleaved (see kernels.c)
Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_ZERO_CODES = {
    GGMLQuantizationType.Q4_0: 8,
    GGMLQuantizationType.Q5_0: 16,
    GGMLQuantizationType.Q8_0: 128,
}


@dataclass(frozen=True, slots=True)
class Codes:
    """A matrix as ``scale * code + offset``: codes [rows, columns] uint8, scale and offset [rows, columns // group]."""

    codes: Tensor
    scale: Tensor
    offset: Tensor

    @property
    def group(self) -> int:
        return self.codes.shape[1] // self.scale.shape[1]

    def values(self) -> Tensor:
        """[rows, columns] float32, as the kernel forms them."""
        scale, offset = (t.repeat_interleave(self.group, dim=1) for t in (self.scale, self.offset))
        return torch.addcmul(offset, scale, self.codes.float())


def codes_of(values: Tensor, scale: Tensor, offset: Tensor) -> Codes | None:
    """The codes of ``values`` [rows, columns] float32; ``None`` if one value would come out different."""
    rows, columns = values.shape
    grouped = values.view(rows, scale.shape[1], -1)
    step = torch.where(scale == 0, 1.0, scale)[:, :, None]
    codes = ((grouped - offset[:, :, None]) / step).round_().clamp_(0, 255).to(torch.uint8)
    result = Codes(codes.view(rows, columns), scale, offset)
    return result if torch.equal(result.values(), values) else None


def scales_of(blocks: Bytes, kind: GGMLQuantizationType) -> tuple[Floats, Floats] | None:
    """Scales and offsets, each [rows, groups], of a matrix's file bytes ``blocks`` [rows, bytes] (ggml-common.h);
    ``None`` for a type that has no such form."""
    size = _BLOCK_BYTES.get(kind)
    if size is None:
        return None
    scale, offset = _block_scales(blocks.reshape(-1, size), kind)
    rows = blocks.shape[0]
    return np.ascontiguousarray(scale.reshape(rows, -1)), np.ascontiguousarray(offset.reshape(rows, -1))


def _block_scales(blocks: Bytes, kind: GGMLQuantizationType) -> tuple[Floats, Floats]:
    if kind in (GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q5_1):  # d, m: f16, …
        return _halves(blocks, 0), _halves(blocks, 2)
    if kind in (
        GGMLQuantizationType.Q4_K,
        GGMLQuantizationType.Q5_K,
    ):  # d, dmin: f16, 8 scales and minima in 12 bytes
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


_BLOCK_BYTES = {
    GGMLQuantizationType.Q4_0: 18,
    GGMLQuantizationType.Q4_1: 20,
    GGMLQuantizationType.Q5_0: 22,
    GGMLQuantizationType.Q5_1: 24,
    GGMLQuantizationType.Q8_0: 34,
    GGMLQuantizationType.Q4_K: 144,
    GGMLQuantizationType.Q5_K: 176,
    GGMLQuantizationType.Q6_K: 210,
}


def _halves(blocks: Bytes, at: int) -> Floats:
    """The float16 at byte ``at`` of each block: [blocks, 1] float32."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def stack(parts: list[Codes]) -> Codes:
    """Several matrices of as many columns as one, the rows of the first first; in the smallest of their groups."""
    group = min(part.group for part in parts)

    def rows(name: str) -> Tensor:
        return torch.cat([getattr(p, name).repeat_interleave(p.group // group, dim=1) for p in parts])

    return Codes(torch.cat([p.codes for p in parts]), rows("scale"), rows("offset"))


class CodedWeight:
    """``y = x Wᵀ`` for a few rows of ``x``, by the C kernel."""

    def __init__(self, codes: Codes, kernels: Kernels) -> None:
        """``codes``: a multiple of 4 rows (see ``fits``)."""
        self.outputs, self.group, self._kernels = codes.codes.shape[0], codes.group, kernels
        self._data = _interleaved(codes)

    @staticmethod
    def fits(codes: Codes) -> bool:
        return codes.codes.shape[0] % OUTPUTS_TOGETHER == 0 and codes.group in (16, 32)

    def __call__(self, x: Tensor) -> Tensor:
        rows = x.shape[0]
        whole = 1 << (rows - 1).bit_length()  # the kernel does 1, 2, 4 and 8
        x = F.pad(x, (0, 0, 0, whole - rows)) if whole > rows else x.contiguous()
        return self._kernels.coded_product(x, self._data, self.outputs, self.group)[:rows]


def _interleaved(codes: Codes) -> Tensor:
    """[rows / 4, groups, bytes]: of four rows one group's scales, offsets and codes (see kernels.c)."""

    def fours(t: Tensor, width: int) -> Tensor:
        return t.view(-1, OUTPUTS_TOGETHER, codes.scale.shape[1], width).transpose(1, 2).flatten(2)

    scale, offset = (fours(t, 1).contiguous().view(torch.uint8) for t in (codes.scale, codes.offset))
    return torch.cat([scale, offset, fours(codes.codes, codes.group)], dim=-1).contiguous()
