"""The slow, plain answer that every other backend is compared with: one token and one head at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from agentctx_engine.attention.batch import Batch
from agentctx_engine.attention.decode_batch import DecodeBatch
from agentctx_engine.attention.quantized import Packing


@dataclass(frozen=True)
class ReferencePlan:
    batch: Batch
    windows: tuple[int | None, ...]

    def attend(self, group: int, queries: Tensor, cache: Tensor, scale: float) -> Tensor:
        cache = _full(cache, self.batch.packing)
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

    def write_packed(self, group: int, keys: Tensor, values: Tensor, cache: Tensor) -> None:
        """Block by block: what it held, then the new tokens, then zeros, packed anew."""
        packing, size, row = self.batch.packing, self.batch.block_size, 0
        assert packing is not None
        for chunk in self.batch.chunks:
            position = chunk.start
            while position < chunk.context_len:
                offset = position % size
                count = min(size - offset, chunk.context_len - position)
                block = [int(chunk.block_tables[group][position // size])]
                held = packing.unpack(cache[:, block])
                held[:, 0, offset:] = 0
                held[0, 0, offset : offset + count] = keys[row : row + count]
                held[1, 0, offset : offset + count] = values[row : row + count]
                cache[:, block] = packing.pack(held)
                position, row = position + count, row + count

    def _first(self, group: int, position: int) -> int:
        window = self.windows[group]
        return 0 if window is None else max(0, position - window + 1)


@dataclass(frozen=True)
class ReferenceDecodePlan:
    """All keys that the block tables have room for, those that a row doesn't see masked."""

    batch: DecodeBatch
    windows: tuple[int | None, ...]

    def attend(self, group: int, queries: Tensor, cache: Tensor, scale: float) -> Tensor:
        cache = _full(cache, self.batch.packing)
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

    def write_packed(self, group: int, keys: Tensor, values: Tensor, cache: Tensor) -> None:
        packing, size = self.batch.packing, self.batch.block_size
        assert packing is not None
        blocks = self.batch.slot_mapping[group] // size
        place = torch.arange(size, device=keys.device)[:, None, None]
        offset = (self.batch.positions % size)[:, None, None, None]
        held = packing.unpack(cache.index_select(1, blocks)).masked_fill(place >= offset, 0.0)
        new = torch.stack([keys, values])[:, :, None].expand_as(held)
        cache.index_copy_(1, blocks, packing.pack(torch.where(place == offset, new, held)))


def _full(cache: Tensor, packing: Packing | None) -> Tensor:
    return cache if packing is None else packing.unpack(cache)


class ReferenceAttention:
    """Float64 arithmetic through the block tables, no tricks."""

    def reads_packed(self, packing: Packing) -> bool:
        return True

    def plan(self, batch: Batch, windows: Sequence[int | None], dtype: torch.dtype) -> ReferencePlan:
        return ReferencePlan(batch, tuple(windows))

    def plan_decode(
        self, batch: DecodeBatch, windows: Sequence[int | None], dtype: torch.dtype
    ) -> ReferenceDecodePlan:
        return ReferenceDecodePlan(batch, tuple(windows))
