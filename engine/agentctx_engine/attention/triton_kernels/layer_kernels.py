"""TritonLayerKernels: what a decoder layer does around its matrix products and its attention, a launch each."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from agentctx_engine.attention.triton_kernels import gating, rms_norm, rotation
from agentctx_engine.attention.triton_kernels.kv_view import KvView


class TritonLayerKernels:
    """See :class:`~agentctx_engine.attention.backend.FusedKernels`."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return rms_norm.rms_norm(x, weight, eps)

    def add_rms_norm(self, x: Tensor, added: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return rms_norm.add_rms_norm(x, added, weight, eps)

    def gate(self, gate_up: Tensor, activation: Literal["silu", "gelu_tanh"]) -> Tensor:
        return gating.gate_by(gate_up, activation)

    def rotate_and_write(self, qkv: Tensor, turn: Tensor, cache: Tensor, slots: Tensor, heads: int) -> None:
        rotation.rotate_and_write(qkv, turn, KvView.full(cache), slots)
