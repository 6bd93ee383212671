"""Steps that are launched before they are planned: answers, counts and what is cached, to the last block as without."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from random import Random
from typing import Any, cast
from unittest import mock

import numpy as np
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from agentctx_engine import Engine, SamplingParams
from agentctx_engine.attention.named import attention_backend
from agentctx_engine.models import Family, Model, random_config
from agentctx_engine.models.random_model import RandomWeights
from agentctx_engine.runtime import EngineConfig, FinishReason, build, core
from agentctx_engine.runtime.look_ahead import Ahead, Launched, sampling_row
from agentctx_engine.runtime.paged_store import PagedStore
from agentctx_engine.runtime.request import Request, Sample
from agentctx_engine.runtime.scheduler import ScheduledChunk, Step

from .context_hash_model import ContextHashModel, tiny_config
from .same_runs import assert_same_runs
from .schedules import Arrival, Run, Schedule, check_end, run, schedules
from .tape import TapeRecorder

VOCABULARY = 40
STOPS = (3, 7, 11)  # a token in thirteen ends an answer
SCHEDULES = int(os.environ.get("AGENTCTX_LOOK_AHEAD_SCHEDULES", "40"))
QUIET = list(HealthCheck)
TIMES = ("step_seconds", "scheduler_seconds", "steps_ahead")


def hash_model() -> ContextHashModel:
    return ContextHashModel(replace(tiny_config(VOCABULARY), eos_token_ids=STOPS))


def both_ways(model: Any, schedule: Schedule, **options: Any) -> tuple[Run, Run]:
    """(looking ahead, not)."""
    ahead, plain = (
        run(model, replace(schedule, config=replace(schedule.config, async_scheduling=on)), **options)
        for on in (True, False)
    )
    return ahead, plain


def outcome(result: Run) -> dict[str, Any]:
    """Everything that came of a run, times apart."""
    requests = [
        {
            "answers": [(s.index, s.output, s.finish_reason, s.sampled) for s in request.samples],
            "counts": (request.cached_tokens, request.computed_tokens, request.recomputed_tokens),
            "preemptions": request.preemptions,
            "match": request.match,
        }
        for request in result.requests
    ]
    totals = {k: v for k, v in asdict(result.core.totals).items() if k not in TIMES}
    found: dict[str, Any] = {"requests": requests, "order": result.finish_order, "totals": totals}
    if isinstance(result.core.kv, PagedStore):
        found["blocks"] = [
            [(block, pool.hash_of(block)) for block in pool.free_order()]
            for pool in result.core.kv.manager.pools
        ]
    return found


def sampled(arrival: Arrival) -> SamplingParams:
    """Greedy or drawn, with log-probabilities or a penalty, as the prompt's length has it."""
    kind = len(arrival.prompt) % 4
    return SamplingParams(
        max_tokens=arrival.max_tokens,
        n=arrival.n,
        seed=5,
        temperature=0.0 if kind == 0 else 0.9,
        top_p=0.9 if kind == 2 else 1.0,
        logprobs=2 if kind == 1 else None,
        repetition_penalty=1.2 if kind == 3 else 1.0,
    )


@settings(max_examples=SCHEDULES, deadline=None, derandomize=True, suppress_health_check=QUIET)
@given(schedule=schedules(vocab_size=VOCABULARY), granular=st.booleans())
def test_nothing_shows_that_it_looked_ahead(schedule: Schedule, granular: bool) -> None:
    """Stop tokens, lengths, cancellations, forks, preemption and evictions, at the same steps, with the same blocks."""
    if granular and schedule.config.prefix_cache == "hash":
        schedule = replace(schedule, config=replace(schedule.config, token_granular=True))
    ahead, plain = both_ways(hash_model(), schedule, params=sampled)
    check_end(ahead)
    assert outcome(ahead) == outcome(plain)
    assert plain.core.totals.steps_ahead == 0
    event(f"looked ahead: {ahead.core.totals.steps_ahead > 0}")
    stopped = [s for r in ahead.requests for s in r.samples if s.finish_reason is FinishReason.STOP]
    event(f"stopped: {bool(stopped)}, preempted: {ahead.core.totals.preemptions > 0}")


@cache
def model(family: Family) -> Model:
    layers = 3 if family == "gemma3" else 2
    config = random_config(family, vocab_size=256, num_layers=layers, window=24)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTCTX_ENGINE_KERNELS", "torch")
        return Model(RandomWeights(config, seed=1), attention=attention_backend("reference"))


@settings(max_examples=6, deadline=None, derandomize=True, suppress_health_check=QUIET)
@given(
    family=st.sampled_from(["llama", "gemma3"]),
    recorded=st.booleans(),
    schedule=schedules(vocab_size=256, max_requests=4, max_prompt=20, max_output=10),
)
def test_models_with_windows_and_recorded_steps(family: Family, recorded: bool, schedule: Schedule) -> None:
    """A recorded step takes its tokens from the step before on the device, too."""
    longest = max(len(a.prompt) + a.max_tokens for a in schedule.arrivals)
    config = replace(schedule.config, cuda_graphs=recorded, max_context=longest + 1)
    with mock.patch.object(build, "recorder_for", return_value=TapeRecorder()):
        ahead, plain = both_ways(model(family), replace(schedule, config=config), keep_logits=True)
    assert_same_runs(ahead, plain)
    event(f"looked ahead: {ahead.core.totals.steps_ahead > 0}")


def test_which_steps_are_launched_early() -> None:
    """Two prompts of 9 in blocks of 8, 12 tokens each: after the step that reads them come 11; the token at position 16 needs
    a block, so the step that computes it, the eighth, is planned first."""
    config = EngineConfig(block_size=8, num_blocks=20)
    arrivals = tuple(Arrival((*range(1 + i, 10 + i),), 12, step=0) for i in range(2))
    used = ContextHashModel.with_vocabulary(VOCABULARY)
    ahead, plain = both_ways(used, Schedule(config, arrivals))
    assert outcome(ahead) == outcome(plain)
    assert (ahead.core.totals.steps, ahead.core.totals.steps_ahead) == (12, 10)


def test_a_stop_is_noticed_a_step_late_and_its_surplus_thrown_away() -> None:
    """Two answers decode together; the step in which one of them ends has launched a token more for it."""
    model = hash_model()
    answers = {
        prompt: model.greedy(list(prompt), 12) for prompt in (tuple(range(1, 4 + i)) for i in range(12))
    }
    stopping = next(p for p, answer in answers.items() if 3 <= len(answer) <= 7)
    staying = next(p for p, answer in answers.items() if len(answer) > len(answers[stopping]) + 2)
    config = EngineConfig(block_size=32, num_blocks=8)
    schedule = Schedule(config, (Arrival(stopping, 12, step=0), Arrival(staying, 12, step=0)))
    before = model.tokens_run
    ahead, plain = both_ways(model, schedule)
    assert outcome(ahead) == outcome(plain)
    stopped = ahead.requests[0].samples[0]
    assert (stopped.finish_reason, stopped.output) == (FinishReason.STOP, answers[stopping])
    run_in_all = model.tokens_run - before
    # A token more for each answer that a stop ended; neither text nor counts know of it.
    surplus = sum(r.samples[0].finish_reason is FinishReason.STOP for r in ahead.requests)
    assert surplus >= 1
    assert run_in_all == ahead.core.totals.step_tokens + plain.core.totals.step_tokens + surplus


def test_a_stop_hook_and_logprobs_through_the_engine() -> None:
    prompt = list(range(1, 10))
    params = SamplingParams(max_tokens=20, logprobs=3, stop_token_ids=())
    results = []
    for on in (True, False):
        used = ContextHashModel.with_vocabulary(VOCABULARY)
        with Engine(used, num_blocks=16, async_scheduling=on) as engine:
            seen: list[int] = []

            def hook(index: int, output: Any, seen: list[int] = seen) -> bool:
                seen.append(len(output))
                return len(output) == 7

            result = engine.generate(prompt, params, stop_hook=hook)
            again = engine.generate(prompt, params)
            assert seen == [1, 2, 3, 4, 5, 6, 7]
            assert (engine.state().totals.steps_ahead > 10) is on
        results.append([(r.samples[0].token_ids, r.samples[0].top, r.cached_tokens) for r in (result, again)])
    assert results[0] == results[1]
    assert len(results[0][0][0]) == 7


def test_an_early_step_that_fails_is_run_in_its_turn() -> None:
    """As if there were no memory for it: nothing is lost, and nobody hears of it."""
    used = ContextHashModel.with_vocabulary(VOCABULARY)
    arrivals = (Arrival(tuple(range(1, 10)), 12, step=0),)
    schedule = Schedule(EngineConfig(num_blocks=8, async_scheduling=True), arrivals)
    with mock.patch("agentctx_engine.runtime.model_runner.ModelRunner.run_ahead", side_effect=MemoryError):
        result = run(used, schedule)
    assert result.core.totals.steps_ahead == 0
    assert result.requests[0].samples[0].output == used.greedy(list(arrivals[0].prompt), 12)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="async_scheduling=True can't be had"):
        EngineConfig(async_scheduling=True, deterministic=True)
    with pytest.raises(ValueError, match="async_scheduling=True can't be had"):
        EngineConfig(async_scheduling=True, kv_kind="int8")


# -- what would go wrong ----------------------------------------------------------------------------------------------


def the_surplus_is_kept(patch: pytest.MonkeyPatch) -> None:
    tokens = core.EngineCore._tokens

    def all_of_them(self: core.EngineCore, launched: Launched, report: Any) -> Any:
        for sample in launched.samples if launched.tokens is not None else ():
            if launched.wanted is not None and sample not in launched.wanted:
                sample.output.append(0)
        return tokens(self, launched, report)

    patch.setattr(core.EngineCore, "_tokens", all_of_them)


def draws_are_those_of_the_step_before(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        "agentctx_engine.runtime.core.sampling_row", lambda sample, *, ahead=False: sampling_row(sample)
    )


def crowd(seed: int) -> Schedule:
    """Some prompts, some of them with several answers, that decode together for a while."""
    random = Random(seed)
    arrivals = tuple(
        Arrival(
            prompt=tuple(random.randrange(1, VOCABULARY) for _ in range(random.randrange(5, 20))),
            max_tokens=12,
            step=random.randrange(3),
            n=random.choice((1, 3)),
        )
        for _ in range(3)
    )
    config = EngineConfig(block_size=16, num_blocks=24, max_samples=9, max_step_tokens=64)
    return Schedule(config, tuple(sorted(arrivals, key=lambda arrival: arrival.step)))


def differs(seed: int) -> bool:
    try:
        ahead, plain = both_ways(hash_model(), crowd(seed), params=sampled, max_steps=200)
        return outcome(ahead) != outcome(plain)
    except Exception:
        return True


@pytest.mark.parametrize("mutation", [the_surplus_is_kept, draws_are_those_of_the_step_before])
def test_what_would_go_wrong_is_noticed(
    mutation: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not any(differs(seed) for seed in range(8))
    mutation(monkeypatch)
    assert any(differs(seed) for seed in range(8))


def test_another_step_than_the_planned_one_does_not_count() -> None:
    """Other samples, another position, another block, or anything that must come first."""
    one, two, three = (cast(Sample, object()) for _ in range(3))

    def chunk(
        sample: Sample, start: int = 9, count: int = 1, table: tuple[int, ...] = (4, 5, 6)
    ) -> ScheduledChunk:
        return ScheduledChunk(sample, start, count, True, (table,))

    early = Ahead({s: (chunk(s), (5,)) for s in (one, two)}, Launched((one, two), None))

    def part(*chunks: ScheduledChunk, **others: Any) -> Launched | None:
        return early.part(Step(list(chunks), **others), 8)

    whole, half = part(chunk(one), chunk(two)), part(chunk(two, table=(1, 5)))
    assert whole is not None
    assert half is not None
    assert (whole.wanted, half.wanted) == (frozenset((one, two)), frozenset((two,)))
    assert part() is None
    assert part(chunk(one), chunk(three)) is None
    assert part(chunk(one, start=10)) is None
    assert part(chunk(one, start=8, count=2)) is None
    assert part(chunk(one, table=(4, 7, 6))) is None
    assert part(chunk(one), copies=[(1, 2)]) is None
    assert part(chunk(one), admitted=[two]) is None
    assert part(chunk(one), preempted=[two]) is None


def test_which_blocks_may_be_written_early() -> None:
    """Those that are there and that nobody else reads: not a shared one, not one that would have to be taken first."""
    store = PagedStore(num_blocks=8, block_size=4)
    first = store.open(np.arange(6, dtype=np.int32), None)
    assert store.admit(first) is not None
    store.scheduled(first, 6)
    assert store.writes_in_place(first)
    twin, _ = store.fork(first)
    assert not store.writes_in_place(first)
    assert not store.writes_in_place(twin)
    store.release(twin)
    assert store.writes_in_place(first)
    for token in (6, 7):
        store.append(first, token)
        assert store.reserve(first) == []
        store.scheduled(first, first.num_tokens)
    assert not store.writes_in_place(first)  # its two blocks are full
    store.append(first, 8)
    assert store.reserve(first) == []
    store.scheduled(first, 9)
    assert store.writes_in_place(first)


def test_requests_and_samples_are_told_apart_by_identity() -> None:
    """They are keys of what is launched early."""
    assert Request.__hash__ is object.__hash__
    assert Sample.__hash__ is object.__hash__
