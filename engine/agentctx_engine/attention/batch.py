"""Batch: one engine step as flat arrays, the seam between the runner, the model and the attention kernels.

A step computes some tokens of some sequences: a whole prompt, a chunk of one, or one decoded token. Their
tokens stand one sequence after the other; nothing is padded::

    sequence          A (prefill chunk)      B (decode)   C (prefill, 4 tokens cached)
    token_ids         a0 a1 a2 a3 a4         b9           c4 c5 c6
    positions          0  1  2  3  4          9            4  5  6
    query_starts     [ 0,                     5,           6,            9 ]
    context_lens     [ 5,                     10,          7 ]

``context_lens`` counts a sequence's tokens up to and including this step's: the model writes the step's
keys and values first, and each token then reads the positions up to its own through its block table.

Layers with the same window share block tables (a *layer group*, see ``ModelConfig.layer_groups``): block
tables and slot mappings come once per group, in the order of the groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from agentctx_engine.attention.quantized import Packing
from agentctx_engine.attention.uploads import upload, upload_index

IntArray = npt.NDArray[np.int32] | npt.NDArray[np.int64] | Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """One sequence's share of a step.

    token_ids: the tokens to compute, at positions ``start``, ``start + 1``, …
    start: tokens of the sequence whose keys and values are already in its blocks.
    block_tables: per layer group, the sequence's block ids: position ``p`` lies in entry ``p // block_size``.
        They must reach to the chunk's end. Entries of a windowed group that lie wholly before every window
        of the chunk are never read and may hold any valid block id (0, say).
    logit_rows: how many of the chunk's last tokens need logits: 0 for a prompt chunk that isn't the last,
        1 to sample, ``len(token_ids)`` for prompt log-probabilities.
    """

    token_ids: IntArray
    start: int
    block_tables: tuple[IntArray, ...]
    logit_rows: int = 1

    @property
    def context_len(self) -> int:
        return self.start + len(self.token_ids)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One step's flat, mixed batch. Build it with ``Batch.build``; all tensors lie on the model's device.

    token_ids, positions: [tokens] int64
    query_starts: [sequences + 1] the first row of each sequence's chunk, and the number of tokens
    context_lens: [sequences] tokens of each sequence after this step
    block_tables: per layer group [sequences, most blocks] int32, padded with 0
    slot_mapping: per layer group [tokens] int64: block id * block_size + offset, where K and V are written
    logit_rows: [rows] int64, the rows of the flat batch whose logits are wanted, in order
    packing: how the KV memory is quantized, if it is and the model is to read it so
    """

    chunks: tuple[Chunk, ...]
    block_size: int
    token_ids: Tensor
    positions: Tensor
    query_starts: tuple[int, ...]
    context_lens: tuple[int, ...]
    block_tables: tuple[Tensor, ...]
    slot_mapping: tuple[Tensor, ...]
    logit_rows: Tensor
    packing: Packing | None = None

    @property
    def num_tokens(self) -> int:
        return self.query_starts[-1]

    @classmethod
    def build(
        cls,
        chunks: Sequence[Chunk],
        *,
        block_size: int,
        device: torch.device | str = "cpu",
        packing: Packing | None = None,
    ) -> Batch:
        """Flatten the chunks. Raises ``ValueError`` for an empty chunk or too short a block table."""
        if not chunks:
            raise ValueError("a batch needs at least one chunk")
        groups = len(chunks[0].block_tables)
        starts = [0]
        rows: list[int] = []
        for number, chunk in enumerate(chunks):
            _check(number, chunk, groups, block_size)
            end = starts[-1] + len(chunk.token_ids)
            rows.extend(range(end - chunk.logit_rows, end))
            starts.append(end)
        positions = np.concatenate([np.arange(c.start, c.context_len, dtype=np.int64) for c in chunks])
        token_ids = np.concatenate([np.asarray(c.token_ids, dtype=np.int64) for c in chunks])
        sequence_of_row = np.repeat(np.arange(len(chunks)), np.diff(starts))
        tables = [_padded([c.block_tables[g] for c in chunks]) for g in range(groups)]
        slots = [
            table[sequence_of_row, positions // block_size].astype(np.int64) * block_size
            + positions % block_size
            for table in tables
        ]

        def tensor(array: npt.NDArray[np.int32] | npt.NDArray[np.int64]) -> Tensor:
            return upload(array, device)

        return cls(
            chunks=tuple(chunks),
            block_size=block_size,
            token_ids=tensor(token_ids),
            positions=tensor(positions),
            query_starts=tuple(starts),
            context_lens=tuple(c.context_len for c in chunks),
            block_tables=tuple(tensor(t) for t in tables),
            slot_mapping=tuple(tensor(s) for s in slots),
            logit_rows=upload_index(rows, device),
            packing=packing,
        )


def _check(number: int, chunk: Chunk, groups: int, block_size: int) -> None:
    if not len(chunk.token_ids):
        raise ValueError(f"chunk {number} has no tokens")
    if not 0 <= chunk.logit_rows <= len(chunk.token_ids):
        raise ValueError(
            f"chunk {number} wants {chunk.logit_rows} logit rows of {len(chunk.token_ids)} tokens"
        )
    if len(chunk.block_tables) != groups:
        raise ValueError(f"chunk {number} has {len(chunk.block_tables)} block tables, chunk 0 has {groups}")
    for table in chunk.block_tables:
        if len(table) * block_size < chunk.context_len:
            raise ValueError(
                f"chunk {number} ends at token {chunk.context_len}, "
                f"but a block table of it holds {len(table)} blocks of {block_size}"
            )


def _padded(tables: Sequence[IntArray]) -> npt.NDArray[np.int32]:
    width = max(len(table) for table in tables)
    padded = np.zeros((len(tables), width), dtype=np.int32)
    for row, table in zip(padded, tables, strict=True):
        row[: len(table)] = table
    return padded
