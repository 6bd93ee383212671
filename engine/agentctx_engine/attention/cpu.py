"""Paged attention for the CPU: matrix products that read keys and values where they lie.

Decoding reads the whole context once for three or so query rows, so it is bound by memory: a copy of the context per
step would double its cost. Keys are therefore read in place, stretch by stretch (see ``key_ranges``), and only what is
too scattered is gathered. A prefill chunk reads its context for many rows; it is cut into tiles of queries, each
of which attends to the keys up to its own end under a mask that is made once for all layers.
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

QUERY_TILE = 128  # rows of one prefill tile
SHORTEST_IN_PLACE = 256  # tokens: below this, gathering a stretch costs less than two products of its own


@dataclass(frozen=True, slots=True)
class Decode:
    """One token of one sequence: it sees every key of its range."""

    row: int
    keys: KeyRange

    def run(self, queries: Tensor, slots: Tensor, scale: float, out: Tensor) -> None:
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


@dataclass(frozen=True, slots=True)
class Tile:
    """Some rows of one sequence's prefill chunk, and the keys from their first window's start to their end."""

    start: int
    end: int
    keys: KeyRange
    mask: Tensor  # [rows, keys]: 0 where a row sees a key, -inf elsewhere

    def run(self, queries: Tensor, slots: Tensor, scale: float, out: Tensor) -> None:
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


@dataclass(frozen=True, slots=True)
class CpuPlan:
    """Per layer group, the pieces of work of one step."""

    pieces: tuple[tuple[Decode | Tile, ...], ...]

    def attend(self, group: int, queries: Tensor, cache: Tensor, scale: float) -> Tensor:
        slots = cache.flatten(1, 2)
        out = queries.new_zeros((queries.shape[0], queries.shape[1] * queries.shape[2]))
        for piece in self.pieces[group]:
            piece.run(queries, slots, scale, out)
        return out


class CpuAttention:
    """The default backend on the CPU."""

    def plan(self, batch: Batch, windows: Sequence[int | None], dtype: torch.dtype) -> CpuPlan:
        return CpuPlan(tuple(tuple(_pieces(batch, g, window, dtype)) for g, window in enumerate(windows)))


def _pieces(batch: Batch, group: int, window: int | None, dtype: torch.dtype) -> Iterator[Decode | Tile]:
    for chunk, first_row in zip(batch.chunks, batch.query_starts, strict=False):
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
