"""Float64 arithmetic that kernels are held against, and how far they may be from it."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

BOUNDS = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Of the largest error of a row, relative to the row's largest value in float64: about 16, 2 and 2 units in the last place.
Weights are rounded to the dtype before they meet the values, and the result once more."""

NAN = float("nan")


def relative_error(ours: Tensor, expected: Tensor) -> float:
    """The worst row's; NaN if an element of ours is, 0 for no rows."""
    if not len(ours):
        return 0.0
    ours, expected = ours.double().flatten(1), expected.double().flatten(1)
    largest = expected.abs().amax(1, keepdim=True)
    return float(((ours - expected).abs() / torch.where(largest > 0, largest, 1.0)).max())


def poisoned(*shape: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
    """What an output is before a kernel runs: an element that isn't written stays NaN."""
    return torch.full(shape, NAN, dtype=dtype, device=device)


def numbers(generator: torch.Generator, *shape: int, dtype: torch.dtype) -> Tensor:
    """Normally distributed, on the CPU, so that a seed means the same everywhere."""
    return torch.randn(shape, generator=generator).to(dtype)


def turned(heads: Tensor, turn: Tensor) -> Tensor:
    """[rows, heads, head_dim] turned by complex numbers [rows, 1, head_dim // 2]."""
    pairs = torch.view_as_complex(heads.double().reshape(*heads.shape[:-1], heads.shape[-1] // 2, 2))
    return torch.view_as_real(pairs * turn.to(torch.complex128)).flatten(-2)


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm of ``x`` [rows, size]."""
    return F.rms_norm(x.double(), (x.shape[1],), weight.double(), eps)


def gated(gate_up: Tensor, activation: str) -> Tensor:
    """[rows, 2 * size] → the activation of a row's first half times its second."""
    gate, up = gate_up.double().chunk(2, dim=-1)
    return (F.silu(gate) if activation == "silu" else F.gelu(gate, approximate="tanh")) * up
