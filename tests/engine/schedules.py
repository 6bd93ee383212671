"""Random schedules: an engine's settings and a crowd of requests that share prefixes, arrive, fork and are cancelled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from agentctx_engine.runtime.build import build_core
from agentctx_engine.runtime.config import EngineConfig
from agentctx_engine.runtime.core import EngineCore
from agentctx_engine.runtime.model_runner import DecoderModel
from agentctx_engine.runtime.request import FinishReason, Request
from agentctx_engine.runtime.sampling_params import SamplingParams


@dataclass(frozen=True)
class Arrival:
    """A request, the step before which it comes, and the step before which it is cancelled, if it is."""

    prompt: tuple[int, ...]
    max_tokens: int
    step: int
    n: int = 1
    salt: str | None = None
    reuse: bool = True
    cancel_step: int | None = None


@dataclass(frozen=True)
class Schedule:
    config: EngineConfig
    arrivals: tuple[Arrival, ...]


@dataclass
class Run:
    """What came of a schedule."""

    core: EngineCore
    requests: list[Request] = field(default_factory=list)
    finish_order: list[int] = field(default_factory=list)


@st.composite
def schedules(
    draw: st.DrawFn,
    *,
    vocab_size: int,
    kinds: tuple[str, ...] = ("hash", "radix", "none"),
    max_requests: int = 8,
    max_prompt: int = 60,
    max_output: int = 32,
    cancellations: bool = True,
    deterministic: bool = False,
) -> Schedule:
    """Pools are sized from "barely one request" up, so that eviction and preemption are the rule."""
    block_size = draw(st.sampled_from([4, 5, 8, 16, 32]))
    largest = -(-(max_prompt + max_output) // block_size)
    num_blocks = largest + draw(st.integers(0, largest))
    max_samples = draw(st.integers(3, 8))
    config = EngineConfig(
        block_size=block_size,
        num_blocks=num_blocks,
        max_step_tokens=draw(st.sampled_from([max_samples, 9, 17, 64, 256])),
        max_chunk_tokens=draw(st.sampled_from([None, 1, 3, 7, 16])),
        max_samples=max_samples,
        prefix_cache=draw(st.sampled_from(kinds)),
        deterministic=deterministic,
    )
    # A few stems, each perhaps the beginning of another; prompts cut them anywhere and add a little of their own.
    token = st.integers(1, vocab_size - 1)
    stems = [draw(st.lists(token, min_size=max_prompt, max_size=max_prompt))]
    for _ in range(draw(st.integers(0, 2))):
        cut = draw(st.integers(0, max_prompt))
        own = draw(st.lists(token, min_size=max_prompt - cut, max_size=max_prompt - cut))
        stems.append(stems[0][:cut] + own)
    arrivals = []
    for _ in range(draw(st.integers(2, max_requests))):
        stem = draw(st.sampled_from(stems))
        cut = draw(st.one_of(st.integers(1, max_prompt), st.integers(max_prompt // 2, max_prompt)))
        tail = draw(st.lists(token, max_size=min(4, max_prompt - cut)))
        step = draw(st.integers(0, 12))
        cancelled = cancellations and draw(st.integers(0, 5)) == 0
        arrivals.append(
            Arrival(
                prompt=tuple(stem[:cut] + tail),
                max_tokens=draw(st.one_of(st.integers(1, max_output), st.just(max_output))),
                step=step,
                n=draw(st.sampled_from([1, 1, 2, 3])),
                salt=draw(st.sampled_from([None, None, "a"])),
                reuse=draw(st.integers(0, 7)) > 0,
                cancel_step=step + draw(st.integers(0, 20)) if cancelled else None,
            )
        )
    return Schedule(config, tuple(sorted(arrivals, key=lambda a: a.step)))


def run(
    model: DecoderModel,
    schedule: Schedule,
    *,
    params: Callable[[Arrival], SamplingParams] | None = None,
    keep_logits: bool = False,
    check: bool = True,
    max_steps: int = 20_000,
    before_step: Callable[[int], object] | None = None,
    may_fail: type[Exception] | tuple[()] = (),
) -> Run:
    """Drive a core step by step; the bookkeeping is checked after every one of them.

    before_step: called with each step's number. may_fail: what a step may fail with; any other error is raised.
    """
    result = Run(build_core(model, schedule.config))
    core, waiting, step = result.core, list(schedule.arrivals), 0
    cancels: list[tuple[int, Request]] = []
    while waiting or core.has_work:
        while waiting and waiting[0].step <= step:
            arrival = waiting.pop(0)
            chosen = (
                SamplingParams(max_tokens=arrival.max_tokens, n=arrival.n)
                if params is None
                else params(arrival)
            )
            request = Request(
                id=len(result.requests),
                prompt=np.array(arrival.prompt, dtype=np.int32),
                params=chosen.with_stop_token_ids(model.config.eos_token_ids),
                seed=chosen.seed or 0,
                cache_salt=arrival.salt,
                reuse=arrival.reuse,
                keep_logits=keep_logits,
            )
            result.requests.append(request)
            core.add(request)
            if arrival.cancel_step is not None:
                cancels.append((arrival.cancel_step, request))
        for cancel_step, request in cancels:
            if cancel_step == step:
                core.cancel(request)
        if core.has_work:
            if before_step is not None:
                before_step(step)
            report = core.step()
            if report.error is not None and not isinstance(report.error, may_fail):
                raise report.error
            result.finish_order += [r.id for r in report.finished]
            if check:
                core.kv.check()
        step += 1
        assert step < max_steps, "the schedule does not end"
    return result


def check_end(result: Run) -> None:
    """What must hold whatever the schedule was: no block lost, every prompt token accounted for once."""
    core = result.core
    core.kv.check()
    pool = core.kv.pool_state()
    assert pool.in_use == 0
    assert pool.cached + pool.empty == pool.total
    assert not core.scheduler.running
    assert not core.scheduler.waiting
    for request in result.requests:
        assert request.done
        if cancelled(request) or request.error is not None:
            assert request.cached_tokens + request.computed_tokens <= request.num_prompt
        else:
            assert request.cached_tokens + request.computed_tokens == request.num_prompt
            assert len(request.samples) == request.params.n
            assert request.match is not None
            assert request.match.hit_tokens + sum(n for _, n in request.match.lost) == request.num_prompt
        if request.preemptions == 0:
            assert request.recomputed_tokens == 0
    assert core.totals.step_tokens == sum(
        r.computed_tokens + r.recomputed_tokens + _decoded(r) for r in result.requests
    )


def _decoded(request: Request) -> int:
    """Output tokens that were read by the model for the first time."""
    return sum(max(0, sample.high_water - request.num_prompt) for sample in request.samples)


def cancelled(request: Request) -> bool:
    return any(sample.finish_reason is FinishReason.CANCELLED for sample in request.samples)
