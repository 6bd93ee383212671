"""The slow, plain answer that every other backend is compared with: one token and one head at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from agentctx_engine.attention.batch import Batch
from agentctx_engine.attention.decode_batch import DecodeBatch


@dataclass(frozen=True)
class ReferencePlan:
    batch: Batch
    windows: tuple[int | None, ...]

    def attend(self, group: int, queries: Tensor, cache: Tensor, scale: float) -> Tensor:
        rows, heads, head_dim = queries.shape
        sharing = heads // cache.shape[3]
        slots = cache.double().flatten(1, 2)  # [2, slots, kv_heads, head_dim]
        out = queries.new_zeros((rows, heads, head_dim))
        for number, (start, end) in enumerate(
            zip(self.batch.query_starts[:-1], self.batch.query_starts[1:], strict=True)
        ):
            table = self.batch.block_tables[group][number].long()
            for row in range(start, end):
                position = int(self.batch.positions[row])
                first = self._first(group, position)
                seen = torch.arange(first, position + 1, device=queries.device)
                where = (
                    table[seen // self.batch.block_size] * self.batch.block_size
                    + seen % self.batch.block_size
                )
                for head in range(heads):
                    keys, values = slots[:, where, head // sharing]
                    weights = torch.softmax(keys @ queries[row, head].double() * scale, dim=0)
                    out[row, head] = (weights @ values).to(out.dtype)
        return out.flatten(1)

    def _first(self, group: int, position: int) -> int:
        window = self.windows[group]
        return 0 if window is None else max(0, position - window + 1)


@dataclass(frozen=True)
class ReferenceDecodePlan:
    """All keys that the block tables have room for, those that a row doesn't see masked."""

    batch: DecodeBatch
    windows: tuple[int | None, ...]

    def attend(self, group: int, queries: Tensor, cache: Tensor, scale: float) -> Tensor:
        rows, head_dim = len(queries), queries.shape[2]
        length = F.pad(self.batch.lengths, (0, rows - self.batch.num_rows))[:, None]
        table = F.pad(self.batch.block_tables[group], (0, 0, 0, rows - self.batch.num_rows)).long()
        place = torch.arange(self.batch.block_size, device=queries.device)
        slots = (table[:, :, None] * self.batch.block_size + place).flatten(1)
        position = torch.arange(self.batch.longest, device=queries.device)
        seen = position < length
        if (window := self.windows[group]) is not None:
            seen &= position >= length - window
        keys, values = cache.flatten(1, 2)[:, slots].double()  # [rows, keys, kv_heads, head_dim]
        query = queries.double().view(rows, cache.shape[3], -1, head_dim)
        scores = torch.einsum("rksd,rnkd->rksn", query, keys) * scale
        unseen = ~seen[:, None, None]
        weights = torch.softmax(scores.masked_fill(unseen, -torch.inf), dim=-1).masked_fill(unseen, 0.0)
        values = values.masked_fill(~seen[:, :, None, None], 0.0)  # whatever stands there, be it no number
        return torch.einsum("rksn,rnkd->rksd", weights, values).reshape(rows, -1).to(queries.dtype)


class ReferenceAttention:
    """Float64 arithmetic through the block tables, no tricks."""

    def plan(self, batch: Batch, windows: Sequence[int | None], dtype: torch.dtype) -> ReferencePlan:
        return ReferencePlan(batch, tuple(windows))

    def plan_decode(
        self, batch: DecodeBatch, windows: Sequence[int | None], dtype: torch.dtype
    ) -> ReferenceDecodePlan:
        return ReferenceDecodePlan(batch, tuple(windows))
