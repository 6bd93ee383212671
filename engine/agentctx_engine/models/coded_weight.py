"""CodedWeight: a quantized matrix in its codes, for products that are bound by memory.

Decoding one token reads every weight once and does little else, so bytes are what it costs. A quantized file's weights
are ``scale * code + offset`` with one scale and offset for 16 or 32 neighbours: the C kernel reads one byte a weight (and
a quarter for the scales) and forms the very float32 that dequantizing gives, in a register. Nothing is rounded
that isn't rounded without it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from agentctx_engine.kernels import Kernels

OUTPUTS_TOGETHER = 4  # rows of a matrix that lie interleaved (see kernels.c)


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
