"""SwiGLU and GeGLU: an activated gate times its partner, without the activated gate in memory."""

from __future__ import annotations

from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

LANES = 1024


@triton.jit
def gate_rows(gate_up, out, size, row_stride, LANES: tl.constexpr, SILU: tl.constexpr):
    """Program (row, stretch of it)."""
    row, lane = tl.program_id(0).to(tl.int64), tl.program_id(1) * LANES + tl.arange(0, LANES)
    inside = lane < size
    gate = tl.load(gate_up + row * row_stride + lane, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * row_stride + size + lane, mask=inside, other=0.0).to(tl.float32)
    if SILU:
        inner = gate
    else:  # gelu by tanh, since 0.5 * (1 + tanh(z)) = sigmoid(2 z)
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
    active = gate / (1.0 + tl.exp(-inner))
    tl.store(out + row * size + lane, (active * up).to(out.dtype.element_ty), mask=inside)


def gate_by(
    gate_up: Tensor, activation: Literal["silu", "gelu_tanh"], *, out: Tensor | None = None
) -> Tensor:
    """[rows, 2 * size] → the activation of a row's first half times its second, [rows, size]."""
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, size), dtype=gate_up.dtype, device=gate_up.device) if out is None else out
    if rows:
        gate_rows[(rows, triton.cdiv(size, LANES))](
            gate_up, out, size, gate_up.stride(0), LANES=LANES, SILU=activation == "silu", num_warps=4
        )
    return out
