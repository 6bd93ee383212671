"""Recorded decode steps: padded to buckets, run again on tensors that stay, and equal to steps that are run one by one."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from torch import Tensor

from agentctx_engine import Engine
from agentctx_engine.attention import Batch, Chunk
from agentctx_engine.attention.decode_batch import DecodeBuffers
from agentctx_engine.attention.named import attention_backend
from agentctx_engine.models import FAMILIES, Family, Model, random_config, random_model
from agentctx_engine.models.random_model import RandomWeights
from agentctx_engine.runtime import build
from agentctx_engine.runtime.config import EngineConfig
from agentctx_engine.runtime.decode_graphs import (
    CudaGraphRecorder,
    DecodeGraphs,
    EagerRecorder,
    Recorder,
    buckets_for,
    can_record,
)

from .answers import TIE
from .same_runs import assert_same_runs
from .schedules import Arrival, Run, Schedule, run, schedules
from .tape import TapeRecorder

VOCABULARY, BLOCK, WIDTH, BLOCKS = 256, 8, 6, 40
TRITON_SCHEDULES = int(os.environ.get("AGENTCTX_TRITON_SCHEDULES", "2"))
QUIET = list(HealthCheck)


@cache
def model(family: Family, attention: str, device: str = "cpu") -> Model:
    """Without the C kernels, of which a tape knows nothing."""
    layers = 3 if family == "gemma3" else 2  # every third of Gemma's sees the whole context
    config = random_config(
        family, vocab_size=VOCABULARY, num_layers=layers, num_heads=2, num_kv_heads=1, window=24
    )
    if attention == "triton":
        pytest.importorskip("triton")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTCTX_ENGINE_KERNELS", "torch")
        return Model(RandomWeights(config, seed=1), attention=attention_backend(attention), device=device)


def recorded(used: Model, schedule: Schedule, recorder: Recorder) -> Run:
    """``schedule`` with its decode steps recorded, its tensors as wide as its longest request needs."""
    longest = max(len(a.prompt) + a.max_tokens for a in schedule.arrivals)
    config = replace(schedule.config, cuda_graphs=True, max_context=longest + 1)
    with mock.patch.object(build, "recorder_for", return_value=recorder):
        return run(used, replace(schedule, config=config), keep_logits=True)


@settings(max_examples=16, deadline=None, derandomize=True, suppress_health_check=QUIET)
@given(
    family=st.sampled_from(FAMILIES),
    schedule=schedules(vocab_size=VOCABULARY, max_requests=5, max_prompt=30, max_output=12),
)
def test_recorded_steps_change_no_answer(family: Family, schedule: Schedule) -> None:
    """From tapes, which repeat operations on the tensors of their recording, be the batch what it may by then."""
    tape = TapeRecorder()
    result = recorded(model(family, "reference"), schedule, tape)
    assert_same_runs(result, run(model(family, "reference"), schedule, keep_logits=True))
    graphs = result.core.runner.graphs
    assert graphs is not None
    event(f"buckets: {len(graphs.recorded)}")
    event(f"run again: {tape.runs > len(graphs.recorded)}")


@settings(max_examples=TRITON_SCHEDULES, deadline=None, derandomize=True, suppress_health_check=QUIET)
@given(
    family=st.sampled_from(["llama", "gemma3"]),
    schedule=schedules(vocab_size=VOCABULARY, max_requests=3, max_prompt=12, max_output=5),
)
def test_recorded_triton_kernels_change_no_answer(family: Family, schedule: Schedule) -> None:
    """The kernels' launches are on the tape, with the sizes of the recording."""
    result = recorded(model(family, "triton"), schedule, TapeRecorder())
    assert_same_runs(result, run(model(family, "reference"), schedule, keep_logits=True))


def test_most_of_a_long_answer_comes_from_recordings() -> None:
    """Three prompts at once: one step reads them, the 11 others decode, the last ones for fewer."""
    tape, config = TapeRecorder(), EngineConfig(num_blocks=40)
    arrivals = tuple(
        Arrival(tuple(range(3 * i + 1, 3 * i + 9)), length, step=0) for i, length in enumerate((12, 5, 9))
    )
    used, schedule = model("llama", "reference"), Schedule(config, arrivals)
    result = recorded(used, schedule, tape)
    assert_same_runs(result, run(used, schedule, keep_logits=True))
    assert result.core.totals.steps == 12
    assert tape.runs == 11
    assert result.core.runner.graphs is not None
    assert result.core.runner.graphs.recorded == (4, 2, 1)


@given(most=st.integers(1, 1100))
def test_buckets_waste_little(most: int) -> None:
    buckets = buckets_for(most)
    assert buckets[-1] == most
    assert list(buckets) == sorted(set(buckets))
    for rows in range(1, most + 1):
        bucket = next(size for size in buckets if size >= rows)
        assert bucket - rows <= max(7 if rows < 256 else 15, 0)
        assert bucket < 2 * rows or bucket <= 2


# -- the tensors that stay ------------------------------------------------------------------------------------------


def memory(used: Model, seed: int, *, poison: bool = False) -> list[Tensor]:
    """KV memory of random numbers, the spare block last."""
    config, generator = used.config, torch.Generator().manual_seed(seed)
    shape = (2, BLOCKS + 1, BLOCK, config.num_kv_heads, config.head_dim)
    caches = [torch.randn(shape, generator=generator) for _ in range(config.num_layers)]
    for cache_ in caches:
        cache_[:, BLOCKS] = torch.nan if poison else 0.0
    return [cache_.to(used.device) for cache_ in caches]


def graphs_of(used: Model, caches: list[Tensor], recorder: Recorder, rows: int = 8) -> DecodeGraphs:
    groups = len(used.config.layer_groups)
    buffers = DecodeBuffers(
        rows=rows, width=WIDTH, block_size=BLOCK, spare_blocks=[BLOCKS] * groups, device=used.device
    )
    return DecodeGraphs(used, caches, buffers, max_samples=rows, recorder=recorder)


def singles(used: Model, random: Random, count: int) -> list[Chunk]:
    """One token of each of ``count`` sequences of random lengths, in blocks of their own."""
    free = random.sample(range(BLOCKS), BLOCKS)
    groups = len(used.config.layer_groups)
    chunks = []
    for _ in range(count):
        start = random.randrange(4 * BLOCK)
        held, free = free[: start // BLOCK + 1], free[start // BLOCK + 1 :]
        chunks.append(Chunk([random.randrange(VOCABULARY)], start, (held,) * groups))
    return chunks


@pytest.mark.parametrize("attention", ["reference", "triton"])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_padding_and_leftovers_reach_nothing(family: Family, attention: str) -> None:
    """Batches of falling and rising sizes on one set of tensors, to the bit as on a fresh one; written are only the tokens'
    own slots and the spare block, which may hold anything."""
    used, random = model(family, attention), Random(7)
    sizes = [7, 3, 8, 1, 5, 2] if attention == "reference" else [3, 1, 4, 2]
    batches = [singles(used, random, size) for size in sizes]
    ours, fresh = memory(used, 1, poison=True), memory(used, 1)
    stays = graphs_of(used, ours, TapeRecorder())
    for chunks in batches:
        before = [cache_.clone() for cache_ in ours]
        logits = stays.run(chunks).clone()
        assert torch.isfinite(logits).all()
        expected = graphs_of(used, fresh, EagerRecorder()).run(chunks)
        assert torch.equal(logits, expected)
        written = torch.zeros(BLOCKS + 1, BLOCK, dtype=torch.bool)
        written[BLOCKS] = True
        for chunk in chunks:
            written[chunk.block_tables[0][chunk.start // BLOCK], chunk.start % BLOCK] = True
        for old, new in zip(before, ours, strict=True):
            assert torch.equal(old[:, ~written], new[:, ~written])
    assert stays.recorded == ((8, 4, 1, 2) if attention == "reference" else (4, 1, 2))


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_full_bucket_is_to_the_bit_what_the_kernels_give_alone(family: Family) -> None:
    """No padding and one split: then ``forward`` runs the same kernels on the same shapes."""
    used, random = model(family, "triton"), Random(5)
    chunks = singles(used, random, 4)
    ours, alone = memory(used, 2), memory(used, 2)
    expected = used.forward(Batch.build(chunks, block_size=BLOCK), alone)
    logits = graphs_of(used, ours, TapeRecorder()).run(chunks)
    assert torch.equal(logits, expected)
    for one, other in zip(ours, alone, strict=True):
        assert torch.equal(one[:, :BLOCKS], other[:, :BLOCKS])


def lengths_stay(patch: pytest.MonkeyPatch) -> None:
    copy = DecodeBuffers._copy

    def without_lengths(self: DecodeBuffers, numbers: Tensor, tables: Tensor) -> None:
        before = self._lengths.clone()
        copy(self, numbers, tables)
        if before.any():
            self._lengths.copy_(before)

    patch.setattr(DecodeBuffers, "_copy", without_lengths)


def padding_writes_where_it_wrote_last(patch: pytest.MonkeyPatch) -> None:
    fill = DecodeBuffers.fill

    def to_block_3(self: DecodeBuffers, chunks: Any, rows: int) -> None:
        self._spare_slots[:] = 3 * BLOCK
        fill(self, chunks, rows)

    patch.setattr(DecodeBuffers, "fill", to_block_3)


def a_step_is_run_on_the_tensors_of_its_own(patch: pytest.MonkeyPatch) -> None:
    """As if an input were made anew for each step: a recording then reads the first step's."""
    first = DecodeBuffers.first

    def copied(self: DecodeBuffers, rows: int) -> Any:
        batch = first(self, rows)
        return replace(batch, token_ids=batch.token_ids.clone())

    patch.setattr(DecodeBuffers, "first", copied)


@pytest.mark.parametrize(
    "mutation", [lengths_stay, padding_writes_where_it_wrote_last, a_step_is_run_on_the_tensors_of_its_own]
)
def test_what_would_go_wrong_is_noticed(
    mutation: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    test_padding_and_leftovers_reach_nothing("llama", "reference")
    graphs = graphs_of(model("llama", "reference"), memory(model("llama", "reference"), 1), TapeRecorder())
    batches = [singles(model("llama", "reference"), Random(seed), 3) for seed in (1, 2)]
    alone = memory(model("llama", "reference"), 1)
    mutation(monkeypatch)
    wrong = 0
    for chunks in batches:
        expected = model("llama", "reference").forward(Batch.build(chunks, block_size=BLOCK), alone)
        wrong += not torch.allclose(graphs.run(chunks), expected, atol=TIE)
        wrong += not torch.equal(graphs._caches[0][:, 3, 1:], alone[0][:, 3, 1:])
    if mutation is padding_writes_where_it_wrote_last:
        wrong += not torch.equal(graphs._caches[0][:, 3], alone[0][:, 3])
    assert wrong


def test_what_can_be_recorded_and_what_not() -> None:
    assert can_record(model("llama", "reference"))
    assert not can_record(random_model("llama"))  # the CPU's attention is planned anew for each step
    with pytest.raises(
        ValueError, match="can't be had with this model's attention: take the attention backend 'triton'"
    ):
        Engine(random_model("llama"), num_blocks=8, cuda_graphs=True)
    with pytest.raises(ValueError, match="this model's attention and quantized KV memory"):
        Engine(random_model("llama"), num_blocks=8, cuda_graphs=True, kv_kind="int8")
    quantized = EngineConfig(num_blocks=8, cuda_graphs=True, kv_kind="int8")
    with Engine(model("llama", "reference"), quantized) as engine:
        assert engine._core.runner.graphs is not None
    with pytest.raises(ValueError, match="drop cuda_graphs"):
        EngineConfig(deterministic=True, cuda_graphs=True)
    with Engine(model("llama", "reference"), num_blocks=8) as engine:
        assert engine._core.runner.graphs is None  # on a CPU they are for those who ask


def test_only_steps_of_single_wanted_tokens_are_recorded() -> None:
    used = model("llama", "reference")
    graphs = graphs_of(used, memory(used, 1), EagerRecorder(), rows=2)
    single, silent = Chunk([1], 3, ([0],)), Chunk([1], 3, ([0],), logit_rows=0)
    assert graphs.take([single, single])
    assert not graphs.take([single, single, single])
    assert not graphs.take([single, silent])
    assert not graphs.take([single, Chunk([1, 2], 3, ([0],))])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="captures on a GPU")
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_a_captured_graph_is_to_the_bit_what_it_captured(family: Family) -> None:
    device = torch.device("cuda")
    used, random = model(family, "triton", "cuda"), Random(11)
    captured, eager = memory(used, 3), memory(used, 3)
    graphs = graphs_of(used, captured, CudaGraphRecorder(device))
    for size in (7, 3, 8, 1, 5, 2, 8, 3):
        chunks = singles(used, random, size)
        logits = graphs.run(chunks).clone()
        assert torch.equal(logits, graphs_of(used, eager, EagerRecorder()).run(chunks))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="captures on a GPU")
def test_an_engine_on_a_gpu_answers_from_graphs() -> None:
    config = EngineConfig(num_blocks=40)
    arrivals = tuple(Arrival(tuple(range(3 * i + 1, 3 * i + 9)), 12, step=i) for i in range(3))
    used, schedule = model("gemma3", "triton", "cuda"), Schedule(config, arrivals)
    result = recorded(used, schedule, CudaGraphRecorder(torch.device("cuda")))
    assert result.core.runner.graphs is not None
    assert result.core.runner.graphs.recorded
    assert_same_runs(result, run(model("gemma3", "reference", "cuda"), schedule, keep_logits=True))
