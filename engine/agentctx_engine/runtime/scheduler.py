"""Scheduler: which samples run in the next step, and how many of their tokens.

Three passes share one budget of tokens, each oldest first::

    1. decode    every running sample that only lacks its last token gets it. If no block is left, the
                 youngest running sample gives all of its own back and waits again, at its old place.
    2. prefill   running samples that lack more: a chunk each.
    3. admit     waiting samples, strictly in order of arrival: blocks for all their tokens, or nobody passes.

Why nothing can wait for ever: a sample that runs alone fits (the engine refuses longer ones), blocks are
only ever taken from younger samples, so the oldest always advances and ends; and the budget is at least
the number of samples, so pass 2 and 3 never cost pass 1 a token.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from agentctx_engine.runtime.kv_store import BlockCopy, BlockTable, KvStore
from agentctx_engine.runtime.request import Request, Sample


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """``count`` tokens of one sample, from ``start`` on; ``last`` if a token is sampled from its end."""

    sample: Sample
    start: int
    count: int
    last: bool
    block_tables: tuple[BlockTable, ...]  # per layer group, as long as the chunk's end needs or longer


@dataclass(slots=True)
class Step:
    """What one step does. ``copies`` come before anything is written."""

    chunks: list[ScheduledChunk] = field(default_factory=list)
    copies: list[BlockCopy] = field(default_factory=list)
    preempted: list[Sample] = field(default_factory=list)
    admitted: list[Sample] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return sum(chunk.count for chunk in self.chunks)


class Scheduler:
    """Owns the two queues. Not thread-safe: one thread adds, schedules and ends samples."""

    def __init__(
        self, kv: KvStore, *, max_step_tokens: int, max_samples: int, max_chunk_tokens: int | None = None
    ) -> None:
        """``max_step_tokens`` must be at least ``max_samples``; ``max_chunk_tokens`` bounds one sample's share of a step."""
        if max_step_tokens < max_samples:
            raise ValueError(
                f"max_step_tokens={max_step_tokens} is less than max_samples={max_samples}: "
                "a step must have a token for every running sample"
            )
        self.kv = kv
        self.max_step_tokens = max_step_tokens
        self.max_samples = max_samples
        self.max_chunk_tokens = max_chunk_tokens or max_step_tokens
        self.waiting: deque[Sample] = deque()  # in order of arrival
        self.running: list[Sample] = []  # in order of arrival

        self._refused = False  # the first waiting sample found no room, and no block was given back since

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> Sample:
        """Queue a new request. Requests must be added in the order of their ids."""
        sample = Sample(request, self.kv.open(request.prompt, request.cache_salt, reuse=request.reuse))
        request.samples.append(sample)
        self.waiting.append(sample)
        return sample

    def fork(self, sample: Sample, samples: int) -> tuple[list[Sample], list[BlockCopy]]:
        """``samples`` - 1 more answers to the prompt that ``sample`` has read, sharing its blocks; copies to do at once.

        An answer for whose own part no block is left waits like a preempted one: the prompt is then a hit.
        """
        request = sample.request
        twins: list[Sample] = []
        copies: list[BlockCopy] = []
        for index in range(1, samples):
            forked = self.kv.fork(sample.kv)
            if forked is None:
                kv = self.kv.open(request.prompt, request.cache_salt, reuse=request.reuse)
                twin = Sample(request, kv, index)
                request.preemptions += 1
                self._wait_again(twin)
            else:
                twin = Sample(request, forked[0], index)
                twin.running, twin.num_computed = True, sample.num_computed
                copies.extend(forked[1])
                insort(self.running, twin, key=lambda s: s.order)
            twin.high_water = sample.high_water
            twins.append(twin)
        request.samples.extend(twins)
        return twins, copies

    def remove(self, samples: Iterable[Sample]) -> None:
        """Take ended samples out of both queues and give their blocks back."""
        for sample in samples:
            if sample.running:
                self.running.remove(sample)
                self._release(sample)
            else:
                self.waiting.remove(sample)
                self._refused = False  # it may have been the one that found no room

    def schedule(self) -> Step:
        """Plan one step and take its memory. Counters move on: the step must run, or its samples be removed."""
        step = Step()
        self.readmit_broken()
        budget = self._schedule_decodes(step, self.max_step_tokens)
        budget = self._schedule_prefills(step, budget)
        if not step.preempted:
            self._admit(step, budget)
        if not step.chunks and len(self.running) > 1 and self.kv.settled:
            self._preempt(step, self.running[-1])  # all wait for blocks that others of them hold
        return step

    def readmit_broken(self) -> None:
        """Admit anew what waits for blocks that failed to come back. Between steps.

        Who has run since it was admitted had all its blocks then, and whatever it has added it has computed itself.
        """
        waiting = [sample for sample in self.running if not sample.has_run]
        intact = [sample.kv for sample in self.running if sample.has_run]
        for kv in self.kv.broken_among([sample.kv for sample in waiting], intact):
            self._admit_anew(next(sample for sample in waiting if sample.kv is kv))

    def readmit_waiting(self, failed: Step) -> None:
        """Admit anew what a failed step admitted and left waiting for blocks: others of its hit may be what it didn't write.

        What the step ran must have been removed.
        """
        for sample in failed.admitted:
            if sample.running:
                self._admit_anew(sample)

    def _schedule_decodes(self, step: Step, budget: int) -> int:
        for sample in list(self.running):
            if not (sample.running and sample.decoding):  # preempted in this very pass, or prefilling
                continue
            if not self.kv.ready(sample.kv):
                continue
            while (copies := self.kv.reserve(sample.kv)) is None:
                victim = self.running[-1]
                self._preempt(step, victim)
                if victim is sample:
                    break
            else:
                step.copies.extend(copies)
                budget -= self._run(step, sample, 1)
        return budget

    def _schedule_prefills(self, step: Step, budget: int) -> int:
        for sample in self.running:
            if budget <= 0:
                break
            if sample.remaining and not sample.decoding:
                budget -= self._read(step, sample, budget)
        return budget

    def _admit(self, step: Step, budget: int) -> None:
        # A sample that has yet to fork counts for all its answers.
        places = self.max_samples - sum(_places(s) for s in self.running)
        while self.waiting and budget > 0 and not self._refused:
            sample = self.waiting[0]
            if _places(sample) > places:
                return
            # The headroom, a block for each sample that may soon need one, keeps a newcomer from being preempted at
            # once for those before it.
            match = self.kv.admit(sample.kv, headroom=len(self.running))
            if match is None:
                self._refused = True
                return
            step.copies.extend(self.kv.take_copies())
            self.waiting.popleft()
            sample.running = True
            sample.request.count_hit(sample, match)
            insort(self.running, sample, key=lambda s: s.order)
            step.admitted.append(sample)
            places -= _places(sample)
            budget -= self._read(step, sample, budget)

    def _read(self, step: Step, sample: Sample, budget: int) -> int:
        """Plan as much of what the sample lacks as ``budget`` allows; returns how many tokens: none while there is no room."""
        count = min(budget, self.max_chunk_tokens, sample.remaining)
        if not self.kv.ready(sample.kv) or not self.kv.prepare(sample.kv, sample.num_computed + count):
            return 0
        step.copies.extend(self.kv.take_copies())
        return self._run(step, sample, count)

    def _run(self, step: Step, sample: Sample, count: int) -> int:
        """Plan the sample's next ``count`` tokens, for which there is room."""
        start = sample.num_computed
        last = count == sample.remaining
        sample.request.count_computed(sample, count)
        self.kv.scheduled(sample.kv, sample.num_computed)
        step.chunks.append(ScheduledChunk(sample, start, count, last, sample.kv.block_tables))
        return count

    def _preempt(self, step: Step, victim: Sample) -> None:
        """It stays findable until its blocks are taken, so that most of it is a hit when it comes back."""
        assert victim is self.running[-1]
        self.running.pop()
        self._release(victim)
        victim.num_computed = 0
        victim.request.preemptions += 1
        step.preempted.append(victim)
        self._wait_again(victim)

    def _admit_anew(self, sample: Sample) -> None:
        """Its hit turned out to be damaged before it ran: as if it had not been admitted."""
        self.running.remove(sample)
        self._release(sample)
        sample.request.take_back_hit(sample)
        self._wait_again(sample)

    def _release(self, sample: Sample) -> None:
        sample.running = False
        self.kv.release(sample.kv)
        self._refused = False

    def _wait_again(self, sample: Sample) -> None:
        """Queue at the place of its arrival: before all that came later."""
        position = next((i for i, s in enumerate(self.waiting) if s.order > sample.order), len(self.waiting))
        self.waiting.insert(position, sample)


def _places(sample: Sample) -> int:
    """Running samples that this one is or will become."""
    request = sample.request
    return request.params.n if len(request.samples) < request.params.n else 1
