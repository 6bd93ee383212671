"""The slow, plain answer that every other backend is compared with: one token and one head at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from agentctx_engine.attention.batch import Batch


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


class ReferenceAttention:
    """Float64 arithmetic through the block tables, no tricks."""

    def plan(self, batch: Batch, windows: Sequence[int | None], dtype: torch.dtype) -> ReferencePlan:
        return ReferencePlan(batch, tuple(windows))
