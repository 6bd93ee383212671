"""RMS norm, alone or with the residual sum before it, which would otherwise go through memory once more."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def norm_rows(
    x, residual, weight, summed, out, eps, x_stride, residual_stride,
    SIZE: tl.constexpr, LANES: tl.constexpr, ADDED: tl.constexpr,
):  # fmt: skip
    """Program (row)."""
    row, lane = tl.program_id(0).to(tl.int64), tl.arange(0, LANES)
    inside = lane < SIZE
    numbers = tl.load(x + row * x_stride + lane, mask=inside, other=0.0).to(tl.float32)
    if ADDED:
        numbers += tl.load(residual + row * residual_stride + lane, mask=inside, other=0.0).to(tl.float32)
        rounded = numbers.to(summed.dtype.element_ty)
        tl.store(summed + row * SIZE + lane, rounded, mask=inside)
        numbers = rounded.to(tl.float32)
    inverse = 1.0 / tl.sqrt(tl.sum(numbers * numbers, 0) / SIZE + eps)
    scaled = numbers * inverse * tl.load(weight + lane, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * SIZE + lane, scaled.to(out.dtype.element_ty), mask=inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    """``x`` [rows, size] over each row's root mean square, times ``weight`` [size]; ``x`` has contiguous rows."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    _launch(x, None, weight, None, out, eps)
    return out


def add_rms_norm(
    x: Tensor,
    residual: Tensor,
    weight: Tensor,
    eps: float,
    *,
    out: Tensor | None = None,
    summed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """(``x + residual``, its norm), each [rows, size] in the dtype of ``x``."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device) if out is None else out
    summed = torch.empty(x.shape, dtype=x.dtype, device=x.device) if summed is None else summed
    _launch(x, residual, weight, summed, out, eps)
    return summed, out


def _launch(
    x: Tensor, residual: Tensor | None, weight: Tensor, summed: Tensor | None, out: Tensor, eps: float
) -> None:
    rows, size = x.shape
    if not rows:
        return
    norm_rows[(rows,)](
        x, x if residual is None else residual, weight, out if summed is None else summed, out, eps, x.stride(0),
        0 if residual is None else residual.stride(0),
        SIZE=size, LANES=triton.next_power_of_2(size), ADDED=residual is not None, num_warps=4 if size < 4096 else 8,
    )  # fmt: skip
