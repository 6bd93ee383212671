"""Paged attention for the CPU: matrix products that read keys and values where they lie.

Decoding reads the whole context once for three or so query rows, so it is bound by memory: a copy of the context per
step would double its cost. Keys are therefore read in place, stretch by stretch (see ``key_ranges``), and only what is
too scattered is gathered. A prefill chunk reads its context for many rows; it is cut into tiles of queries, each
of which attends to the keys up to its own end under a mask that is made once for all layers.

With the C kernels all decoding sequences of a step are one call and each prefill chunk another, which walk the block
tables themselves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from agentctx_engine.attention.batch import Batch
from agentctx_engine.attention.key_ranges import KeyRange
from agentctx_engine.kernels import LANES, Kernels

QUERY_TILE = 128  # rows of one prefill tile
SHORTEST_IN_PLACE = 256  # tokens: below this, gathering a stretch costs less than two products of its own


@dataclass(frozen=True, slots=True)
class Decode:
    """One token of one sequence: it sees every key of its range."""

    row: int
    keys: KeyRange

    def run(self, queries: Tensor, cache: Tensor, scale: float, out: Tensor) -> None:
        slots = cache.flatten(1, 2)
        kv_heads, head_dim = slots.shape[2:]
        sharing = queries.shape[1] // kv_heads
        query = queries[self.row].view(kv_heads, sharing, head_dim) * scale
        if sharing % 4:  # products of 3 rows are slower than those of 4
            query = F.pad(query, (0, 0, 0, 4 - sharing % 4))
        matrices = self.keys.read(slots)
        scores = [torch.bmm(query, kv[0].permute(1, 2, 0)) for kv in matrices]
        weights = torch.softmax(torch.cat(scores, -1) if len(scores) > 1 else scores[0], dim=-1)
        result: Tensor | None = None
        for kv, weight in zip(
            matrices, torch.split(weights, [m.shape[1] for m in matrices], dim=-1), strict=True
        ):
            part = torch.bmm(weight, kv[1].transpose(0, 1))
            result = part if result is None else result + part
        assert result is not None
        out[self.row] = result[:, :sharing].flatten()


@dataclass(slots=True)
class Decodes:
    """One token of each of some sequences, by the C kernel (whose arguments the tensors are)."""

    kernels: Kernels
    rows: Tensor
    tables: Tensor
    starts: Tensor
    first: Tensor
    end: Tensor
    scratch: Tensor | None = None

    @classmethod
    def of(cls, kernels: Kernels, batch: Batch, group: int, window: int | None) -> Decodes | None:
        chosen = [i for i, chunk in enumerate(batch.chunks) if len(chunk.token_ids) == 1]
        if not chosen:
            return None
        tables = batch.block_tables[group]
        end = torch.tensor([batch.context_lens[i] for i in chosen])
        return cls(
            kernels,
            rows=torch.tensor([batch.query_starts[i] for i in chosen]),
            tables=tables,
            starts=torch.tensor([i * tables.shape[1] for i in chosen]),
            first=torch.zeros_like(end) if window is None else (end - window).clamp_(min=0),
            end=end,
        )

    def run(self, queries: Tensor, cache: Tensor, scale: float, out: Tensor) -> None:
        if self.scratch is None:  # the same for all layers of a step
            kv_heads, longest = cache.shape[3], int((self.end - self.first).max())
            room = queries.shape[1] // kv_heads * -(-longest // LANES) * LANES
            self.scratch = queries.new_empty((len(self.rows) * kv_heads, room))
        self.kernels.paged_attention(
            queries.contiguous(), cache, out, rows=self.rows, tables=self.tables, starts=self.starts,
            first=self.first, end=self.end, scratch=self.scratch, scale=scale,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class WholeChunk:
    """One sequence's prefill chunk, by the C kernel, which reads keys through the block table and makes no mask."""

    kernels: Kernels
    rows: slice
    start: int
    window: int | None
    table: Tensor

    def run(self, queries: Tensor, cache: Tensor, scale: float, out: Tensor) -> None:
        self.kernels.chunk_attention(
            queries[self.rows], cache, out[self.rows],
            table=self.table, start=self.start, window=self.window, scale=scale,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tile:
    """Some rows of one sequence's prefill chunk, and the keys from their first window's start to their end."""

    start: int
    end: int
    keys: KeyRange
    mask: Tensor  # [rows, keys]: 0 where a row sees a key, -inf elsewhere

    def run(self, queries: Tensor, cache: Tensor, scale: float, out: Tensor) -> None:
        slots = cache.flatten(1, 2)
        rows = self.end - self.start
        kv_heads, head_dim = slots.shape[2:]
        sharing = queries.shape[1] // kv_heads
        (kv,) = self.keys.read(slots)
        # KV heads stand on the batch axis and the query heads that share one on the head axis, so that keys and
        # values are broadcast instead of repeated.
        query = queries[self.start : self.end].view(rows, kv_heads, sharing, head_dim).permute(1, 2, 0, 3)
        keys, values = kv.transpose(1, 2).unsqueeze(2).expand(2, kv_heads, sharing, kv.shape[1], head_dim)
        attended = F.scaled_dot_product_attention(query, keys, values, attn_mask=self.mask, scale=scale)
        out[self.start : self.end] = attended.permute(2, 0, 1, 3).reshape(rows, -1)


Piece = Decode | Decodes | WholeChunk | Tile


@dataclass(frozen=True, slots=True)
class CpuPlan:
    """Per layer group, the pieces of work of one step."""

    pieces: tuple[tuple[Piece, ...], ...]

    def attend(self, group: int, queries: Tensor, cache: Tensor, scale: float) -> Tensor:
        out = queries.new_zeros((queries.shape[0], queries.shape[1] * queries.shape[2]))
        for piece in self.pieces[group]:
            piece.run(queries, cache, scale, out)
        return out


class CpuAttention:
    """The default backend on the CPU, with the C kernels or without."""

    def __init__(self, kernels: Kernels | None = None) -> None:
        self._kernels = kernels

    def plan(self, batch: Batch, windows: Sequence[int | None], dtype: torch.dtype) -> CpuPlan:
        return CpuPlan(tuple(self._pieces(batch, g, window, dtype) for g, window in enumerate(windows)))

    def _pieces(self, batch: Batch, group: int, window: int | None, dtype: torch.dtype) -> tuple[Piece, ...]:
        if self._kernels is None or dtype != torch.float32:
            return tuple(_pieces(batch, group, window, dtype))
        decodes = Decodes.of(self._kernels, batch, group, window)
        chunks: Iterator[Piece] = (
            _whole_chunks(self._kernels, batch, group, window)
            if self._kernels.prefers_chunk_attention
            else _pieces(batch, group, window, dtype, shortest=2)
        )
        return tuple(chunks) if decodes is None else (decodes, *chunks)


def _whole_chunks(kernels: Kernels, batch: Batch, group: int, window: int | None) -> Iterator[WholeChunk]:
    """Of two or more tokens."""
    for number, (chunk, row) in enumerate(zip(batch.chunks, batch.query_starts, strict=False)):
        tokens = len(chunk.token_ids)
        if tokens > 1:
            table = batch.block_tables[group][number]
            yield WholeChunk(kernels, slice(row, row + tokens), chunk.start, window, table)


def _pieces(
    batch: Batch, group: int, window: int | None, dtype: torch.dtype, *, shortest: int = 1
) -> Iterator[Decode | Tile]:
    """Of the chunks of ``shortest`` or more tokens."""
    for chunk, first_row in zip(batch.chunks, batch.query_starts, strict=False):
        if len(chunk.token_ids) < shortest:
            continue
        table = chunk.block_tables[group]
        for start in range(chunk.start, chunk.context_len, QUERY_TILE):
            end = min(start + QUERY_TILE, chunk.context_len)
            row = first_row + start - chunk.start
            first = 0 if window is None else max(0, start - window + 1)
            if end - start == 1:
                keys = KeyRange.unordered(table, batch.block_size, first, end, shortest=SHORTEST_IN_PLACE)
                yield Decode(row, keys)
            else:
                keys = KeyRange.ordered(table, batch.block_size, first, end)
                yield Tile(row, row + end - start, keys, causal_mask(start, end, first, window, dtype))


def causal_mask(start: int, end: int, first: int, window: int | None, dtype: torch.dtype) -> Tensor:
    """What queries ``start`` … ``end - 1`` see of keys ``first`` … ``end - 1``: [queries, keys], 0 or -inf."""
    query = torch.arange(start, end)[:, None]
    key = torch.arange(first, end)[None]
    hidden = key > query
    if window is not None:
        hidden |= key <= query - window
    return torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, -math.inf)
