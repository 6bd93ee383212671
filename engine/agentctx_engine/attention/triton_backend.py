"""The Triton attention backend: a step's single tokens by the decode kernel, its longer chunks by the prefill kernel.

Importing this module imports triton; ``attention.named`` does so when the backend is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from agentctx_engine.attention.batch import Batch
from agentctx_engine.attention.triton_kernels.decode import decode_attention, splits_for
from agentctx_engine.attention.triton_kernels.kv_view import KvView
from agentctx_engine.attention.triton_kernels.prefill import PrefillShape, cut_into_tiles, prefill_attention

_PROCESSORS_OF_A_CPU = 4  # what the interpreter is told, so that contexts are split there too


@dataclass(slots=True)
class TritonPlan:
    """One step (an ``AttentionPlan``)."""

    batch: Batch
    windows: tuple[int | None, ...]
    shape: PrefillShape | None  # None: the default for the heads
    processors: int
    rows: Tensor = field(init=False)  # [decodes] int32, and for each of them …
    lengths: Tensor = field(init=False)  # [decodes] int32
    tables: tuple[Tensor, ...] = field(init=False)  # per layer group [decodes, blocks] int32
    longest: int = field(init=False)
    chunks: list[tuple[int, int, int, int]] = field(
        init=False
    )  # the others, as ``cut_into_tiles`` takes them
    tiles: dict[int, Tensor] = field(default_factory=dict)  # by tokens of a tile

    def __post_init__(self) -> None:
        batch, device = self.batch, self.batch.token_ids.device
        decodes = [i for i, chunk in enumerate(batch.chunks) if len(chunk.token_ids) == 1]
        numbers = [[batch.query_starts[i] for i in decodes], [batch.context_lens[i] for i in decodes]]
        self.rows, self.lengths = torch.tensor(numbers, dtype=torch.int32, device=device)
        self.longest = max(numbers[1], default=0)
        self.tables = batch.block_tables
        if len(decodes) < len(batch.chunks):
            chosen = torch.tensor(decodes, dtype=torch.int64, device=device)
            self.tables = tuple(table[chosen] for table in batch.block_tables)
        self.chunks = [
            (i, batch.query_starts[i], len(chunk.token_ids), chunk.start)
            for i, chunk in enumerate(batch.chunks)
            if len(chunk.token_ids) > 1
        ]

    def attend(self, group: int, queries: Tensor, cache: Tensor, scale: float) -> Tensor:
        kv, window = KvView.full(cache), self.windows[group]
        heads, head_dim = queries.shape[1:]
        out = queries.new_empty((queries.shape[0], heads * head_dim))
        out[self.batch.num_tokens :] = 0
        shown = self.longest if window is None else min(self.longest, window)
        decode_attention(
            queries, kv, out, rows=self.rows, tables=self.tables[group], lengths=self.lengths, window=window,
            scale=scale, splits=splits_for(len(self.rows), kv.kv_heads, shown, self.processors),
        )  # fmt: skip
        if self.chunks:
            shape = self.shape or PrefillShape.default(head_dim, queries.dtype)
            prefill_attention(
                queries, kv, out, tiles=self._tiles(shape.tokens(heads // kv.kv_heads)),
                tables=self.batch.block_tables[group], window=window, scale=scale, shape=shape,
            )  # fmt: skip
        return out

    def _tiles(self, tokens: int) -> Tensor:
        if tokens not in self.tiles:
            tiles = cut_into_tiles(self.chunks, tokens)
            self.tiles[tokens] = torch.tensor(tiles, dtype=torch.int32, device=self.rows.device)
        return self.tiles[tokens]


class TritonAttention:
    """For GPUs; with ``TRITON_INTERPRET=1`` set before triton is imported, also on the CPU, slowly.

    ``shape``: of the prefill kernel, ``None`` for the default.
    """

    def __init__(self, shape: PrefillShape | None = None) -> None:
        self._shape = shape

    def plan(self, batch: Batch, windows: Sequence[int | None], dtype: torch.dtype) -> TritonPlan:
        device = batch.token_ids.device
        processors = _PROCESSORS_OF_A_CPU
        if device.type == "cuda":
            processors = torch.cuda.get_device_properties(device).multi_processor_count
        return TritonPlan(batch, tuple(windows), self._shape, processors)
