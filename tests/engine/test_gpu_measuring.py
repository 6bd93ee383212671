"""What stands around the measurements of ``engine/benchmarks/gpu.py``: arithmetic, statistics, the budget, the table."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("triton")

from agentctx_engine.models import random_config
from agentctx_engine.models.random_model import RandomWeights
from agentctx_engine.models.weights import expected_shapes
from benchmarks import costs
from benchmarks.attention_speed import blocks_for, cut_tables
from benchmarks.bench import COPY, Bench, Measurement
from benchmarks.exact import NAN, poisoned, relative_error
from benchmarks.kernel_checks import Checked
from benchmarks.report import exit_code, text, told, write_json
from benchmarks.rows import Row, Target, aligned, figure_shown, table
from benchmarks.sizes import FULL, SMALL, Sizes
from benchmarks.timing import HostClock, Timing


@given(st.integers(1, 60), st.data())
def test_prefill_counts_each_pair_of_a_token_and_a_key(tokens: int, data: st.DataObject) -> None:
    cached = data.draw(st.integers(0, tokens))
    pairs = sum(1 for token in range(cached, tokens) for _ in range(token + 1))
    assert costs.prefill_flops(tokens, cached, heads=3, head_dim=5) == pairs * 3 * 5 * 2 * 2


def test_decode_counts_keys_values_queries_and_results() -> None:
    queries = torch.zeros(4, 6, 16, dtype=torch.bfloat16)
    cache = torch.zeros(2, 4 * 10, 2, 16, dtype=torch.bfloat16)  # ten tokens of each of four sequences
    moved = cache.nbytes + 2 * queries.nbytes
    assert costs.decode_bytes(4, 10, heads=6, kv_heads=2, head_dim=16, itemsize=2) == moved


@pytest.mark.parametrize("family", ["llama", "qwen3"])  # qwen3's embedding is its output matrix
def test_a_step_reads_all_weights_but_a_separate_embedding(family: str) -> None:
    config = random_config("llama" if family == "llama" else "qwen3")
    weights = RandomWeights(config, 1)
    tensors = {name: weights.tensor(name) for name, _ in expected_shapes(config)}
    assert costs.parameters(config) == sum(tensor.numel() for tensor in tensors.values())
    read = sum(t.nbytes for name, t in tensors.items() if name != "embedding" or config.tied_embeddings)
    assert costs.step_weight_bytes(config, 4) == read


def test_the_full_sizes_are_those_of_llama_3() -> None:
    assert costs.parameters(FULL.large.config) == 8_030_261_248
    assert costs.parameters(FULL.small.config) == 1_235_814_400
    assert costs.kv_token_bytes(FULL.large.config, 2) == 131_072
    assert FULL.turn.cached % 16 == 0  # whole blocks: exactly so much is reused
    for sizes in (FULL, SMALL):
        config = sizes.large.config
        assert sizes.turn.cached + sizes.turn.new < config.max_context
        assert {prod(shape) > 0 for _, shape in expected_shapes(config)} == {True}


@pytest.mark.parametrize("sizes", [FULL, SMALL], ids=["full", "small"])
def test_every_measurement_has_blocks_of_its_own(sizes: Sizes) -> None:
    token_bytes = 2 * sizes.kv_heads * sizes.head_dim * 2
    order = torch.randperm(blocks_for(sizes, token_bytes), dtype=torch.int32)
    rotated = sizes.rotated_bytes // token_bytes
    measured = [(batch, context) for batch in sizes.batches for context in sizes.contexts]
    for sequences, tokens in measured + [(1, tokens) for tokens in sizes.prompts]:
        tables = cut_tables(order, sequences, tokens, rotated)
        calls, rows, width = tables.shape
        assert calls >= 1
        assert (rows, width) == (sequences, tokens // 16)
        assert len(tables.unique()) == tables.numel()
        # A GPU's cache is several times smaller than what a timing goes through.
        assert sizes is SMALL or tables.numel() * 16 * token_bytes >= 2**28


def test_timing_tells_median_and_spread() -> None:
    timing = Timing.of([3.0, 1.0, 2.0])
    assert (timing.median, timing.spread) == (2.0, 1.0)
    assert timing.told() == {
        "median_seconds": 2.0, "least_seconds": 1.0, "greatest_seconds": 3.0, "samples": 3,
    }  # fmt: skip
    with pytest.raises(ValueError, match="one sample"):
        Timing.of([])


def test_the_clock_counts_calls() -> None:
    called: list[int] = []
    timing = HostClock().time(called.append, 3)
    assert called == [0, 0, 1, 2, 0, 1, 2]  # the first isn't timed
    assert len(timing.samples) == 2


def test_an_element_that_is_not_written_is_never_within_a_bound() -> None:
    out = poisoned(2, 3, dtype=torch.float32)
    out[0] = 1
    out[1, :2] = 1
    checked = Checked.of("kernel", "case", relative_error(out, torch.ones(2, 3)), 1e9)
    assert not checked.is_right
    assert "not written" in checked.faults[0]
    assert relative_error(torch.zeros(0, 3), torch.zeros(0, 3)) == 0
    assert (
        relative_error(torch.tensor([[1.0, 4.5], [1.0, 0.0]]), torch.tensor([[1.0, 4.0], [1.0, 0.0]]))
        == 0.125
    )
    assert not Checked.of("kernel", "case", 0.0, 1.0, a_slot_was_written=True).is_right
    assert Checked.of("kernel", "case", 0.0, 0.0, a_slot_was_written=False).is_right


@pytest.mark.parametrize(
    ("row", "shown"),
    [
        (Row("a", figure=4321.0, unit="GB/s"), "4,321 GB/s"),
        (Row("a", figure=4.3219, unit="ms"), "4.32 ms"),
        (Row("a"), ""),
    ],
)
def test_figures(row: Row, shown: str) -> None:
    assert figure_shown(row) == shown


def test_the_table_says_met_missed_and_why_not() -> None:
    rows = [
        Row("one", figure=4000.0, unit="GB/s", share=0.81, share_of=COPY, target=Target(0.8)),
        Row("two", figure=3.0, unit="ms", share=49.0, share_of="faster", share_unit="ratio", target=Target(50, "ratio")),
        Row("three", state="left out", target=Target(0.6), why="no time"),
        Row("four", figure=1.0, unit="ms"),
    ]  # fmt: skip
    shown = table(rows, means_speed=True).splitlines()
    assert len({len(line) for line in shown}) == 1  # columns line up
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in shown[2:]]
    assert cells == [
        ["one", "4,000 GB/s", "81 %", COPY, "≥ 80 %", "met"],
        ["two", "3 ms", "49 ×", "faster", "≥ 50 ×", "missed"],
        ["three", "", "", "", "≥ 60 %", "left out: no time"],
        ["four", "1 ms", "", "", "", ""],
    ]
    assert [row.met for row in rows] == [True, False, None, None]
    without = table(rows, means_speed=False)
    assert "met" not in without.replace("measured", "")
    assert without.count("not judged") == 2


def test_columns_of_numbers_stand_right() -> None:
    assert aligned([("a", "b"), ("x", "10")], right=[1]).splitlines()[2] == "| x   |  10 |"


def bench(budget: float = 100.0) -> Bench:
    return Bench(torch.device("cpu"), SMALL, budget, Random(1))


def failing(error: BaseException) -> Row:
    raise error


def test_what_fails_or_has_no_room_or_time_is_said_and_the_rest_measured() -> None:
    found = bench()
    measurements = [
        Measurement("slow", 1000, lambda: Row("slow", figure=1.0)),
        Measurement("large", 1, lambda: failing(torch.OutOfMemoryError("10 GiB\nmore"))),
        Measurement("broken", 1, lambda: failing(ValueError("no such thing"))),
        Measurement("good", 1, lambda: Row("good", figure=1.0), Target(0.5)),
        Measurement("never", 1, lambda: Row("never")),
    ]
    found.announce(measurements)
    found.measure(measurements[:4])
    assert list(found.rows) == ["slow", "large", "broken", "good", "never"]
    assert [(row.state, row.why) for row in found.rows.values()] == [
        ("left out", "0 of 100 s were spent"),
        ("left out", "no memory for it: 10 GiB"),
        ("failed", "ValueError: no such thing"),
        ("measured", ""),
        ("left out", "not reached"),
    ]
    assert exit_code(found) == 3


def test_a_short_budget_goes_to_what_ranks_first() -> None:
    order: list[str] = []

    def measured(name: str) -> Row:
        order.append(name)
        return Row(name)

    found = bench()
    found.measure(
        Measurement(name, 1, lambda name=name: measured(name), rank=rank)  # type: ignore[misc]
        for name, rank in (("b", 1), ("c", 2), ("a", 0))
    )
    assert order == ["a", "b", "c"]


def test_what_measurements_need_and_cannot_have_is_said_in_each_row() -> None:
    found = bench()
    measurements = [Measurement(name, 1, lambda: Row("never")) for name in ("a", "b")]
    assert found.prepared(measurements, 1, lambda: "made") == "made"
    assert found.prepared(measurements, 1, lambda: failing(MemoryError("full"))) is None
    assert {row.why for row in found.rows.values()} == {"no memory for it: full"}
    assert exit_code(found) == 0
    assert found.prepared(measurements, 1000, lambda: failing(AssertionError())) is None
    assert {row.why for row in found.rows.values()} == {"0 of 100 s were spent"}
    assert found.prepared(measurements, 1, lambda: failing(ValueError("no"))) is None
    assert {row.state for row in found.rows.values()} == {"failed"}
    assert exit_code(found) == 3


def test_a_wrong_kernel_is_a_finding_and_a_missed_target_is_not(tmp_path: Path) -> None:
    found = bench()
    found.measure([Measurement("slow", 1, lambda: Row("slow", share=0.1, target=Target(0.8)))])
    found.check(Checked.of("right", "case", 0.5, 1.0))
    assert exit_code(found) == 0
    found.check(Checked.of("wrong", "case", NAN, 1.0))
    assert exit_code(found) == 1
    assert "WRONG wrong: error nan of at most 1; an element was not written, or is no number (case)" in text(
        found, 7
    )
    path = tmp_path / "out" / "gpu.json"
    write_json(path, told(found, seed=7))
    contents = json.loads(path.read_text())
    assert [check["error"] for check in contents["checks"]] == [0.5, None]
    assert contents["rows"][0]["met"] is False
    assert [file.name for file in path.parent.iterdir()] == ["gpu.json"]


def test_shares_are_of_measured_rates_only() -> None:
    found = bench()
    assert found.share(50, COPY) is None
    found.rates[COPY] = 100.0
    assert found.share(50, COPY) == 0.5
