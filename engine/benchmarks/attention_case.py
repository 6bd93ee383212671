"""AttentionCase: a step's attention, its paged memory, and what float64 makes of it.

All memory that no token of the step has is NaN, as outputs are: an element that isn't written, or one read that shouldn't be,
is seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from agentctx_engine.attention.quantized import KvKind, Packing
from agentctx_engine.attention.triton_kernels.kv_view import KvView
from benchmarks.exact import NAN, numbers


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """A step's attention: sequences as (tokens cached, tokens computed), in blocks that lie in no order."""

    dtype: torch.dtype
    head_dim: int
    kv_heads: int
    group: int
    block_size: int
    sequences: tuple[tuple[int, int], ...]
    window: int | None
    kind: KvKind | None
    seed: int
    device: str = "cpu"

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group

    @property
    def lengths(self) -> list[int]:
        return [cached + count for cached, count in self.sequences]

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)

    @property
    def packing(self) -> Packing:
        return Packing(self.kind or "int8", self.block_size, self.kv_heads, self.head_dim, self.dtype)

    def __str__(self) -> str:
        parts = [
            str(self.dtype).removeprefix("torch."), f"head {self.head_dim}", f"{self.heads}/{self.kv_heads} heads",
            f"blocks of {self.block_size}",
        ]  # fmt: skip
        parts += [] if self.kind is None else [f"KV {self.kind}"]
        parts += [] if self.window is None else [f"window {self.window:,}"]
        return ", ".join([*parts, f"{len(self.sequences)} sequences up to {max(self.lengths):,}"])


@dataclass(frozen=True, slots=True)
class PagedMemory:
    """A case's KV memory, what it holds in float64, and where each sequence lies."""

    view: KvView
    exact: Tensor  # [2, num_blocks, block_size, kv_heads, head_dim], NaN where no token is
    tables: Tensor  # [sequences, blocks] int32

    @classmethod
    def of(cls, case: AttentionCase) -> PagedMemory:
        generator, random = torch.Generator().manual_seed(case.seed), Random(case.seed)
        needed = [-(-length // case.block_size) for length in case.lengths]
        total = sum(needed) + 2
        free = random.sample(range(total), total)
        tables = torch.full((len(needed), max(1, *needed)), total - 1, dtype=torch.int32)
        full = numbers(generator, 2, total, case.block_size, case.kv_heads, case.head_dim, dtype=case.dtype)
        held = torch.zeros(total, case.block_size, dtype=torch.bool)
        for number, (blocks, length) in enumerate(zip(needed, case.lengths, strict=True)):
            mine, free = free[:blocks], free[blocks:]
            tables[number, :blocks] = torch.tensor(mine, dtype=torch.int32)
            for index, block in enumerate(mine):
                held[block, : length - index * case.block_size] = True
        tables = tables.to(case.device)
        if case.kind is None:
            full[:, ~held] = NAN
            full = full.to(case.device)
            return cls(KvView.full(full), full.double(), tables)
        packed = case.packing.pack(full)
        # A quantized number times its scale is what attention should see, without a rounding to the dtype.
        wide = Packing(case.kind, case.block_size, case.kv_heads, case.head_dim, torch.float64)
        exact = wide.unpack(packed)
        exact[:, ~held] = NAN
        unused = ~held.any(1)
        packed[:, unused, case.packing.numbers :] = torch.tensor([NAN]).view(torch.int8).repeat(case.kv_heads)
        return cls(KvView.packed(packed.to(case.device), case.packing), exact.to(case.device), tables)


def exact_attention(
    keys: Tensor, values: Tensor, first: int, positions: Sequence[int], queries: Tensor, *, window: int | None
) -> Tensor:
    """[rows, heads, head_dim] in float64 of one sequence's ``queries`` at ``positions``.

    keys, values: [tokens, kv_heads, head_dim] of the positions from ``first`` on, up to the last of ``positions``.
    """
    group = queries.shape[1] // keys.shape[1]
    keys, values = (part.double().repeat_interleave(group, 1) for part in (keys, values))
    at = torch.tensor(positions, device=keys.device)[:, None]
    seen = torch.arange(first, first + len(keys), device=keys.device)[None]
    hidden = seen > at
    if window is not None:
        hidden |= seen <= at - window
    scores = torch.einsum("nhd,khd->nhk", queries.double(), keys) * queries.shape[2] ** -0.5
    weights = torch.softmax(scores.masked_fill(hidden[:, None], float("-inf")), -1)
    return torch.einsum("nhk,khd->nhd", weights, values)


def exact_rows(
    case: AttentionCase, memory: PagedMemory, sequence: int, positions: Sequence[int], queries: Tensor
) -> Tensor:
    """``exact_attention`` of one sequence of a case."""
    first = 0 if case.window is None else max(0, min(positions) - case.window + 1)
    seen = torch.arange(first, max(positions) + 1, device=queries.device)
    table = memory.tables[sequence].long()
    keys, values = memory.exact[:, table[seen // case.block_size], seen % case.block_size]
    return exact_attention(keys, values, first, positions, queries, window=case.window)
