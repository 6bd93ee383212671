"""Random schedules on a model whose every token depends on all that it reads: caching, chunking, forks, eviction,
preemption and cancellation change nothing but the work done."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from agentctx_engine.runtime.sampling_params import SamplingParams

from .context_hash_model import ContextHashModel
from .schedules import Arrival, Schedule, cancelled, check_end, run, schedules

VOCABULARY = 40


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(schedule=schedules(vocab_size=VOCABULARY))
def test_outputs_are_those_of_a_run_without_cache_or_blocks(schedule: Schedule) -> None:
    model = ContextHashModel.with_vocabulary(VOCABULARY)
    result = run(model, schedule)
    check_end(result)
    for request, arrival in zip(result.requests, schedule.arrivals, strict=True):
        expected = model.greedy(list(arrival.prompt), arrival.max_tokens)
        for sample in request.samples:
            if cancelled(request):
                assert sample.output == expected[: len(sample.output)]
            else:
                assert sample.output == expected
    totals = result.core.totals
    assert model.tokens_run == totals.step_tokens
    event(f"preempted: {totals.preemptions > 0}")
    event(f"hits: {totals.cached_tokens > 0}")


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(schedule=schedules(vocab_size=VOCABULARY, cancellations=False), seed=st.integers(0, 2**32))
def test_seeded_samples_do_not_depend_on_the_schedule(schedule: Schedule, seed: int) -> None:
    """The same requests one by one in a roomy engine without caching draw the same tokens."""

    def params(arrival: Arrival) -> SamplingParams:
        return SamplingParams(
            max_tokens=arrival.max_tokens, n=arrival.n, temperature=0.8, top_p=0.9, seed=seed, repetition_penalty=1.1
        )  # fmt: skip

    model = ContextHashModel.with_vocabulary(VOCABULARY)
    crowded = run(model, schedule, params=params)
    check_end(crowded)
    config = replace(
        schedule.config, num_blocks=200, prefix_cache="none", max_step_tokens=256, max_chunk_tokens=None
    )
    for request, arrival in zip(crowded.requests, schedule.arrivals, strict=True):
        alone = run(model, Schedule(config, (replace(arrival, step=0),)), params=params)
        assert [s.output for s in alone.requests[0].samples] == [s.output for s in request.samples]
