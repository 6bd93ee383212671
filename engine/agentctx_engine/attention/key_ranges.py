"""Where the keys of one sequence lie: its block table as stretches of neighbouring slots.

Blocks of one sequence are usually neighbours, so a long context is a few long stretches, each of which can be read in
place as one matrix. Short stretches cost more to start than to copy and are gathered instead.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from agentctx_engine.attention.batch import IntArray


def stretches(table: IntArray, block_size: int, first: int, end: int) -> list[tuple[int, int]]:
    """The slots of positions ``first`` … ``end - 1``, in order, as ``(first slot, end slot)`` of each stretch."""
    blocks = np.asarray(table[first // block_size : (end - 1) // block_size + 1], dtype=np.int64)
    breaks = np.flatnonzero(np.diff(blocks) != 1) + 1
    starts = np.concatenate(([0], breaks))
    lengths = np.diff(np.concatenate((starts, [len(blocks)])))
    result = [
        (int(blocks[s]) * block_size, (int(blocks[s]) + int(n)) * block_size)
        for s, n in zip(starts, lengths, strict=True)
    ]
    result[0] = (result[0][0] + first % block_size, result[0][1])
    result[-1] = (result[-1][0], result[-1][1] - (-end) % block_size)
    return result


def slot_index(parts: list[tuple[int, int]]) -> Tensor:
    """Every slot of the stretches, in order: [slots] int64."""
    arrays: list[npt.NDArray[np.int64]] = [np.arange(start, end, dtype=np.int64) for start, end in parts]
    return torch.from_numpy(np.concatenate(arrays))


@dataclass(frozen=True, slots=True)
class KeyRange:
    """What one sequence reads in one step: stretches read in place, and slots gathered into one more matrix."""

    in_place: tuple[tuple[int, int], ...]
    gathered: Tensor | None  # [slots] int64

    @classmethod
    def ordered(cls, table: IntArray, block_size: int, first: int, end: int) -> KeyRange:
        """As one matrix, in the order of positions: in place if it is one stretch, else gathered."""
        parts = stretches(table, block_size, first, end)
        return cls(tuple(parts), None) if len(parts) == 1 else cls((), slot_index(parts))

    @classmethod
    def unordered(cls, table: IntArray, block_size: int, first: int, end: int, *, shortest: int) -> KeyRange:
        """For a query that sees all of it, so that order doesn't matter: stretches of ``shortest`` or more tokens in
        place, the others gathered."""
        parts = stretches(table, block_size, first, end)
        if len(parts) == 1:
            return cls(tuple(parts), None)
        long = tuple(p for p in parts if p[1] - p[0] >= shortest)
        short = [p for p in parts if p[1] - p[0] < shortest]
        return cls(long, slot_index(short) if short else None)

    def read(self, slots: Tensor) -> list[Tensor]:
        """``slots`` [2, slots, kv_heads, head_dim] → matrices [2, tokens, kv_heads, head_dim]."""
        matrices = [slots[:, start:end] for start, end in self.in_place]
        if self.gathered is not None:
            matrices.append(slots.index_select(1, self.gathered))
        return matrices
