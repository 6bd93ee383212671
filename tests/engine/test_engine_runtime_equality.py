"""Caching changes nothing, on real decoders of every family: random schedules against fresh engines without a cache."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from agentctx_engine.models import FAMILIES, Family, Model, random_config, random_model
from agentctx_engine.runtime.build import build_core
from agentctx_engine.runtime.config import EngineConfig
from agentctx_engine.runtime.model_runner import split_into_waves
from agentctx_engine.runtime.request import Sample

from .answers import assert_same_answers, assert_same_bits, fresh_answer, same_bits
from .clients import Clients, distinct
from .schedules import Arrival, Schedule, check_end, run, schedules

VOCABULARY = 256


@cache
def model(family: Family, kernels: str = "c") -> Model:
    """``kernels``: what a model that isn't deterministic decodes with, "c" (where there is a compiler) or "torch"."""
    layers = 3 if family == "gemma3" else 2  # every third of Gemma's sees the whole context
    config = random_config(family, vocab_size=VOCABULARY, num_layers=layers, window=24)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTCTX_ENGINE_KERNELS", kernels)
        return random_model(family, seed=1, config=config)


@cache
def alone(family: Family, prompt: tuple[int, ...], max_tokens: int, deterministic: bool) -> Sample:
    """The greedy answer of a fresh engine that has no cache, for this one request in one chunk."""
    return fresh_answer(model(family), prompt, max_tokens, deterministic=deterministic)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    family=st.sampled_from(FAMILIES),
    schedule=schedules(vocab_size=VOCABULARY, max_output=16, deterministic=True),
)
def test_logits_are_bitwise_those_of_a_fresh_engine_without_caching(
    family: Family, schedule: Schedule
) -> None:
    """Deterministic mode, whatever was cached, cut into chunks, batched, forked, preempted or evicted."""
    check_bits(model(family), family, schedule)


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    family=st.sampled_from(FAMILIES),
    schedule=schedules(vocab_size=VOCABULARY, max_output=16, deterministic=True),
)
def test_bits_are_the_same_without_the_c_kernels(family: Family, schedule: Schedule) -> None:
    """A model loaded without them against fresh engines of one loaded with them."""
    check_bits(model(family, "torch"), family, schedule)


def check_bits(subject: Model, family: Family, schedule: Schedule) -> None:
    """All of a deterministic schedule's logits equal those of fresh engines."""
    result = run(subject, schedule, keep_logits=True)
    check_end(result)
    assert_same_bits(
        result,
        schedule,
        lambda arrival: alone(family, arrival.prompt, arrival.max_tokens, deterministic=True),
    )
    event(f"hits: {result.core.totals.cached_tokens > 0}, preempted: {result.core.totals.preemptions > 0}")


@pytest.mark.parametrize("kernels", ["c", "torch"])
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    family=st.sampled_from(FAMILIES), schedule=schedules(vocab_size=VOCABULARY, max_requests=5, max_output=8)
)
def test_the_fast_mode_gives_the_same_answers(kernels: str, family: Family, schedule: Schedule) -> None:
    """But for rounding: where an answer leaves the other one, the two tokens' logits are as good as equal."""
    result = run(model(family, kernels), schedule, keep_logits=True)
    check_end(result)
    assert_same_answers(
        result,
        schedule,
        lambda arrival: alone(family, arrival.prompt, arrival.max_tokens, deterministic=False),
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_every_cut_of_a_prompt_gives_the_same_bits(family: Family) -> None:
    """A prompt of 47 tokens after each of its prefixes was cached, in blocks of 4 and 8, whole and in chunks of 5."""
    prompt = tuple((7 * i) % 250 + 1 for i in range(47))
    expected = alone(family, prompt, 4, deterministic=True)
    cuts = set()
    for block_size in (4, 8):
        for chunk in (None, 5):
            config = EngineConfig(
                block_size=block_size, num_blocks=64, max_chunk_tokens=chunk, deterministic=True
            )
            for cut in range(block_size, 47, block_size):
                before = Arrival((*prompt[:cut], 255), max_tokens=1, step=0)
                arrivals = (before, Arrival(prompt, max_tokens=4, step=20))
                _, request = run(model(family), Schedule(config, arrivals), keep_logits=True).requests
                assert (request.cached_tokens, request.computed_tokens) == (cut, 47 - cut)
                assert same_bits(request.samples[0].logits, expected.logits)
                cuts.add((block_size, chunk, cut))
    assert len(cuts) == 2 * 11 + 2 * 5


def test_sharing_within_a_step_waits_for_the_pass_that_writes() -> None:
    """The second request starts at 32, on blocks that the first, which starts at 12, fills in the same step.

    In tiles of 16 rows both would fit one pass: the step is run in two waves.
    """
    stem = tuple(range(1, 41))
    config = EngineConfig(block_size=4, num_blocks=64, deterministic=True)
    arrivals = (
        Arrival((*stem[:12], 99), max_tokens=1, step=0),
        Arrival(stem[:35], max_tokens=3, step=3),
        Arrival((*stem[:32], 77, 78), max_tokens=3, step=3),
    )
    result = run(model("llama"), Schedule(config, arrivals), keep_logits=True)
    assert [r.cached_tokens for r in result.requests] == [0, 12, 32]
    for request in result.requests[1:]:
        expected = alone("llama", tuple(request.prompt.tolist()), 3, deterministic=True)
        assert same_bits(request.samples[0].logits, expected.logits)


def test_a_step_of_several_waves_in_which_no_prompt_ends() -> None:
    """No row wants logits: 16 tokens of the first prompt and one of the second, which shares the blocks being filled."""
    first, second = tuple(range(1, 18)), tuple(range(1, 7))
    config = EngineConfig(
        block_size=4,
        num_blocks=19,
        max_step_tokens=17,
        max_chunk_tokens=16,
        max_samples=3,
        deterministic=True,
    )
    arrivals = (Arrival(first, max_tokens=3, step=0), Arrival(second, max_tokens=3, step=0))
    result = run(model("llama"), Schedule(config, arrivals), keep_logits=True)
    assert [r.cached_tokens for r in result.requests] == [0, 4]
    for request in result.requests:
        expected = alone("llama", tuple(request.prompt.tolist()), 3, deterministic=True)
        assert same_bits(request.samples[0].logits, expected.logits)


def test_waves_follow_chains_of_sharing() -> None:
    core = build_core(model("llama"), EngineConfig(block_size=4, num_blocks=64, deterministic=True))
    clients = Clients(core)
    for prompt in (distinct(0, 9), distinct(0, 17), distinct(0, 30), distinct(50, 9)):
        clients.add(prompt, max_tokens=2)
    step = core.scheduler.schedule()
    waves = split_into_waves(step, 4)
    assert [[c.sample.request.id for c in wave] for wave in waves] == [[0, 3], [1], [2]]
