"""Quantized KV memory: a byte a number, with one scale for each block, head, and of keys and values.

A layer's memory is one int8 tensor ``[2, num_blocks, block_size * kv_heads * head_dim + 4 * kv_heads]``: a block's
numbers and behind them its scales as the bytes of float32, so that copying a block takes both. ``int8`` holds numbers
evenly spaced, within 1/254 of the largest of their block and head; ``fp8`` (e4m3) holds each within 1/16 of itself.

A step computes on a layer's blocks at full width, one layer at a time: those that it reads are unpacked into a scratch
memory, those that it wrote are packed again when the layer is done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, overload

import torch
from torch import Tensor

KvKind = Literal["int8", "fp8"]
LARGEST = {"int8": 127.0, "fp8": 448.0}


@dataclass(frozen=True, slots=True)
class Packing:
    """How a block of ``[block_size, kv_heads, head_dim]`` numbers of ``dtype`` becomes a row of bytes, and back."""

    kind: KvKind
    block_size: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def numbers(self) -> int:
        return self.block_size * self.kv_heads * self.head_dim

    @property
    def row_bytes(self) -> int:
        """Of keys or values of one block in one layer."""
        return self.numbers + 4 * self.kv_heads

    def allocate(self, num_blocks: int, device: torch.device) -> Tensor:
        """Zeroed memory of one layer. Raises ``MemoryError`` when it doesn't fit."""
        try:
            return torch.zeros((2, num_blocks, self.row_bytes), dtype=torch.int8, device=device)
        except RuntimeError as error:
            size = 2 * num_blocks * self.row_bytes
            raise MemoryError(
                f"{size:,} bytes of KV memory ({num_blocks} blocks) can't be had: {error}"
            ) from error

    def pack(self, blocks: Tensor) -> Tensor:
        """[2, blocks, block_size, kv_heads, head_dim] → [2, blocks, row_bytes]."""
        full = blocks.float()
        scales = full.abs().amax(dim=(2, 4)) / LARGEST[self.kind]
        scaled = full / torch.where(scales > 0, scales, 1.0)[:, :, None, :, None]
        if self.kind == "int8":
            numbers = scaled.round().to(torch.int8)
        else:
            numbers = scaled.to(torch.float8_e4m3fn).view(torch.int8)
        return torch.cat([numbers.flatten(2), scales.contiguous().view(torch.int8)], dim=2)

    def unpack(self, rows: Tensor) -> Tensor:
        """[2, blocks, row_bytes] → [2, blocks, block_size, kv_heads, head_dim]."""
        numbers = rows[..., : self.numbers].contiguous()
        if self.kind == "fp8":
            numbers = numbers.view(torch.float8_e4m3fn)
        scales = rows[..., self.numbers :].contiguous().view(torch.float32)
        full = numbers.float().view(2, -1, self.block_size, self.kv_heads, self.head_dim)
        return (full * scales[:, :, None, :, None]).to(self.dtype)


@dataclass(frozen=True, slots=True)
class UsedBlocks:
    """What one step uses in the layers of one group: entry i of the scratch memory stands for block ``blocks[i]``."""

    blocks: Tensor  # [used] int64
    written: Tensor  # [written] int64, entries of the scratch memory
    valid: Tensor  # [written] tokens that such a block holds after the step; what stands behind is old


class UnpackedLayers(Sequence[Tensor]):
    """The KV memory of a step as a model wants it, to be gone through once, layer by layer."""

    def __init__(self, packed: Sequence[Tensor], packing: Packing, used: Sequence[UsedBlocks]) -> None:
        """``used``: of each layer."""
        self._packed, self._packing, self._used = packed, packing, used

    def __len__(self) -> int:
        return len(self._packed)

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Tensor]: ...
    def __getitem__(self, index: int | slice) -> Tensor | Sequence[Tensor]:
        raise TypeError("quantized layers are gone through in order")

    def __iter__(self) -> Iterator[Tensor]:
        for packed, used in zip(self._packed, self._used, strict=True):
            scratch = self._packing.unpack(packed[:, used.blocks])
            yield scratch
            written = scratch[:, used.written]
            place = torch.arange(self._packing.block_size, device=written.device)
            written[:, place[None] >= used.valid[:, None]] = 0
            packed[:, used.blocks[used.written]] = self._packing.pack(written)
