"""What the engine answers: a token as it comes, a whole result, and the engine's totals."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from agentctx_engine.memory.prefix_cache import Lost, Match
from agentctx_engine.runtime.kv_store import PoolState, TierState
from agentctx_engine.runtime.request import FinishReason, Request, Sample


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One new token of one sample."""

    request_id: int
    sample_index: int
    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...] | None  # (token id, log-probability), most likely first
    finish_reason: FinishReason | None  # set on a sample's last token


@dataclass(frozen=True, slots=True, eq=False)
class SampleResult:
    """One of a request's ``n`` answers. ``logprobs`` and ``top`` run parallel to ``token_ids``."""

    index: int
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    logprobs: tuple[float, ...] | None
    top: tuple[tuple[tuple[int, float], ...], ...] | None
    logits: npt.NDArray[np.float32] | None  # [tokens, vocabulary], if the request kept them


@dataclass(frozen=True, slots=True, eq=False)
class GenerationResult:
    """A finished request. Times are seconds; ``None`` where the moment never came."""

    request_id: int
    samples: tuple[SampleResult, ...]
    prompt_tokens: int
    cached_tokens: int  # prompt tokens whose keys and values were reused
    computed_tokens: (
        int  # prompt tokens that were run; cached + computed = prompt, unless it was cancelled before
    )
    recomputed_tokens: int  # tokens run again because preemption had taken their blocks
    lost: tuple[tuple[Lost, int], ...]  # why the others were not reused at the first admission
    seed: int
    preemptions: int
    queue_time: float | None  # arrival to first admission
    time_to_first_token: float | None  # from arrival
    time_per_token: float | None  # mean over the longest sample, after its first token
    total_time: float
    host_tokens: int = 0  # of the cached tokens, those that came back from host memory
    disk_tokens: int = 0  # … and from disk

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Of the first sample."""
        return self.samples[0].token_ids

    @property
    def finish_reason(self) -> FinishReason:
        """Of the first sample."""
        return self.samples[0].finish_reason

    @property
    def generated_tokens(self) -> int:
        return sum(len(sample.token_ids) for sample in self.samples)


@dataclass(slots=True)
class Totals:
    """Counters since the engine started; tokens unless the name says otherwise."""

    requests_finished: int = 0
    requests_cancelled: int = 0
    requests_failed: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    steps: int = 0
    steps_ahead: int = 0  # of them, those whose kernels were launched before they were planned
    step_tokens: int = 0  # run by all steps, first time or again
    step_seconds: float = 0.0
    scheduler_seconds: float = 0.0  # of step_seconds: all but the model and the sampler
    lost: dict[Lost, int] = field(default_factory=dict)

    def add(self, request: Request) -> None:
        """Count an ended request."""
        reasons = {sample.finish_reason for sample in request.samples}
        if FinishReason.FAILED in reasons:
            self.requests_failed += 1
        elif FinishReason.CANCELLED in reasons:
            self.requests_cancelled += 1
        else:
            self.requests_finished += 1
        self.prompt_tokens += request.num_prompt
        self.cached_tokens += request.cached_tokens
        self.computed_tokens += request.computed_tokens
        self.recomputed_tokens += request.recomputed_tokens
        self.preemptions += request.preemptions
        self.generated_tokens += sum(len(sample.output) for sample in request.samples)
        for reason, tokens in request.match.lost if request.match is not None else ():
            self.lost[reason] = self.lost.get(reason, 0) + tokens


@dataclass(frozen=True, slots=True)
class EngineState:
    """A consistent look at the engine between two steps, for metrics."""

    totals: Totals  # a copy
    waiting: int  # samples
    running: int  # samples
    pool: PoolState
    block_size: int
    block_bytes: int  # one block, in all layers
    tiers: TierState | None = None
    kernels: str = "torch"  # what decodes: "c" with the compiled kernels, "triton" with those on a GPU
    kv_bytes: int = 0  # all keys and values on the model's device

    @property
    def kv_memory(self) -> str:
        """For people: what the KV memory holds."""
        blocks = self.pool.total
        return (
            f"KV memory: {blocks:,} blocks of {self.block_size} tokens, {blocks * self.block_size:,} tokens, "
            f"{self.kv_bytes / 2**30:.2f} GiB"
        )

    @property
    def hit_rate(self) -> float | None:
        """Cached share of the prompt tokens of ended requests; ``None`` before the first."""
        total = self.totals.prompt_tokens
        return self.totals.cached_tokens / total if total else None


def build_result(request: Request, now: float) -> GenerationResult:
    """The result of a request whose samples have all ended."""
    match: Match | None = request.match
    first, end = request.first_token, request.finished if request.finished is not None else now
    longest = max(len(sample.output) for sample in request.samples)
    return GenerationResult(
        request_id=request.id,
        samples=tuple(_sample_result(sample) for sample in request.samples),
        prompt_tokens=request.num_prompt,
        cached_tokens=request.cached_tokens,
        computed_tokens=request.computed_tokens,
        host_tokens=request.host_tokens,
        disk_tokens=request.disk_tokens,
        recomputed_tokens=request.recomputed_tokens,
        lost=match.lost if match is not None else (),
        seed=request.seed,
        preemptions=request.preemptions,
        queue_time=None if request.admitted is None else request.admitted - request.arrival,
        time_to_first_token=None if first is None else first - request.arrival,
        time_per_token=(end - first) / (longest - 1) if first is not None and longest > 1 else None,
        total_time=end - request.arrival,
    )


def _sample_result(sample: Sample) -> SampleResult:
    params = sample.request.params
    wanted = params.logprobs is not None
    assert sample.finish_reason is not None
    return SampleResult(
        index=sample.index,
        token_ids=tuple(sample.output),
        finish_reason=sample.finish_reason,
        logprobs=tuple(t.logprob for t in sample.sampled if t.logprob is not None) if wanted else None,
        top=tuple(t.top for t in sample.sampled if t.top is not None) if wanted else None,
        logits=np.stack(sample.logits) if sample.logits else None,
    )
