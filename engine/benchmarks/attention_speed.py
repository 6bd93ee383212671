"""What the card can do, and what decode and prefill attention make of it: one layer of an 8B-shaped model."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from agentctx_engine.attention.triton_kernels.decode import decode_attention, splits_for
from agentctx_engine.attention.triton_kernels.kv_view import KvView
from agentctx_engine.attention.triton_kernels.prefill import PrefillShape, cut_into_tiles, prefill_attention
from benchmarks import costs
from benchmarks.attention_case import exact_attention
from benchmarks.bench import COPY, MATRIX, Bench, Measurement
from benchmarks.exact import BOUNDS, poisoned, relative_error
from benchmarks.kernel_checks import Checked
from benchmarks.rows import Row, Target
from benchmarks.sizes import Sizes
from benchmarks.timing import Timing

BLOCK_SIZE = 16
MOST_CALLS = 64  # in one graph
LAYER_SECONDS = 2
LOOKED_AT = 3  # rows of a timed result that are compared with float64
DECODE_TARGET, DECODE_AT = Target(0.8), (64, 8192)
PREFILL_TARGET, PREFILL_AT = Target(0.6), (8192, 0.0)


def ceilings(bench: Bench) -> list[Measurement]:
    """A copy in the device's memory, bytes read and written; a product of square matrices."""

    def copy() -> Row:
        source = torch.randn(bench.sizes.copied_bytes // 4, device=bench.device)
        target = torch.empty_like(source)
        timing = bench.stopwatch.time(lambda _: void(target.copy_(source)), 2)
        bench.rates[COPY] = 2 * bench.sizes.copied_bytes / timing.median
        return Row("copy", figure=bench.rates[COPY] / 1e9, unit="GB/s", detail=timing.told())

    def multiply() -> Row:
        size = bench.sizes.matrix
        a, b = torch.randn(2, size, size, device=bench.device).to(bench.dtype)
        timing = bench.stopwatch.time(lambda _: void(a @ b), 4)
        bench.rates[MATRIX] = 2 * size**3 / timing.median
        return Row(matrix, figure=bench.rates[MATRIX] / 1e12, unit="TFLOP/s", detail=timing.told())

    matrix = f"{name_of(bench.dtype)} product of {bench.sizes.matrix:,}² matrices"
    return [Measurement("copy", 5, copy, rank=0), Measurement(matrix, 5, multiply, rank=0)]


def void(_: Tensor) -> None:
    """Forget a result: what is timed returns nothing."""


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def blocks_for(sizes: Sizes, token_bytes: int) -> int:
    """Blocks of a memory that the largest measurement and a timing's sets of sequences fit in."""
    most = max(max(sizes.batches) * max(sizes.contexts), max(sizes.prompts))
    return max(most, sizes.rotated_bytes // token_bytes) // BLOCK_SIZE + 1


def cut_tables(order: Tensor, sequences: int, tokens: int, rotated_tokens: int) -> Tensor:
    """Block ids in ``order`` → [calls, sequences, blocks], no block in two places, for sequences of ``tokens`` tokens: at
    least one call, and as many as hold ``rotated_tokens``, as far as blocks and ``MOST_CALLS`` allow."""
    width = -(-tokens // BLOCK_SIZE)
    wanted = -(-rotated_tokens // (sequences * tokens))
    calls = max(1, min(MOST_CALLS, wanted, len(order) // (sequences * width)))
    return order[: calls * sequences * width].view(calls, sequences, width)


class Layer:
    """Paged keys and values of one layer, random, with room for the largest measurement; its blocks in no order."""

    def __init__(self, bench: Bench) -> None:
        sizes = bench.sizes
        self.bench, self.heads, self.kv_heads, self.head_dim = (
            bench, sizes.heads, sizes.kv_heads, sizes.head_dim,
        )  # fmt: skip
        num_blocks = blocks_for(sizes, self.token_bytes)
        shape = (2, num_blocks, BLOCK_SIZE, self.kv_heads, self.head_dim)
        self.cache = torch.randn(shape, dtype=bench.dtype, device=bench.device)
        generator = torch.Generator().manual_seed(bench.random.getrandbits(32))
        self.order = torch.randperm(num_blocks, generator=generator).to(bench.device, torch.int32)

    @property
    def token_bytes(self) -> int:
        return 2 * self.kv_heads * self.head_dim * self.bench.dtype.itemsize

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)

    def tables(self, sequences: int, tokens: int) -> Tensor:
        """[calls, sequences, blocks]: as many sets of sequences as a timing should go through."""
        rotated = -(-self.bench.sizes.rotated_bytes // self.token_bytes)
        return cut_tables(self.order, sequences, tokens, rotated)

    def queries(self, rows: int) -> Tensor:
        shape = (rows, self.heads, self.head_dim)
        return torch.randn(shape, dtype=self.bench.dtype, device=self.bench.device)

    def check(
        self, kernel: str, name: str, table: Tensor, positions: list[int], queries: Tensor, out: Tensor
    ) -> None:
        """Compare some rows of a timed result, of one sequence with block ids ``table``, with float64."""
        used = table[: max(positions) // BLOCK_SIZE + 1].long()
        keys, values = self.cache[:, used].flatten(1, 2)[:, : max(positions) + 1]
        expected = exact_attention(keys, values, 0, positions, queries, window=None)
        error = relative_error(out, expected)
        self.bench.check(Checked.of(kernel, f"{name}, as timed", error, BOUNDS[self.bench.dtype]))


def decode_measurements(bench: Bench, layer: list[Layer]) -> Iterator[Measurement]:
    """Bytes a second, each key and value counted once; of the one ``layer`` that is there when they are run."""
    for batch in bench.sizes.batches:
        for context in bench.sizes.contexts:
            target = DECODE_TARGET if (batch, context) == DECODE_AT else None
            name = f"decode attention, {batch} × {context:,}"
            yield Measurement(
                name,
                6,
                partial(decode, layer, name, batch, context, target),
                target,
                rank=1 if target is None else 0,
            )


def decode(current: list[Layer], name: str, batch: int, context: int, target: Target | None) -> Row:
    [layer] = current
    bench, device = layer.bench, layer.bench.device
    tables, queries = layer.tables(batch, context), layer.queries(batch)
    out = poisoned(batch, layer.heads * layer.head_dim, dtype=bench.dtype, device=device)
    rows = torch.arange(batch, dtype=torch.int32, device=device)
    lengths = torch.full((batch,), context, dtype=torch.int32, device=device)
    splits = splits_for(batch, layer.kv_heads, context, bench.processors)
    kv = KvView.full(layer.cache)

    def work(call: int) -> None:
        decode_attention(
            queries, kv, out, rows=rows, tables=tables[call], lengths=lengths, window=None, scale=layer.scale,
            splits=splits,
        )  # fmt: skip

    timing = bench.stopwatch.time(work, len(tables))
    for sequence in bench.random.sample(range(batch), min(LOOKED_AT, batch)):
        # The last call is the one whose result is there.
        row = slice(sequence, sequence + 1)
        layer.check("decode attention", name, tables[-1, sequence], [context - 1], queries[row], out[row])
    moved = costs.decode_bytes(
        batch, context, heads=layer.heads, kv_heads=layer.kv_heads, head_dim=layer.head_dim,
        itemsize=bench.dtype.itemsize,
    )  # fmt: skip
    rate = moved / timing.median
    return Row(
        name, figure=rate / 1e9, unit="GB/s", share=bench.share(rate, COPY), share_of=COPY, target=target,
        detail=timing.told() | {"bytes": moved, "splits": splits, "calls": len(tables)},
    )  # fmt: skip


def prefill_measurements(bench: Bench, layer: list[Layer]) -> Iterator[Measurement]:
    """Operations a second of one prompt's attention, of which a share of the keys is there already."""
    for tokens in bench.sizes.prompts:
        for share in bench.sizes.cached_shares:
            target = PREFILL_TARGET if (tokens, share) == PREFILL_AT else None
            name = f"prefill attention, {tokens:,}, {share:.0%} cached".replace("%", " %")
            yield Measurement(
                name,
                6,
                partial(prefill, layer, name, tokens, int(tokens * share), target),
                target,
                rank=1 if target is None else 0,
            )


def prefill(current: list[Layer], name: str, tokens: int, cached: int, target: Target | None) -> Row:
    [layer] = current
    bench, device, computed = layer.bench, layer.bench.device, tokens - cached
    table, queries = layer.tables(1, tokens)[0], layer.queries(computed)
    out = poisoned(computed, layer.heads * layer.head_dim, dtype=bench.dtype, device=device)
    shape = PrefillShape.default(layer.head_dim, bench.dtype)
    pieces = cut_into_tiles([(0, 0, computed, cached)], shape.tokens(layer.heads // layer.kv_heads))
    tiles, kv = torch.tensor(pieces, dtype=torch.int32, device=device), KvView.full(layer.cache)

    def work(_: int) -> None:
        prefill_attention(
            queries, kv, out, tiles=tiles, tables=table, window=None, scale=layer.scale, shape=shape
        )

    timing: Timing = bench.stopwatch.time(work, 1)
    chosen = sorted({0, computed - 1, *(bench.random.randrange(computed) for _ in range(LOOKED_AT))})
    layer.check(
        "prefill attention", name, table[0], [cached + row for row in chosen], queries[chosen], out[chosen]
    )
    operations = costs.prefill_flops(tokens, cached, heads=layer.heads, head_dim=layer.head_dim)
    rate = operations / timing.median
    return Row(
        name, figure=rate / 1e12, unit="TFLOP/s", share=bench.share(rate, MATRIX), share_of=MATRIX, target=target,
        detail=timing.told() | {"operations": operations, "computed_tokens": computed},
    )  # fmt: skip


def measure_rates(bench: Bench) -> None:
    """What the device can do, which other measurements are shares of."""
    rates = ceilings(bench)
    bench.announce(rates)
    bench.measure(rates)


def measure_attention(bench: Bench) -> None:
    current: list[Layer] = []
    measurements = [*decode_measurements(bench, current), *prefill_measurements(bench, current)]
    layer = bench.prepared(measurements, LAYER_SECONDS, lambda: Layer(bench))
    if layer is not None:
        current.append(layer)
        bench.measure(measurements)
