"""The Triton attention backend: a step's single tokens by the decode kernel, its longer chunks by the prefill kernel.

Importing this module imports triton; ``attention.named`` does so when the backend is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from agentctx_engine.attention.backend import FusedKernels
from agentctx_engine.attention.batch import Batch
from agentctx_engine.attention.decode_batch import DecodeBatch
from agentctx_engine.attention.quantized import Packing
from agentctx_engine.attention.triton_kernels.decode import decode_attention, splits_for
from agentctx_engine.attention.triton_kernels.kv_view import KvView
from agentctx_engine.attention.triton_kernels.kv_write import write_packed, written_blocks
from agentctx_engine.attention.triton_kernels.layer_kernels import TritonLayerKernels
from agentctx_engine.attention.triton_kernels.online_softmax import INTERPRETED
from agentctx_engine.attention.triton_kernels.prefill import PrefillShape, cut_into_tiles, prefill_attention
from agentctx_engine.attention.uploads import upload, upload_index

_PROCESSORS_OF_A_CPU = 4  # what the interpreter is told, so that contexts are split there too


@dataclass(frozen=True, slots=True)
class Singles:
    """The step's sequences of one token: ``rows`` and ``lengths`` [decodes] int32, per layer group ``tables``
    [decodes, blocks] int32, of which none has more than ``longest`` keys."""

    rows: Tensor
    lengths: Tensor
    tables: tuple[Tensor, ...]
    longest: int

    @classmethod
    def of(cls, batch: Batch) -> Singles:
        device = batch.token_ids.device
        chosen = [i for i, chunk in enumerate(batch.chunks) if len(chunk.token_ids) == 1]
        numbers = [[batch.query_starts[i] for i in chosen], [batch.context_lens[i] for i in chosen]]
        rows, lengths = upload(numbers, device, torch.int32)
        tables = batch.block_tables
        if len(chosen) < len(batch.chunks):
            index = upload_index(chosen, device)
            tables = tuple(table[index] for table in batch.block_tables)
        return cls(rows, lengths, tables, max(numbers[1], default=0))

    @classmethod
    def of_all(cls, batch: DecodeBatch) -> Singles:
        rows = torch.arange(batch.num_rows, dtype=torch.int32, device=batch.lengths.device)
        return cls(rows, batch.lengths, batch.block_tables, batch.longest)


@dataclass(frozen=True, slots=True)
class Chunks:
    """The step's longer chunks, as ``cut_into_tiles`` takes them, and per layer group the block tables of all sequences."""

    chunks: list[tuple[int, int, int, int]]
    tables: tuple[Tensor, ...]
    shape: PrefillShape | None  # None: the default for the heads
    tiles: dict[int, Tensor] = field(default_factory=dict)  # by tokens of a tile

    @classmethod
    def of(cls, batch: Batch, shape: PrefillShape | None) -> Chunks:
        longer = [
            (i, batch.query_starts[i], len(chunk.token_ids), chunk.start)
            for i, chunk in enumerate(batch.chunks)
            if len(chunk.token_ids) > 1
        ]
        return cls(longer, batch.block_tables, shape)

    def cut(self, tokens: int) -> Tensor:
        """Tiles of ``tokens`` tokens, the same for all layers."""
        if tokens not in self.tiles:
            tiles = cut_into_tiles(self.chunks, tokens)
            self.tiles[tokens] = upload(tiles, self.tables[0].device, torch.int32)
        return self.tiles[tokens]


Written = tuple[Tensor, Tensor, Tensor, Tensor]
"""(blocks, rows, offsets, counts), each [written] int32, as ``write_packed`` takes them."""


def _written(batch: Batch) -> tuple[Written, ...]:
    """Per layer group, the quantized blocks that a step puts tokens into."""
    return tuple(
        written_blocks(
            [(chunk.start, len(chunk.token_ids), chunk.block_tables[group]) for chunk in batch.chunks],
            batch.block_size,
            batch.token_ids.device,
        )
        for group in range(len(batch.block_tables))
    )


def _written_by_singles(batch: DecodeBatch) -> tuple[Written, ...]:
    """One token each; padding goes to the spare block, in no order."""
    rows = torch.arange(batch.num_rows, dtype=torch.int32, device=batch.lengths.device)
    offsets = (batch.positions % batch.block_size).int()
    return tuple(
        ((slots // batch.block_size).int(), rows, offsets, torch.ones_like(rows))
        for slots in batch.slot_mapping
    )


@dataclass(frozen=True, slots=True)
class TritonPlan:
    """One step (an ``AttentionPlan``, and a ``PackedPlan``)."""

    windows: tuple[int | None, ...]
    num_tokens: int
    singles: Singles
    chunks: Chunks | None
    processors: int
    packing: Packing | None = None
    written: tuple[Written, ...] = ()  # of a batch with packing

    def attend(self, group: int, queries: Tensor, cache: Tensor, scale: float) -> Tensor:
        kv = KvView.full(cache) if self.packing is None else KvView.packed(cache, self.packing)
        window, singles = self.windows[group], self.singles
        heads, head_dim = queries.shape[1:]
        out = queries.new_empty((queries.shape[0], heads * head_dim))
        out[self.num_tokens :] = 0
        shown = singles.longest if window is None else min(singles.longest, window)
        decode_attention(
            queries, kv, out, rows=singles.rows, tables=singles.tables[group], lengths=singles.lengths,
            window=window, scale=scale, splits=splits_for(len(singles.rows), kv.kv_heads, shown, self.processors),
        )  # fmt: skip
        if self.chunks is not None and self.chunks.chunks:
            shape = self.chunks.shape or PrefillShape.default(head_dim, queries.dtype)
            prefill_attention(
                queries, kv, out, tiles=self.chunks.cut(shape.tokens(heads // kv.kv_heads)),
                tables=self.chunks.tables[group], window=window, scale=scale, shape=shape,
            )  # fmt: skip
        return out

    def write_packed(self, group: int, keys: Tensor, values: Tensor, cache: Tensor) -> None:
        assert self.packing is not None
        blocks, rows, offsets, counts = self.written[group]
        write_packed(
            cache, self.packing, keys, values, blocks=blocks, rows=rows, offsets=offsets, counts=counts
        )


class TritonAttention:
    """For GPUs; with ``TRITON_INTERPRET=1`` set before triton is imported, also on the CPU, slowly."""

    def __init__(self, shape: PrefillShape | None = None, *, fused: bool = not INTERPRETED) -> None:
        """``shape``: of the prefill kernel, ``None`` for the default. ``fused``: bring kernels for the rest of a layer, which the
        interpreter would only make slower."""
        self._shape = shape
        self.layer_kernels: FusedKernels | None = TritonLayerKernels() if fused else None

    def reads_packed(self, packing: Packing) -> bool:
        return packing.numbers % 4 == 0  # the scales behind them are aligned

    def plan(self, batch: Batch, windows: Sequence[int | None], dtype: torch.dtype) -> TritonPlan:
        return TritonPlan(
            tuple(windows),
            batch.num_tokens,
            Singles.of(batch),
            Chunks.of(batch, self._shape),
            _processors(batch.token_ids.device),
            batch.packing,
            () if batch.packing is None else _written(batch),
        )

    def plan_decode(
        self, batch: DecodeBatch, windows: Sequence[int | None], dtype: torch.dtype
    ) -> TritonPlan:
        return TritonPlan(
            tuple(windows),
            batch.num_rows,
            Singles.of_all(batch),
            None,
            _processors(batch.lengths.device),
            batch.packing,
            () if batch.packing is None else _written_by_singles(batch),
        )


def _processors(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).multi_processor_count
    return _PROCESSORS_OF_A_CPU
