"""Deterministic steps: the same arithmetic for a token whatever else is computed with it.

Matrix libraries pick their order of summation by the shapes they are given, so a token's logits usually differ in the
last bits between a long and a short chunk, or alone and in a batch. Here every operation of a step always has the
same shape for the same token: the step is run as *tiles* of ``TILE`` rows, row ``r`` holds a token whose position is
``r`` modulo ``TILE``, rows with no token are padding, and a tile's attention always reads the keys from the tile's
window start to the tile's end, with zeros for those that aren't there yet and are masked anyway. What a row gives
then depends on its sequence's tokens up to its own and on nothing else::

    chunk of A: positions 13 … 34            decode of B: position 40 (row 8)
    pass 0   rows 13 14 15      ← A 13-15,   row 8 ← B 40
    pass 1   rows 0 … 15        ← A 16-31
    pass 2   rows 0 1 2         ← A 32-34

Sequences share a pass when their rows don't collide, because rows don't influence one another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from agentctx_engine.attention.batch import Batch
from agentctx_engine.attention.cpu import causal_mask
from agentctx_engine.attention.key_ranges import slot_index, stretches

TILE = 16
"""Rows of a tile. More make prefill faster (matrix products near full speed from 64 rows on) and decoding slower."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring tokens of one sequence that lie in one tile: positions ``start`` … ``end - 1``."""

    sequence: int
    start: int
    end: int

    @property
    def tile_start(self) -> int:
        return self.start - self.start % TILE

    @property
    def rows(self) -> range:
        return range(self.start % TILE, self.start % TILE + self.end - self.start)


@dataclass(slots=True)
class TilePass:
    """Segments with no row in common, run at once."""

    segments: list[Segment] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)

    def take(self, segment: Segment) -> bool:
        if not self.taken.isdisjoint(segment.rows):
            return False
        self.taken.update(segment.rows)
        self.segments.append(segment)
        return True


def split_into_passes(batch: Batch) -> list[TilePass]:
    """All of the batch's tokens, each sequence's in order of position."""
    passes: list[TilePass] = []
    for sequence, chunk in enumerate(batch.chunks):
        number, start = 0, chunk.start
        while start < chunk.context_len:
            segment = Segment(sequence, start, min(chunk.context_len, start - start % TILE + TILE))
            while number < len(passes) and not passes[number].take(segment):
                number += 1
            if number == len(passes):
                passes.append(TilePass())
                passes[number].take(segment)
            number, start = number + 1, segment.end
    return passes


@dataclass(frozen=True, slots=True)
class _SegmentKeys:
    """What one segment reads in one layer group."""

    rows: slice
    slots: Tensor  # of the keys that some row of the segment sees
    before: int  # keys of the tile's range that none of them sees, or that have no slot any more
    after: int  # … and that aren't computed yet
    mask: Tensor  # [TILE, keys of the tile's range]


@dataclass(frozen=True, slots=True)
class TilePlan:
    """The attention of one pass (an ``AttentionPlan``)."""

    keys: tuple[tuple[_SegmentKeys, ...], ...]  # per layer group

    def attend(self, group: int, queries: Tensor, cache: Tensor, scale: float) -> Tensor:
        slots = cache.flatten(1, 2)
        kv_heads, head_dim = slots.shape[2:]
        query = queries.view(TILE, kv_heads, -1, head_dim).permute(1, 2, 0, 3)
        out = queries.new_zeros((TILE, queries.shape[1] * head_dim))
        for part in self.keys[group]:
            kv = F.pad(slots.index_select(1, part.slots), (0, 0, 0, 0, part.before, part.after))
            keys, values = kv.transpose(1, 2).unsqueeze(2).expand(2, *query.shape[:2], kv.shape[1], head_dim)
            attended = F.scaled_dot_product_attention(query, keys, values, attn_mask=part.mask, scale=scale)
            out[part.rows] = attended.permute(2, 0, 1, 3).reshape(TILE, -1)[part.rows]
        return out


def plan_pass(
    batch: Batch, work: TilePass, windows: Sequence[int | None], dtype: torch.dtype, device: torch.device
) -> TilePlan:
    return TilePlan(
        tuple(
            tuple(_segment_keys(batch, s, g, window, dtype, device) for s in work.segments)
            for g, window in enumerate(windows)
        )
    )


def _segment_keys(
    batch: Batch, segment: Segment, group: int, window: int | None, dtype: torch.dtype, device: torch.device
) -> _SegmentKeys:
    tile_start = segment.tile_start
    tile_end = tile_start + TILE
    range_start = 0 if window is None else max(0, tile_start - window + 1)
    seen_start = 0 if window is None else max(0, segment.start - window + 1)
    table = batch.chunks[segment.sequence].block_tables[group]
    return _SegmentKeys(
        rows=slice(segment.rows.start, segment.rows.stop),
        slots=slot_index(stretches(table, batch.block_size, seen_start, segment.end)).to(device),
        before=seen_start - range_start,
        after=tile_end - segment.end,
        mask=causal_mask(tile_start, tile_end, range_start, window, dtype).to(device),
    )


@dataclass(frozen=True, slots=True)
class PassRows:
    """A pass as the model's rows: [TILE] token ids and positions, and for its ``n`` tokens which row, which row of
    the batch, and which slots."""

    token_ids: Tensor
    positions: Tensor
    rows: Tensor  # [n] int64, rows of the tile
    batch_rows: Tensor  # [n] int64
    slot_mapping: tuple[Tensor, ...]  # per layer group [n] int64

    @classmethod
    def of(cls, batch: Batch, work: TilePass) -> PassRows:
        device = batch.token_ids.device
        rows = np.concatenate([np.arange(s.rows.start, s.rows.stop) for s in work.segments])
        batch_rows = np.concatenate([_batch_rows(batch, s) for s in work.segments])
        at, source = torch.from_numpy(rows).to(device), torch.from_numpy(batch_rows).to(device)
        token_ids = batch.token_ids.new_zeros(TILE)
        positions = batch.positions.new_zeros(TILE)
        token_ids[at] = batch.token_ids[source]
        positions[at] = batch.positions[source]
        return cls(token_ids, positions, at, source, tuple(s[source] for s in batch.slot_mapping))


def _batch_rows(batch: Batch, segment: Segment) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    first = batch.query_starts[segment.sequence] - batch.chunks[segment.sequence].start
    return np.arange(segment.start + first, segment.end + first, dtype=np.int64)
