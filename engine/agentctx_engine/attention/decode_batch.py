"""DecodeBatch: a step of single tokens in tensors that stay where they are, so that a recorded step can run again on them.

Rows beyond the step's tokens are padding: they have length 0, read nothing, and write to a spare block that no sequence
holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from agentctx_engine.attention.batch import Chunk
from agentctx_engine.attention.quantized import Packing


@dataclass(frozen=True, slots=True, eq=False)
class DecodeBatch:
    """One token of each of ``rows`` sequences.

    token_ids, positions: [rows] int64
    lengths: [rows] int32, keys of each sequence with the token's own; 0 for padding
    block_tables: per layer group [rows, width] int32, of which a row's first entries count, as its length says
    slot_mapping: per layer group [rows] int64
    packing: how the KV memory is quantized, if it is
    """

    block_size: int
    token_ids: Tensor
    positions: Tensor
    lengths: Tensor
    block_tables: tuple[Tensor, ...]
    slot_mapping: tuple[Tensor, ...]
    packing: Packing | None = None

    @property
    def num_rows(self) -> int:
        return len(self.token_ids)

    @property
    def longest(self) -> int:
        """Keys that a row's block table has room for."""
        return self.block_tables[0].shape[1] * self.block_size


class DecodeBuffers:
    """The tensors of the largest ``DecodeBatch``; smaller ones are views of their first rows."""

    def __init__(
        self,
        *,
        rows: int,
        width: int,
        block_size: int,
        spare_blocks: Sequence[int],
        device: torch.device,
        packing: Packing | None = None,
    ) -> None:
        """``width``: entries of a block table. ``spare_blocks``: of each layer group, a block that nobody holds."""
        groups, pinned = len(spare_blocks), device.type == "cuda"
        self._block_size, self._packing = block_size, packing
        self._spare_slots = np.asarray(spare_blocks, dtype=np.int64)[:, None] * block_size
        self._numbers = torch.zeros((2 + groups, rows), dtype=torch.int64, device=device)
        self._lengths = torch.zeros(rows, dtype=torch.int32, device=device)
        self._tables = torch.zeros((groups, rows, width), dtype=torch.int32, device=device)
        # A step is laid out here in one piece and copied while the host goes on.
        self._staged_numbers = torch.zeros((3 + groups) * rows, dtype=torch.int64, pin_memory=pinned)
        self._staged_tables = torch.zeros(groups * rows * width, dtype=torch.int32, pin_memory=pinned)
        self._copied = torch.cuda.Event() if pinned else None  # type: ignore[no-untyped-call]

    def first(self, rows: int) -> DecodeBatch:
        """The batch of the first ``rows`` rows, whatever ``fill`` puts there."""
        return DecodeBatch(
            block_size=self._block_size,
            token_ids=self._numbers[0, :rows],
            positions=self._numbers[1, :rows],
            lengths=self._lengths[:rows],
            block_tables=tuple(table[:rows] for table in self._tables),
            slot_mapping=tuple(slots[:rows] for slots in self._numbers[2:, :rows]),
            packing=self._packing,
        )

    def fill(self, chunks: Sequence[Chunk], rows: int) -> None:
        """Put chunks of one token each into the first rows, and padding behind them up to ``rows``."""
        if self._copied is not None:
            self._copied.synchronize()  # what the step before laid out has left
        groups, count, size = len(self._spare_slots), len(chunks), self._block_size
        width = max(-(-chunk.context_len // size) for chunk in chunks)
        staged_numbers = self._staged_numbers[: (3 + groups) * rows].view(3 + groups, rows)
        staged_tables = self._staged_tables[: groups * rows * width].view(groups, rows, width)
        numbers, tables = staged_numbers.numpy(), staged_tables.numpy()
        tables.fill(0)
        for row, chunk in enumerate(chunks):
            held = -(-chunk.context_len // size)
            for table, blocks in zip(tables, chunk.block_tables, strict=True):
                table[row, :held] = blocks[:held]
        positions = np.array([chunk.start for chunk in chunks], dtype=np.int64)
        numbers[:3, count:] = 0
        numbers[3:, count:] = self._spare_slots
        numbers[0, :count] = [chunk.token_ids[0] for chunk in chunks]
        numbers[1, :count] = positions
        numbers[2, :count] = positions + 1
        numbers[3:, :count] = tables[:, np.arange(count), positions // size] * size + positions % size
        self._copy(staged_numbers, staged_tables)

    def _copy(self, numbers: Tensor, tables: Tensor) -> None:
        rows, width = tables.shape[1:]
        device = self._numbers.device
        numbers, tables = numbers.to(device, non_blocking=True), tables.to(device, non_blocking=True)
        if self._copied is not None:
            self._copied.record()
        self._numbers[:2, :rows] = numbers[:2]
        self._lengths[:rows] = numbers[2]
        self._numbers[2:, :rows] = numbers[3:]
        self._tables[:, :rows, :width] = tables
