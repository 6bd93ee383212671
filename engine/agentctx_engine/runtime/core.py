"""EngineCore: the engine without threads. One call of ``step`` is one pass through the picture in engine/README.md.

::

    add ─▶ Scheduler.schedule ─▶ ModelRunner.run ─▶ sample ─▶ _take ─▶ report
             blocks, copies        one flat batch     one token      stop? finish,
             chunk sizes           KV written, read   per last chunk free blocks
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from agentctx_engine.attention.uploads import upload_index
from agentctx_engine.runtime.errors import EngineMemoryError, RequestFailedError
from agentctx_engine.runtime.kv_store import KvStore
from agentctx_engine.runtime.look_ahead import (
    Ahead,
    Launched,
    next_step,
    rows_of,
    sampling_row,
    written_blocks,
)
from agentctx_engine.runtime.model_runner import ModelRunner
from agentctx_engine.runtime.request import FinishReason, Request, Sample
from agentctx_engine.runtime.results import EngineState, TokenEvent, Totals
from agentctx_engine.runtime.sampler import SampledToken, SamplingRow, choose
from agentctx_engine.runtime.scheduler import Scheduler, Step


@dataclass(slots=True)
class StepReport:
    """What one step did: for the facade, which hands it on, and for tests, which look inside."""

    step: Step
    events: list[TokenEvent] = field(default_factory=list)
    finished: list[Request] = field(default_factory=list)
    error: BaseException | None = None  # the step's kernels failed; its requests are among the finished


class EngineCore:
    """Not thread-safe. Requests go in by ``add``, leave by a report's ``finished``."""

    def __init__(
        self,
        kv: KvStore,
        runner: ModelRunner,
        scheduler: Scheduler,
        *,
        max_context: int,
        block_bytes: int = 0,
        kv_bytes: int = 0,
        async_scheduling: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.kv = kv
        self.runner = runner
        self.scheduler = scheduler
        self.max_context = max_context
        self.totals = Totals()
        self.clock = clock
        self.block_bytes = block_bytes
        self.kv_bytes = kv_bytes
        self.async_scheduling = async_scheduling
        self._ahead: Ahead | None = None

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def add(self, request: Request) -> None:
        self.scheduler.add(request)

    def cancel(self, request: Request, error: Exception | None = None) -> None:
        """End a request now: cancelled, or failed if there is an ``error``. Between steps only; nothing for one that has ended."""
        if request.done:
            return
        self._end(request, FinishReason.CANCELLED if error is None else FinishReason.FAILED, error)

    def settle(self) -> None:
        """Wait until no block is on its way, and deal with those that failed to come. Between steps."""
        self.scheduler.readmit_broken()
        while not self.kv.settled:
            self.kv.wait_for_arrival()
            self.scheduler.readmit_broken()

    def step(self, news: Future[None] | None = None) -> StepReport:
        """Run one step. Errors of the model or the sampler end the step's requests and are in the report, not raised.

        With nothing to compute until blocks have come back it waits for them, no longer than until ``news`` is done.
        """
        start = self.clock()
        step = self.scheduler.schedule()
        report = StepReport(step)
        if not step.chunks:
            if self.kv.settled:
                self._end_stuck(report)
            else:
                self.kv.wait_for_arrival(news)
            return report
        scheduled = self.clock()
        for admitted in step.admitted:
            if admitted.request.admitted is None:
                admitted.request.admitted = scheduled
        try:
            launched = self._launch(step)
            if self.async_scheduling:
                self._ahead = self._look_ahead(step, launched)
            tokens = self._tokens(launched, report)
        except BaseException as error:
            self._ahead = None
            self._fail(report, error)
            if not isinstance(error, Exception):
                raise
            tokens = []
        ran = self.clock()
        for sample, token in tokens:
            self._take(sample, token, ran, report)
        if not self.has_work:
            self._ahead = None  # all have ended, it was for nothing
        end = self.clock()
        self.totals.steps += 1
        self.totals.step_tokens += step.num_tokens
        self.totals.step_seconds += end - start
        self.totals.scheduler_seconds += (scheduled - start) + (end - ran)
        return report

    def close(self) -> None:
        """Finish what was begun, and let go of the memory, whoever still holds the engine."""
        self._ahead = None
        try:
            self.kv.close()
        finally:
            self.runner.close()

    def state(self) -> EngineState:
        """Totals and pool, between two steps."""
        totals = replace(self.totals, lost=dict(self.totals.lost))
        return EngineState(
            totals=totals,
            waiting=len(self.scheduler.waiting),
            running=len(self.scheduler.running),
            pool=self.kv.pool_state(),
            block_size=self.kv.block_size,
            block_bytes=self.block_bytes,
            kv_bytes=self.kv_bytes,
            kernels=self.runner.kernels,
            tiers=self.kv.tier_state(),
        )

    def _launch(self, step: Step) -> Launched:
        """Run the model and choose a token for every sample whose last known token is computed, waiting for nothing."""
        early, self._ahead = self._ahead, None
        launched = None if early is None else early.part(step, self.kv.block_size)
        if launched is None:
            self.kv.wait_until_safe(chunk.block_tables for chunk in step.chunks)
            logits = self.runner.run(step)
        else:
            self.totals.steps_ahead += 1
        for chunk in step.chunks:
            self.kv.computed(chunk.sample.kv, chunk.start + chunk.count)
        return launched or self._choose(step, logits)

    def _choose(self, step: Step, logits: Tensor) -> Launched:
        samples: list[Sample] = []
        source: list[int] = []
        for row, sample in enumerate(chunk.sample for chunk in step.chunks if chunk.last):
            request = sample.request
            family = [sample]
            if len(request.samples) < request.params.n:
                twins, copies = self.scheduler.fork(sample, request.params.n)
                self.runner.copy_blocks(copies)
                family += twins
            samples += family
            source += [row] * len(family)
        if not samples:
            return Launched((), None)
        if source != list(range(len(logits))):
            logits = logits[upload_index(source, logits.device)]
        return _launched(samples, logits, [sampling_row(sample) for sample in samples])

    def _look_ahead(self, step: Step, launched: Launched) -> Ahead | None:
        """Launch the step that probably follows, if there is one."""
        chunks = next_step(self.kv, self.scheduler, step, launched, self.max_context)
        if chunks is None:
            return None
        try:
            logits = self.runner.run_ahead(chunks, rows_of(launched, chunks))
        except Exception:
            # It ran out of memory, say: the step is then run in its turn, and answers for itself.
            return None
        samples = [chunk.sample for chunk in chunks]
        following = _launched(samples, logits, [sampling_row(sample, ahead=True) for sample in samples])
        size = self.kv.block_size
        return Ahead(
            {c.sample: (c, written_blocks(c.block_tables, c.start, size)) for c in chunks}, following
        )

    def _tokens(self, launched: Launched, report: StepReport) -> list[tuple[Sample, SampledToken]]:
        """Wait for the tokens. Samples whose logits were no numbers are ended."""
        if launched.tokens is None:
            return []
        tokens, broken = launched.tokens.wait()
        taken: list[tuple[Sample, SampledToken]] = []
        for sample, token, is_broken, logits in zip(
            launched.samples, tokens, broken, launched.logits, strict=True
        ):
            request = sample.request
            if request.done or (launched.wanted is not None and sample not in launched.wanted):
                continue
            if is_broken:
                error = RequestFailedError(f"request {request.id}: the model's logits are not numbers")
                self._end(request, FinishReason.FAILED, error, report)
                self.kv.drop_cached()  # what it computed is no better
                continue
            if logits is not None:
                sample.logits.append(logits)
            taken.append((sample, token))
        return taken

    def _take(self, sample: Sample, token: SampledToken, now: float, report: StepReport) -> None:
        """Append a sampled token; end the sample if it was the last."""
        request = sample.request
        if sample.finish_reason is not None:  # an earlier sample of the request failed in its stop hook
            return
        self.kv.append(sample.kv, token.token_id)
        sample.take(token)
        if request.first_token is None:
            request.first_token = now
        try:
            reason = self._finish_reason(sample)
        except Exception as cause:
            error = RequestFailedError(
                f"request {request.id}: its stop hook raised {type(cause).__name__}: {cause}"
            )
            error.__cause__ = cause
            self._end(request, FinishReason.FAILED, error, report)
            return
        report.events.append(
            TokenEvent(request.id, sample.index, token.token_id, token.logprob, token.top, reason)
        )
        if reason is not None:
            sample.finish_reason = reason
            self.scheduler.remove([sample])
            if request.done:
                self._close(request, now, report)

    def _finish_reason(self, sample: Sample) -> FinishReason | None:
        request = sample.request
        if sample.output[-1] in (request.params.stop_token_ids or ()):
            return FinishReason.STOP
        if request.stop_hook is not None and request.stop_hook(sample.index, sample.output):
            return FinishReason.HOOK
        if len(sample.output) >= request.params.max_tokens or sample.num_tokens >= self.max_context:
            return FinishReason.LENGTH
        return None

    def _fail(self, report: StepReport, cause: BaseException) -> None:
        """The step's kernels or its sampling failed: end its requests, keep the others."""
        kind = f"{type(cause).__name__}: {cause}"
        report.error = cause
        for request in {id(c.sample.request): c.sample.request for c in report.step.chunks}.values():
            if request.done:
                continue
            error: Exception
            if isinstance(cause, MemoryError | torch.OutOfMemoryError):
                error = EngineMemoryError(
                    f"request {request.id}: a step of {report.step.num_tokens} tokens ran out of memory ({kind}); "
                    "lower max_step_tokens or the number of KV blocks"
                )
            else:
                error = RequestFailedError(f"request {request.id}: a step failed ({kind})")
            error.__cause__ = cause
            self._end(request, FinishReason.FAILED, error, report)
        # Blocks of this step were made findable before its kernels ran. Besides those that it ran, only samples hold them
        # that it admitted and that wait for other blocks. With both gone they are unheld: forgetting every unheld prefix
        # forgets those that were never written.
        self.scheduler.readmit_waiting(report.step)
        self.kv.drop_cached()

    def _end_stuck(self, report: StepReport) -> None:
        """Nothing runs and the oldest request fits nowhere. Sizes are checked on entry, so this is a last resort."""
        if report.step.preempted or self.scheduler.running or not self.scheduler.waiting:
            return
        request = self.scheduler.waiting[0].request
        error = EngineMemoryError(
            f"request {request.id}: {self.scheduler.waiting[0].num_tokens} tokens don't fit an idle pool of "
            f"{self.kv.pool_state().total} blocks of {self.kv.block_size} tokens"
        )
        self._end(request, FinishReason.FAILED, error, report)

    def _end(
        self,
        request: Request,
        reason: FinishReason,
        error: Exception | None,
        report: StepReport | None = None,
    ) -> None:
        """End every sample of a request that still runs or waits."""
        request.error = error
        open_samples = [s for s in request.samples if s.finish_reason is None]
        self.scheduler.remove(open_samples)
        for sample in open_samples:
            sample.finish_reason = reason
        self._close(request, self.clock(), report)

    def _close(self, request: Request, now: float, report: StepReport | None) -> None:
        request.finished = now
        self.totals.add(request)
        if report is not None:
            report.finished.append(request)


def _launched(samples: Sequence[Sample], logits: Tensor, rows: Sequence[SamplingRow]) -> Launched:
    """Tokens for ``samples``, a row of ``logits`` each."""
    kept = [
        row.float().cpu().numpy().copy() if sample.request.keep_logits else None
        for sample, row in zip(samples, logits, strict=True)
    ]
    return Launched(samples, choose(logits, rows), kept)
