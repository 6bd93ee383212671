"""BlockTable: which physical block holds each stretch of a sequence, and where in memory each token goes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]


class BlockTable:
    """Physical block ids of one sequence in one layer group, in order of its tokens.

        token position p  →  logical block p // block_size, offset p % block_size
                          →  slot  ids[p // block_size] * block_size + p % block_size

    ``ids`` is the table as a list (for bookkeeping), ``as_array()`` the same as int32 (for the kernels).
    """

    __slots__ = ("_buffer", "block_size", "ids")

    def __init__(self, block_size: int, ids: Iterable[int] = ()) -> None:
        self.block_size = block_size
        self.ids: list[int] = []
        self._buffer: Int32Array = np.empty(8, dtype=np.int32)
        self.extend(list(ids))

    def __len__(self) -> int:
        return len(self.ids)

    def extend(self, blocks: list[int]) -> None:
        """Add blocks at the end. Amortised O(blocks)."""
        start = len(self.ids)
        self.ids.extend(blocks)
        end = len(self.ids)
        if end > len(self._buffer):
            grown = np.empty(max(end, 2 * len(self._buffer)), dtype=np.int32)
            grown[:start] = self._buffer[:start]
            self._buffer = grown
        self._buffer[start:end] = blocks

    def replace(self, index: int, block: int) -> int:
        """Put ``block`` at logical position ``index``; returns the block that stood there."""
        old = self.ids[index]
        self.ids[index] = block
        self._buffer[index] = block
        return old

    def truncate(self, length: int) -> list[int]:
        """Cut the table to ``length`` blocks; returns what was cut off, in order."""
        cut = self.ids[length:]
        del self.ids[length:]
        return cut

    def as_array(self) -> Int32Array:
        """int32, shape [blocks]: a view that is valid until the table changes."""
        return self._buffer[: len(self.ids)]

    def slot(self, position: int) -> int:
        """Index into the KV pool of the token at ``position``."""
        block, offset = divmod(position, self.block_size)
        return self.ids[block] * self.block_size + offset

    def slot_mapping(self, start: int, end: int) -> Int64Array:
        """int64, shape [end - start]: the slots of positions ``start … end - 1``."""
        if end > len(self.ids) * self.block_size:
            raise IndexError(
                f"position {end - 1} has no block: the table holds {len(self.ids)} of {self.block_size}"
            )
        positions = np.arange(start, end, dtype=np.int64)
        blocks = self._buffer[positions // self.block_size].astype(np.int64)
        return blocks * self.block_size + positions % self.block_size


def pad_block_tables(tables: list[BlockTable], fill: int = 0) -> Int32Array:
    """int32, shape [tables, longest]: the tables of a batch as one rectangle, short ones padded with ``fill``."""
    width = max((len(table) for table in tables), default=0)
    batch = np.full((len(tables), width), fill, dtype=np.int32)
    for row, table in zip(batch, tables, strict=True):
        row[: len(table)] = table.as_array()
    return batch
