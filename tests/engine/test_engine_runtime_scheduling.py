"""What the scheduler decides, step by step, in exact numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from agentctx_engine.memory.block_pool import BlockPool
from agentctx_engine.memory.prefix_cache import Lost
from agentctx_engine.runtime.build import build_core
from agentctx_engine.runtime.config import EngineConfig
from agentctx_engine.runtime.core import EngineCore, StepReport
from agentctx_engine.runtime.paged_store import PagedStore
from agentctx_engine.runtime.request import FinishReason

from .clients import Clients, distinct
from .context_hash_model import ContextHashModel


def make(**options: Any) -> EngineCore:
    return build_core(ContextHashModel(), EngineConfig(**options))


def shape(report: StepReport) -> list[tuple[int, int, int]]:
    """(request, start, tokens) of each chunk, in the batch's order."""
    return [(c.sample.request.id, c.start, c.count) for c in report.step.chunks]


def finish(core: EngineCore) -> list[list[tuple[int, int, int]]]:
    shapes = []
    while core.has_work:
        shapes.append(shape(core.step()))
        core.kv.check()
        assert len(shapes) < 1000
    return shapes


# -- the lesson ---------------------------------------------------------------------------------------------


def pool(core: EngineCore) -> BlockPool:
    assert isinstance(core.kv, PagedStore)
    return core.kv.manager.pools[0]


def test_lesson_4_fork_on_the_running_engine() -> None:
    """A 40-token prompt in 3 samples: 5 blocks instead of 9, two copies, one write in place."""
    core = make(block_size=16, num_blocks=16)
    request = Clients(core).add(distinct(0, 40), max_tokens=3, n=3)
    core.step()
    samples = request.samples
    assert [list(s.kv.block_tables[0]) for s in samples] == [[0, 1, 2]] * 3
    assert [pool(core).ref_count(b) for b in range(3)] == [3, 3, 3]
    step = core.step().step  # each writes position 40
    assert step.copies == [(2, 3), (2, 4)]
    assert [list(s.kv.block_tables[0]) for s in samples] == [[0, 1, 3], [0, 1, 4], [0, 1, 2]]
    assert [pool(core).ref_count(b) for b in range(5)] == [3, 3, 1, 1, 1]
    assert pool(core).num_used_blocks == 5
    finish(core)
    expected = core.runner.model.greedy(distinct(0, 40), 3)
    assert [s.output for s in samples] == [expected] * 3
    assert request.computed_tokens == 40


def test_lesson_5_prefix_sharing_on_the_running_engine() -> None:
    """A system prompt of 70 tokens; questions of 20 and 33: 64 of the second's 103 tokens are reused."""
    core = make(block_size=16, num_blocks=32)
    clients = Clients(core)
    system = distinct(0, 70)
    first = clients.add([*system, *distinct(7, 20)], max_tokens=4)
    core.step()
    assert list(first.samples[0].kv.block_tables[0]) == [0, 1, 2, 3, 4, 5]
    second = clients.add([*system, *distinct(50, 33)], max_tokens=2)
    core.step()
    assert list(second.samples[0].kv.block_tables[0]) == [0, 1, 2, 3, 6, 7, 8]
    assert pool(core).num_used_blocks == 9
    assert (first.cached_tokens, first.computed_tokens) == (0, 90)
    assert (second.cached_tokens, second.computed_tokens) == (64, 39)
    finish(core)


def test_whole_prompt_rule_a_repeated_prompt_of_64_computes_16() -> None:
    core = make(block_size=16, num_blocks=32)
    clients = Clients(core)
    for expected in (0, 48, 48):
        request = clients.add(distinct(0, 64), max_tokens=1)
        finish(core)
        assert (request.cached_tokens, request.computed_tokens) == (expected, 64 - expected)
    assert request.match is not None
    assert dict(request.match.lost)[Lost.WHOLE_PROMPT] > 0


# -- sharing within a step ----------------------------------------------------------------------------------


def test_equal_prompts_of_one_step_are_computed_once() -> None:
    """The second is admitted in the step that computes the first, and shares the blocks that this step writes."""
    core = make(block_size=16, num_blocks=32, max_step_tokens=256)
    clients = Clients(core)
    requests = [clients.add(distinct(0, 50), max_tokens=3) for _ in range(3)]
    assert shape(core.step()) == [(0, 0, 50), (1, 48, 2), (2, 48, 2)]
    finish(core)
    assert [r.cached_tokens for r in requests] == [0, 48, 48]
    expected = core.runner.model.greedy(distinct(0, 50), 3)
    assert [r.samples[0].output for r in requests] == [expected] * 3


def test_a_chunk_is_findable_as_far_as_it_is_computed() -> None:
    core = make(block_size=4, num_blocks=32, max_step_tokens=16, max_chunk_tokens=10, max_samples=8)
    clients = Clients(core)
    clients.add(distinct(0, 30), max_tokens=1)
    clients.add(distinct(0, 30), max_tokens=1)
    assert shape(core.step()) == [(0, 0, 10), (1, 8, 6)]


# -- budget and fairness ------------------------------------------------------------------------------------


def test_a_long_prefill_never_delays_a_decode() -> None:
    core = make(block_size=16, num_blocks=64, max_step_tokens=32, max_samples=8)
    clients = Clients(core)
    decoding = [clients.add(distinct(10 * i, 5), max_tokens=40) for i in range(3)]
    core.step()
    clients.add(distinct(0, 500), max_tokens=1)
    for chunk in range(17):
        report = core.step()
        assert [(r, n) for r, _, n in shape(report)][:3] == [(0, 1), (1, 1), (2, 1)]
        assert shape(report)[3] == (3, 29 * chunk, 29)
        assert [e.request_id for e in report.events] == [0, 1, 2]
    assert all(len(r.samples[0].output) == 18 for r in decoding)


def test_chunk_limit_shares_a_step_among_prompts() -> None:
    core = make(block_size=16, num_blocks=64, max_step_tokens=32, max_chunk_tokens=12, max_samples=8)
    clients = Clients(core)
    for i in range(3):
        clients.add(distinct(30 * i, 20), max_tokens=1)
    assert shape(core.step()) == [(0, 0, 12), (1, 0, 12), (2, 0, 8)]
    assert shape(core.step()) == [(0, 12, 8), (1, 12, 8), (2, 8, 12)]


def test_first_come_first_served_nobody_passes_the_one_that_waits() -> None:
    """Request 1 needs 6 blocks and finds 5: request 2, which would fit, waits behind it."""
    core = make(block_size=4, num_blocks=8, max_samples=8)
    clients = Clients(core)
    clients.add(distinct(0, 8), max_tokens=5)
    assert shape(core.step()) == [(0, 0, 8)]
    clients.add(distinct(20, 24), max_tokens=1)
    clients.add(distinct(60, 4), max_tokens=1)
    shapes = finish(core)
    admitted = [
        next(i for i, s in enumerate(shapes) if any(r == request for r, _, _ in s)) for request in (1, 2)
    ]
    assert admitted[0] <= admitted[1]
    assert all({r for r, _, _ in s} == {0} for s in shapes[: admitted[0]])


def test_places_for_forks_are_kept_from_the_start() -> None:
    core = make(block_size=4, num_blocks=64, max_samples=4)
    clients = Clients(core)
    clients.add(distinct(0, 8), max_tokens=4, n=3)
    clients.add(distinct(20, 8), max_tokens=4, n=2)
    clients.add(distinct(40, 8), max_tokens=4)
    while core.has_work:
        core.step()
        assert len(core.scheduler.running) <= 4


# -- preemption ---------------------------------------------------------------------------------------------


def test_the_youngest_gives_way_and_returns_mostly_as_a_hit() -> None:
    core = make(block_size=4, num_blocks=8, max_samples=4, max_step_tokens=64)
    clients = Clients(core)
    old = clients.add(distinct(0, 12), max_tokens=12)
    young = clients.add(distinct(40, 12), max_tokens=12)
    preempted = []
    while core.has_work:
        report = core.step()
        core.kv.check()
        preempted += [s.request.id for s in report.step.preempted]
        assert not any(s.request.id == old.id for s in report.step.preempted)
    assert preempted
    assert young.preemptions == len(preempted)
    assert young.recomputed_tokens > 0
    model = core.runner.model
    assert old.samples[0].output == model.greedy(distinct(0, 12), 12)
    assert young.samples[0].output == model.greedy(distinct(40, 12), 12)
    assert (young.cached_tokens, young.computed_tokens) == (0, 12)


def test_a_preempted_sample_waits_at_the_place_of_its_arrival() -> None:
    core = make(block_size=4, num_blocks=7, max_samples=4, max_step_tokens=64)
    clients = Clients(core)
    clients.add(distinct(0, 8), max_tokens=16)
    clients.add(distinct(30, 8), max_tokens=16)
    core.step()
    clients.add(distinct(60, 8), max_tokens=2)
    while not core.scheduler.waiting or core.scheduler.waiting[0].request.id != 1:
        core.step()
        assert core.has_work
    assert [s.request.id for s in core.scheduler.waiting] == [1, 2]
    finish(core)


def test_one_sample_may_fill_the_pool_to_its_last_token() -> None:
    core = make(block_size=4, num_blocks=5, max_samples=2, max_step_tokens=8)
    request = Clients(core).add(distinct(0, 9), max_tokens=100)
    finish(core)
    assert core.max_context == 20
    assert request.samples[0].finish_reason is FinishReason.LENGTH
    assert len(request.samples[0].output) == 11


def test_refused_admission_is_retried_only_when_blocks_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long prompt that waits must not be looked up again in every step."""
    core = make(block_size=4, num_blocks=12, max_samples=4)
    clients = Clients(core)
    clients.add(distinct(0, 8), max_tokens=30)
    core.step()
    clients.add(distinct(30, 40), max_tokens=1)
    calls = []
    admit = core.kv.admit
    monkeypatch.setattr(core.kv, "admit", lambda *a, **k: calls.append(1) or admit(*a, **k))
    for _ in range(10):
        core.step()
    assert len(calls) == 1
    finish(core)
    assert len(calls) == 2


# -- ends ---------------------------------------------------------------------------------------------------


def test_stop_token_hook_and_length() -> None:
    core = make(block_size=4, num_blocks=64)
    clients = Clients(core)
    prompt = distinct(0, 10)
    free = core.runner.model.greedy(prompt, 10)
    stopped = clients.add(prompt, max_tokens=10, stop=(free[4],))
    seen: list[list[int]] = []

    def hook(index: int, output: Sequence[int]) -> bool:
        seen.append(list(output))
        return len(output) == 3

    hooked = clients.add(prompt, max_tokens=10, stop_hook=hook)
    full = clients.add(prompt, max_tokens=6)
    finish(core)
    assert (stopped.samples[0].output, stopped.samples[0].finish_reason) == (free[:5], FinishReason.STOP)
    assert (hooked.samples[0].output, hooked.samples[0].finish_reason) == (free[:3], FinishReason.HOOK)
    assert seen == [free[:1], free[:2], free[:3]]
    assert (full.samples[0].output, full.samples[0].finish_reason) == (free[:6], FinishReason.LENGTH)


def test_salts_and_refusal_to_read_the_cache() -> None:
    core = make(block_size=4, num_blocks=64)
    clients = Clients(core)
    hits = []
    for options in ({}, {"cache_salt": "a"}, {"cache_salt": "a"}, {"cache_salt": "b"}, {"reuse": False}, {}):
        request = clients.add(distinct(0, 17), max_tokens=1, **options)
        finish(core)
        hits.append(request.cached_tokens)
    assert hits == [0, 0, 16, 0, 0, 16]


@pytest.mark.parametrize("kind", ["hash", "radix"])
def test_generated_tokens_are_found_but_for_the_last(kind: str) -> None:
    """The last token was sampled and never read: prompt 8 + 9 generated gives 16 computed tokens."""
    core = make(block_size=4, num_blocks=64, prefix_cache=kind)
    clients = Clients(core)
    first = clients.add(distinct(0, 8), max_tokens=9)
    finish(core)
    follow = clients.add([*distinct(0, 8), *first.samples[0].output, 5], max_tokens=1)
    finish(core)
    assert follow.cached_tokens == 16


def test_cancel_gives_the_blocks_back_at_once() -> None:
    core = make(block_size=4, num_blocks=64, max_step_tokens=8, max_samples=4)
    clients = Clients(core)
    half_read = clients.add(distinct(0, 30), max_tokens=4)
    waiting = clients.add(distinct(40, 30), max_tokens=4)
    core.step()
    for request in (half_read, waiting):
        core.cancel(request)
        core.cancel(request)  # twice is harmless
        assert request.samples[0].finish_reason is FinishReason.CANCELLED
    assert not core.has_work
    assert pool(core).num_used_blocks == 0
    assert core.totals.requests_cancelled == 2


def test_step_budget_below_the_number_of_samples_is_refused() -> None:
    with pytest.raises(ValueError, match=r"max_step_tokens=4 is less than max_samples=8"):
        EngineConfig(max_step_tokens=4, max_samples=8)
