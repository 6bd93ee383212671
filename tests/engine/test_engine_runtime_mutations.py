"""The equality tests can fail: each guard of the runtime, taken away, is noticed on some random schedule."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, settings

from agentctx_engine.memory.errors import IntegrityError
from agentctx_engine.memory.kv_manager import KVManager
from agentctx_engine.memory.radix_cache import RadixCache
from agentctx_engine.runtime.model_runner import ModelRunner
from agentctx_engine.runtime.paged_store import PagedStore
from agentctx_engine.runtime.radix_store import RadixStore
from agentctx_engine.runtime.request import Request
from agentctx_engine.runtime.scheduler import Scheduler, Step

from .context_hash_model import ContextHashModel
from .schedules import Schedule, check_end, run, schedules

VOCABULARY = 40
QUICK = settings(
    max_examples=300, deadline=None, database=None, phases=(Phase.generate,), suppress_health_check=list(HealthCheck)
)  # fmt: skip

Patch = Callable[[pytest.MonkeyPatch], None]


def no_copies(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ModelRunner, "copy_blocks", lambda self, copies: None)


def copies_after_the_writes(patch: pytest.MonkeyPatch) -> None:
    copy, build = ModelRunner.copy_blocks, ModelRunner.run

    def run_then_copy(self: ModelRunner, step: Step) -> Any:
        patch.setattr(ModelRunner, "copy_blocks", lambda self, copies: None)
        logits = build(self, step)
        patch.setattr(ModelRunner, "copy_blocks", copy)
        copy(self, step.copies)
        return logits

    patch.setattr(ModelRunner, "run", run_then_copy)


def the_whole_text_is_announced_with_its_first_chunk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        PagedStore,
        "scheduled",
        lambda self, sequence, n: self.manager.commit(sequence.kv, sequence.num_tokens),
    )


def a_page_is_exchanged_before_it_is_written(patch: pytest.MonkeyPatch) -> None:
    def scheduled(self: RadixStore, sequence: Any, num_tokens: int) -> None:
        self.cache.checkpoint(sequence.lease, sequence.num_tokens)

    patch.setattr(RadixStore, "scheduled", scheduled)


def a_radix_fork_shares_its_last_page(patch: pytest.MonkeyPatch) -> None:
    fork = RadixCache.fork

    def without_copies(self: RadixCache, lease: Any) -> Any:
        return fork(self, lease)[0], []

    patch.setattr(RadixCache, "fork", without_copies)


def preemption_keeps_the_count_of_computed_tokens(patch: pytest.MonkeyPatch) -> None:
    preempt = Scheduler._preempt

    def keep(self: Scheduler, step: Step, victim: Any) -> None:
        before = victim.num_computed
        preempt(self, step, victim)
        victim.num_computed = victim.high_water = before

    def hit(self: Request, sample: Any, match: Any) -> None:
        self.match = self.match or match
        self.cached_tokens += max(0, match.hit_tokens - sample.num_computed)
        sample.num_computed = max(sample.num_computed, match.hit_tokens)

    patch.setattr(Scheduler, "_preempt", keep)
    patch.setattr(Request, "count_hit", hit)


def a_preempted_sample_keeps_its_blocks(patch: pytest.MonkeyPatch) -> None:
    release = Scheduler._release

    def forget(self: Scheduler, sample: Any) -> None:
        kv, self.kv = self.kv, _Deaf(self.kv) if not sample.finish_reason else self.kv
        try:
            release(self, sample)
        finally:
            self.kv = kv

    patch.setattr(Scheduler, "_release", forget)


class _Deaf:
    def __init__(self, kv: Any) -> None:
        self._kv = kv

    def release(self, sequence: Any) -> None:
        pass


def a_shared_block_is_written_in_place(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KVManager, "fork", _fork_without_sharing(KVManager.fork))


def _fork_without_sharing(fork: Any) -> Any:
    def fork_and_forget(self: KVManager, sequence: Any) -> Any:
        child = fork(self, sequence)
        for group in self.groups:
            for block in child.tables[group.index].ids:
                group.pool._refs[block] -= 1
        return child

    return fork_and_forget


def the_youngest_is_not_the_one_preempted(patch: pytest.MonkeyPatch) -> None:
    """Taking from older samples can go on for ever; here the oldest gives way."""
    preempt = Scheduler._preempt

    def oldest(self: Scheduler, step: Step, victim: Any) -> None:
        if len(self.running) > 1:
            self.running.append(self.running.pop(0))
        preempt(self, step, self.running[-1])

    patch.setattr(Scheduler, "_preempt", oldest)


def recomputed_tokens_count_as_computed(patch: pytest.MonkeyPatch) -> None:
    def count(self: Request, sample: Any, tokens: int) -> None:
        self.computed_tokens += max(
            0, min(sample.num_computed + tokens, self.num_prompt) - sample.num_computed
        )
        sample.num_computed += tokens
        sample.high_water = max(sample.high_water, sample.num_computed)

    patch.setattr(Request, "count_computed", count)


def an_ended_sample_keeps_its_blocks(patch: pytest.MonkeyPatch) -> None:
    remove = Scheduler.remove

    def forget(self: Scheduler, samples: Any) -> None:
        kv, self.kv = self.kv, _Deaf(self.kv)
        try:
            remove(self, samples)
        finally:
            self.kv = kv

    patch.setattr(Scheduler, "remove", forget)


MUTATIONS: list[tuple[Patch, str]] = [
    (no_copies, "hash"),
    (no_copies, "radix"),
    (copies_after_the_writes, "hash"),
    (the_whole_text_is_announced_with_its_first_chunk, "hash"),
    (a_page_is_exchanged_before_it_is_written, "radix"),
    (a_radix_fork_shares_its_last_page, "radix"),
    (preemption_keeps_the_count_of_computed_tokens, "hash"),
    (a_preempted_sample_keeps_its_blocks, "hash"),
    (a_shared_block_is_written_in_place, "hash"),
    (the_youngest_is_not_the_one_preempted, "hash"),
    (recomputed_tokens_count_as_computed, "hash"),
    (an_ended_sample_keeps_its_blocks, "hash"),
]


@pytest.mark.parametrize(("mutation", "kind"), MUTATIONS, ids=lambda value: getattr(value, "__name__", value))
def test_a_guard_that_is_taken_away_is_missed(
    mutation: Patch, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def goes_wrong(schedule: Schedule) -> bool:
        with monkeypatch.context() as patch:
            mutation(patch)
            return not holds(schedule)

    strategy = schedules(vocab_size=VOCABULARY, kinds=(kind,))
    found = find(strategy, goes_wrong, settings=QUICK, random=Random(1))
    assert holds(found), "this schedule goes wrong without the mutation too"


def holds(schedule: Schedule) -> bool:
    """Whether a schedule ends with the right outputs, counts and bookkeeping."""
    model = ContextHashModel.with_vocabulary(VOCABULARY)
    try:
        result = run(model, schedule, max_steps=1000)
        check_end(result)
        for request, arrival in zip(result.requests, schedule.arrivals, strict=True):
            expected = model.greedy(list(arrival.prompt), arrival.max_tokens)
            assert all(sample.output == expected[: len(sample.output)] for sample in request.samples)
    except (AssertionError, IntegrityError, ValueError, RuntimeError, IndexError):
        return False
    return True
