"""KvView: one layer's keys and values as kernels address them, at full width or quantized."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from agentctx_engine.attention.quantized import Packing


@dataclass(frozen=True, slots=True)
class KvView:
    """Number ``d`` of head ``h`` at offset ``o`` of block ``b`` is element
    ``b * block_stride + (o * kv_heads + h) * head_dim + d`` of ``numbers``; values stand ``kv_stride`` behind keys.

    scales: of quantized memory, [2, num_blocks, kv_heads] float32 (strided); otherwise ``None``.
    """

    numbers: Tensor
    scales: Tensor | None
    block_size: int
    kv_heads: int
    head_dim: int
    kv_stride: int
    block_stride: int

    @classmethod
    def full(cls, cache: Tensor) -> KvView:
        """Of [2, num_blocks, block_size, kv_heads, head_dim]. Raises ``ValueError`` if a block isn't contiguous."""
        _, _, block_size, kv_heads, head_dim = cache.shape
        if cache.stride()[2:] != (kv_heads * head_dim, head_dim, 1):
            raise ValueError(
                f"the numbers of a block must be contiguous, their strides are {cache.stride()[2:]}"
            )
        return cls(cache, None, block_size, kv_heads, head_dim, cache.stride(0), cache.stride(1))

    @classmethod
    def packed(cls, rows: Tensor, packing: Packing) -> KvView:
        """Of [2, num_blocks, row_bytes] int8 as ``packing`` lays them out. Raises ``ValueError`` for blocks whose
        scales aren't aligned to 4 bytes."""
        if packing.numbers % 4:
            raise ValueError(
                f"a block of {packing.numbers} numbers leaves its scales unaligned: "
                "block_size * kv_heads * head_dim must be a multiple of 4"
            )
        numbers = rows.view(torch.float8_e4m3fn) if packing.kind == "fp8" else rows
        scales = rows.view(torch.float32)[..., packing.numbers // 4 :]
        return cls(
            numbers,
            scales,
            packing.block_size,
            packing.kv_heads,
            packing.head_dim,
            rows.stride(0),
            rows.stride(1),
        )

    @property
    def scale_strides(self) -> tuple[int, int]:
        """From keys to values, and from block to block, in floats."""
        return (0, 0) if self.scales is None else (self.scales.stride(0), self.scales.stride(1))
