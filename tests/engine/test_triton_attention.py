"""The Triton backend behind the engine, in Triton's interpreter: what is compared for the default backend, with tiny models."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from functools import cache
from random import Random
from typing import Literal
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from agentctx_engine.attention import AttentionBackend, Batch, Chunk, ReferenceAttention
from agentctx_engine.attention.named import accelerated_attention, attention_backend
from agentctx_engine.attention.page_lists import PageLists
from agentctx_engine.models import FAMILIES, Family, Model, random_config
from agentctx_engine.models.random_model import RandomWeights
from agentctx_engine.runtime import Engine, SamplingParams
from agentctx_engine.runtime.build import build_core
from agentctx_engine.runtime.config import EngineConfig
from agentctx_engine.runtime.core import EngineCore
from agentctx_engine.runtime.request import Request, Sample

from .answers import assert_same_answers, assert_same_bits, fresh_answer
from .clients import Clients, distinct
from .schedules import Arrival, Schedule, check_end, run, schedules

pytest.importorskip("triton")

VOCABULARY = 256
SCHEDULES = int(
    os.environ.get("AGENTCTX_TRITON_SCHEDULES", "4")
)  # the interpreter takes some ten seconds for one


@cache
def model(family: Family, attention: str) -> Model:
    layers = 3 if family == "gemma3" else 2  # every third of Gemma's sees the whole context
    config = random_config(family, vocab_size=VOCABULARY, num_layers=layers, window=24)
    return Model(RandomWeights(config, seed=1), attention=attention_backend(attention))


@cache
def alone(family: Family, attention: str, prompt: tuple[int, ...], max_tokens: int, exact: bool) -> Sample:
    """The greedy answer of a fresh engine that has no cache."""
    return fresh_answer(model(family, attention), prompt, max_tokens, deterministic=exact)


@settings(max_examples=SCHEDULES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    family=st.sampled_from(FAMILIES),
    schedule=schedules(vocab_size=VOCABULARY, max_requests=4, max_prompt=48, max_output=6),
)
def test_caching_changes_no_answer(family: Family, schedule: Schedule) -> None:
    """Random schedules with the Triton backend, against fresh engines without a cache, whose attention is torch's."""
    result = run(model(family, "triton"), schedule, keep_logits=True)
    check_end(result)
    assert_same_answers(
        result,
        schedule,
        lambda arrival: alone(family, "cpu", arrival.prompt, arrival.max_tokens, exact=False),
    )
    event(f"hits: {result.core.totals.cached_tokens > 0}, preempted: {result.core.totals.preemptions > 0}")


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    family=st.sampled_from(FAMILIES),
    schedule=schedules(
        vocab_size=VOCABULARY, max_requests=4, max_prompt=48, max_output=6, deterministic=True
    ),
)
def test_deterministic_mode_is_bitwise_the_same_under_this_backend(
    family: Family, schedule: Schedule
) -> None:
    """Its tiles bring their own attention, so no backend may touch its bits."""
    result = run(model(family, "triton"), schedule, keep_logits=True)
    check_end(result)
    assert_same_bits(
        result,
        schedule,
        lambda arrival: alone(family, "cpu", arrival.prompt, arrival.max_tokens, exact=True),
    )


def built(**options: int) -> EngineCore:
    return build_core(model("llama", "triton"), EngineConfig(**options))


def answered(core: EngineCore, *requests: Request) -> None:
    """Run to the end; every sample's answer is that of a fresh engine whose attention is torch's."""
    while core.has_work:
        core.step()
        core.kv.check()
    for request in requests:
        length = request.params.max_tokens
        expected = alone("llama", "cpu", tuple(request.prompt.tolist()), length, exact=False)
        assert [sample.output for sample in request.samples] == [expected.output] * request.params.n


def test_lesson_4_a_fork_shares_its_prompt() -> None:
    core = built(block_size=16, num_blocks=16)
    request = Clients(core).add(distinct(0, 40), max_tokens=3, n=3)
    core.step()
    assert core.step().step.copies == [(2, 3), (2, 4)]
    assert [list(s.kv.block_tables[0]) for s in request.samples] == [[0, 1, 3], [0, 1, 4], [0, 1, 2]]
    answered(core, request)
    assert request.computed_tokens == 40


def test_lesson_5_two_requests_share_a_system_prompt() -> None:
    core = built(block_size=16, num_blocks=32)
    clients = Clients(core)
    first = clients.add([*distinct(0, 70), *distinct(7, 20)], max_tokens=4)
    core.step()
    second = clients.add([*distinct(0, 70), *distinct(50, 33)], max_tokens=2)
    answered(core, first, second)
    assert (first.cached_tokens, first.computed_tokens) == (0, 90)
    assert (second.cached_tokens, second.computed_tokens) == (64, 39)


def test_a_repeated_prompt_of_64_computes_16() -> None:
    core = built(block_size=16, num_blocks=32)
    for expected in (0, 48, 48):
        request = Clients(core).add(distinct(0, 64), max_tokens=1)
        answered(core, request)
        assert (request.cached_tokens, request.computed_tokens) == (expected, 64 - expected)


@pytest.mark.parametrize("kind", ["hash", "radix"])
def test_ten_agent_turns_hit_what_was_predicted(kind: Literal["hash", "radix"]) -> None:
    """System prompt and tools of 48 tokens; each turn 10 of the user's and 4 of the model's."""
    history, hits = distinct(0, 48), []
    with Engine(model("llama", "triton"), num_blocks=64, block_size=8, prefix_cache=kind) as engine:
        for turn in range(10):
            history += distinct(11 * turn, 10)
            predicted = engine.match(history)
            result = engine.generate(history, SamplingParams(max_tokens=4, stop_token_ids=()))
            assert (result.cached_tokens, result.lost) == (predicted.hit_tokens, predicted.lost)
            history += result.token_ids
            hits.append(result.cached_tokens)
    assert hits == [0, *((48 + 14 * turn - 1) // 8 * 8 for turn in range(1, 10))]


@pytest.mark.parametrize("kind", ["int8", "fp8"])
def test_quantized_memory_reads_the_same_with_either_backend(kind: str) -> None:
    prompt = tuple((7 * i) % 250 + 1 for i in range(40))
    config = EngineConfig(block_size=8, num_blocks=32, kv_kind="int8" if kind == "int8" else "fp8")
    logits = []
    for attention in ("triton", "reference"):
        arrivals = (Arrival(prompt[:20], 1, step=0), Arrival(prompt, 3, step=3))
        _, request = run(model("llama", attention), Schedule(config, arrivals), keep_logits=True).requests
        assert request.cached_tokens == 16
        logits.append(np.stack(request.samples[0].logits))
    # A number may round to the code beside.
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-2, rtol=0)


def backend_or_skip(name: str) -> tuple[AttentionBackend, torch.device, torch.dtype, float]:
    """(the backend, where it runs here, numbers that it takes, the largest error of them)."""
    if name == "flashinfer":
        if importlib.util.find_spec("flashinfer") is None or not torch.cuda.is_available():
            pytest.skip("FlashInfer needs its package and a GPU")
        return attention_backend(name), torch.device("cuda"), torch.float16, 4e-3
    return attention_backend(name), torch.device("cpu"), torch.float32, 2e-6


@pytest.mark.parametrize("name", ["triton", "flashinfer"])
def test_a_mixed_batch_like_the_reference(name: str) -> None:
    """Decodes, chunks after prefixes and a whole prompt in one step, with padding rows behind, under two windows."""
    backend, device, dtype, most = backend_or_skip(name)
    head_dim = 64 if name == "flashinfer" else 32  # it has no smaller ones
    random, generator = Random(3), torch.Generator().manual_seed(3)
    lengths = [(33, 1), (0, 12), (20, 7), (0, 1), (5, 2)]
    free = random.sample(range(40), 40)
    chunks = []
    for start, count in lengths:
        table, free = free[:6], free[6:]
        chunks.append(Chunk([1] * count, start, (table, table[::-1])))
    batch = Batch.build(chunks, block_size=8, device=device)
    queries = torch.randn(batch.num_tokens + 3, 6, head_dim, generator=generator).to(device, dtype)
    cache = torch.randn(2, 40, 8, 2, head_dim, generator=generator).to(device, dtype)
    windows = [None, 9]
    plans = [b.plan(batch, windows, dtype) for b in (backend, ReferenceAttention())]
    for group in (0, 1):
        ours, expected = (plan.attend(group, queries, cache, 0.3) for plan in plans)
        torch.testing.assert_close(ours, expected, atol=most, rtol=0)


@given(data=st.data(), block_size=st.integers(1, 9))
def test_page_lists_lead_to_the_keys_of_the_block_tables(data: st.DataObject, block_size: int) -> None:
    """As FlashInfer reads them: a sequence's pages, its length from their number and the last one's tokens, and its rows."""
    chunks = []
    for _ in range(data.draw(st.integers(1, 4))):
        start, count = data.draw(st.integers(0, 30)), data.draw(st.integers(1, 8))
        blocks = -(-(start + count) // block_size) + data.draw(st.integers(0, 2))
        tables = [data.draw(st.lists(st.integers(0, 99), min_size=blocks, max_size=blocks)) for _ in (0, 1)]
        chunks.append(Chunk([1] * count, start, (tables[0], np.array(tables[1], dtype=np.int32))))
    for group in (0, 1):
        lists = PageLists.of(chunks, group, block_size)
        assert lists.query_starts[0] == lists.starts[0] == 0
        for i, chunk in enumerate(chunks):
            pages = lists.pages[lists.starts[i] : lists.starts[i + 1]]
            assert 1 <= lists.last_page_lens[i] <= block_size
            assert (len(pages) - 1) * block_size + lists.last_page_lens[i] == chunk.context_len
            assert pages.tolist() == list(chunk.block_tables[group][: len(pages)])
            assert lists.query_starts[i + 1] - lists.query_starts[i] == len(chunk.token_ids)


def test_backends_by_name() -> None:
    for name in ("cpu", "reference", "triton"):
        assert type(attention_backend(name)).__name__.lower() == f"{name}attention"
    with pytest.raises(ValueError, match="'cpu', 'reference', 'triton' or 'flashinfer'"):
        attention_backend("flash")
    if importlib.util.find_spec("flashinfer") is None:
        with pytest.raises(ImportError, match=r"pip install flashinfer-python, or take 'triton'"):
            attention_backend("flashinfer")
    with (
        mock.patch("importlib.util.find_spec", return_value=object()),
        mock.patch("torch.cuda.is_available", return_value=False),
        pytest.raises(RuntimeError, match="needs a CUDA GPU: take 'triton' or 'cpu'"),
    ):
        attention_backend("flashinfer")
    assert type(accelerated_attention(torch.device("cuda"))).__name__ == "TritonAttention"
    assert type(accelerated_attention(torch.device("mps"))).__name__ == "ReferenceAttention"


def test_triton_is_imported_only_when_it_is_chosen() -> None:
    code = (
        "import sys, agentctx_engine, agentctx_engine.models\n"
        "from agentctx_engine.attention.named import attention_backend\n"
        "attention_backend('cpu')\n"
        "assert not any(name.startswith('agentctx_engine.attention.triton') for name in sys.modules)\n"
        "attention_backend('triton')\n"
        "assert 'agentctx_engine.attention.triton_backend' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
