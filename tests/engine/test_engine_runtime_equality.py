"""Caching changes nothing, on real decoders of every family: random schedules against fresh engines without a cache."""

from __future__ import annotations

from functools import cache

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from agentctx_engine.models import FAMILIES, Family, Model, random_model
from agentctx_engine.runtime.config import EngineConfig

from .schedules import Arrival, Schedule, cancelled, check_end, run, schedules

VOCABULARY = 512


@cache
def model(family: Family) -> Model:
    return random_model(family, seed=1)


@cache
def alone(family: Family, prompt: tuple[int, ...], max_tokens: int) -> tuple[int, ...]:
    """The greedy output of a fresh engine that has no cache, for this one request in one chunk."""
    config = EngineConfig(num_blocks=16, block_size=16, prefix_cache="none")
    result = run(model(family), Schedule(config, (Arrival(prompt, max_tokens, step=0),)), check=False)
    assert result.requests[0].computed_tokens == len(prompt)
    return tuple(result.requests[0].samples[0].output)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(family=st.sampled_from(FAMILIES), schedule=schedules(vocab_size=VOCABULARY, max_output=16))
def test_greedy_outputs_equal_those_of_a_fresh_engine_without_caching(
    family: Family, schedule: Schedule
) -> None:
    result = run(model(family), schedule)
    check_end(result)
    for request, arrival in zip(result.requests, schedule.arrivals, strict=True):
        expected = list(alone(family, arrival.prompt, arrival.max_tokens))
        for sample in request.samples:
            if cancelled(request):
                assert sample.output == expected[: len(sample.output)]
            else:
                assert sample.output == expected
    event(f"hits: {result.core.totals.cached_tokens > 0}, preempted: {result.core.totals.preemptions > 0}")
