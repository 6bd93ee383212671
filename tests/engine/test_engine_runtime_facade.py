"""The Engine facade: threads, streams, event loops, errors that leave it usable, and its end."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch

from agentctx_engine.attention.batch import Batch
from agentctx_engine.runtime import (
    Engine,
    EngineClosedError,
    EngineConfig,
    EngineError,
    EngineMemoryError,
    FinishReason,
    PromptTooLongError,
    RequestCancelledError,
    RequestError,
    RequestFailedError,
    SamplingParams,
    loop,
)
from agentctx_engine.runtime.paged_store import PagedStore
from agentctx_engine.runtime.request import StopHook
from agentctx_engine.runtime.results import build_result

from .context_hash_model import ContextHashModel, tiny_config

PROMPT = list(range(1, 31))
ENDLESS = SamplingParams(max_tokens=4000, stop_token_ids=())


class FaultyModel(ContextHashModel):
    """Fails where it is told to: ``fault(batch, logits)`` may raise or change the logits."""

    fault: Any = None

    def forward(self, batch: Batch, kv_caches: Any, *, deterministic: bool = False) -> torch.Tensor:
        logits = super().forward(batch, kv_caches)
        if self.fault is not None:
            self.fault(batch, logits)
        return logits


@pytest.fixture
def model() -> FaultyModel:
    return FaultyModel(tiny_config())


@pytest.fixture
def engine(model: FaultyModel) -> Iterator[Engine]:
    with Engine(model, num_blocks=256, block_size=4) as engine:
        yield engine
    assert all(t.name != "agentctx-engine" for t in threading.enumerate())


def assert_usable(engine: Engine) -> None:
    """A fresh request still gives the right answer and nothing is held."""
    model = engine.model
    assert isinstance(model, ContextHashModel)
    result = engine.generate(PROMPT, SamplingParams(max_tokens=6))
    assert list(result.token_ids) == model.greedy(PROMPT, 6)
    state = engine.state()
    assert (state.running, state.waiting, state.pool.in_use) == (0, 0, 0)


def test_result_carries_counts_times_and_reasons(engine: Engine) -> None:
    params = SamplingParams(max_tokens=8, n=2, temperature=1.0, logprobs=2, stop_token_ids=())
    result = engine.generate(np.array(PROMPT), params, keep_logits=True)
    assert (result.prompt_tokens, result.cached_tokens, result.computed_tokens) == (30, 0, 30)
    assert sum(tokens for _, tokens in result.lost) == 30
    assert result.generated_tokens == 16
    assert result.time_to_first_token is not None
    assert result.queue_time is not None
    assert result.time_per_token is not None
    assert 0 <= result.queue_time <= result.time_to_first_token <= result.total_time
    again = engine.generate(
        PROMPT, SamplingParams(max_tokens=8, n=2, temperature=1.0, seed=result.seed, stop_token_ids=())
    )
    assert [s.token_ids for s in again.samples] == [s.token_ids for s in result.samples]
    assert again.cached_tokens == 28
    for sample in result.samples:
        assert sample.logits is not None
        assert sample.logits.shape == (8, engine.model.config.vocab_size)
        assert sample.logprobs is not None
        expected = torch.log_softmax(torch.from_numpy(sample.logits), dim=-1)
        assert sample.logprobs == pytest.approx(
            [expected[i, t].item() for i, t in enumerate(sample.token_ids)]
        )
        assert sample.top is not None
        assert all(len(top) == 2 for top in sample.top)


def test_match_predicts_the_next_request_and_changes_nothing(engine: Engine) -> None:
    assert engine.match(PROMPT).hit_tokens == 0
    engine.generate(PROMPT, SamplingParams(max_tokens=1))
    before = engine.state()
    assert engine.match(PROMPT).hit_tokens == 28
    assert engine.match(PROMPT, cache_salt="other").hit_tokens == 0
    assert engine.state() == before
    result = engine.generate(PROMPT, SamplingParams(max_tokens=1))
    assert result.cached_tokens == 28
    engine.drop_cached()
    assert engine.match(PROMPT).hit_tokens == 0
    assert engine.state().pool.cached == 0


def test_stream_gives_every_token_once_and_the_reason_last(engine: Engine, model: FaultyModel) -> None:
    handle = engine.submit(PROMPT, SamplingParams(max_tokens=12, n=2))
    events = list(handle.stream())
    expected = model.greedy(PROMPT, 12)
    for index in (0, 1):
        own = [e for e in events if e.sample_index == index]
        assert [e.token_id for e in own] == expected
        assert [e.finish_reason for e in own[:-1]] == [None] * (len(own) - 1)
        assert own[-1].finish_reason is not None
    assert handle.result().token_ids == tuple(expected)
    assert list(handle.stream()) == events, "a late reader sees the same"


def test_leaving_a_stream_cancels_the_request(engine: Engine) -> None:
    handle = engine.submit(PROMPT, ENDLESS)
    stream = handle.stream()
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    with pytest.raises(RequestCancelledError):
        handle.result(timeout=10)
    partial = handle.partial_result()
    assert partial is not None
    assert partial.generated_tokens >= 1
    assert partial.finish_reason is FinishReason.CANCELLED
    assert_usable(engine)


async def test_event_loops_stream_wait_and_cancel(engine: Engine, model: FaultyModel) -> None:
    expected = model.greedy(PROMPT, 10)
    params = SamplingParams(max_tokens=10)

    async def read() -> list[int]:
        return [event.token_id async for event in engine.astream(PROMPT, params)]

    results = await asyncio.gather(
        *(read() for _ in range(4)), *(engine.agenerate(PROMPT, params) for _ in range(4))
    )
    assert all(ids == expected for ids in results[:4])
    assert all(list(result.token_ids) == expected for result in results[4:])

    task = asyncio.create_task(engine.agenerate(PROMPT, ENDLESS))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async for _ in (stream := engine.astream(PROMPT, ENDLESS)):
        break
    await stream.aclose()  # type: ignore[attr-defined]
    for _ in range(100):
        if not (state := engine.state()).running and not state.waiting:
            break
        await asyncio.sleep(0.02)
    assert engine.state().totals.requests_cancelled == 2
    assert_usable(engine)


def test_many_threads_submit_at_once(engine: Engine, model: FaultyModel) -> None:
    prompts = [[*PROMPT[: 3 + i], 50 + i] for i in range(16)]

    def ask(prompt: list[int]) -> tuple[int, ...]:
        return engine.generate(prompt, SamplingParams(max_tokens=6)).token_ids

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(ask, prompts * 2))
    assert [list(a) for a in answers] == [model.greedy(p, 6) for p in prompts * 2]
    assert engine.state().totals.requests_finished == 32


def test_generate_many_keeps_the_order(engine: Engine, model: FaultyModel) -> None:
    prompts = [[i, i + 1, i + 2] for i in range(1, 9)]
    results = engine.generate_many(prompts, SamplingParams(max_tokens=5))
    assert [list(r.token_ids) for r in results] == [model.greedy(p, 5) for p in prompts]


@pytest.mark.parametrize("kind", ["hash", "radix"])
def test_64_requests_on_a_pool_that_holds_8(kind: str) -> None:
    """All finish, all blocks are free or cached at the end; and again with random cancellations."""
    model = ContextHashModel()
    # 24 prompt + 16 generated tokens are 10 blocks of 4.
    with Engine(
        model, num_blocks=80, block_size=4, prefix_cache=kind, max_step_tokens=64, max_samples=16
    ) as engine:
        random = Random(7)
        prompts = [
            [*PROMPT[: random.randrange(0, 12)], *random.choices(range(1, 97), k=12)] for _ in range(64)
        ]
        params = SamplingParams(max_tokens=16, stop_token_ids=())
        results = [h.result(timeout=60) for h in [engine.submit(p, params) for p in prompts]]
        for prompt, result in zip(prompts, results, strict=True):
            assert list(result.token_ids) == expected(model, prompt)
            assert result.cached_tokens + result.computed_tokens == result.prompt_tokens
        assert engine.state().totals.preemptions + engine.state().totals.cached_tokens > 0
        assert_no_leak(engine)

        handles = [engine.submit(p, params) for p in prompts]
        victims = set(random.sample(range(64), 24))
        for i in victims:
            time.sleep(random.random() * 0.004)
            handles[i].cancel()
        for i, handle in enumerate(handles):
            try:
                assert list(handle.result(timeout=60).token_ids) == expected(model, prompts[i])
            except RequestCancelledError:
                assert i in victims
                partial = handle.partial_result()
                assert partial is not None
                assert list(partial.token_ids) == expected(model, prompts[i])[: partial.generated_tokens]
        assert_no_leak(engine)


def expected(model: ContextHashModel, prompt: list[int]) -> list[int]:
    tokens = list(prompt)
    for _ in range(16):
        tokens.append(int(model.logits(tokens).argmax()))
    return tokens[len(prompt) :]


def assert_no_leak(engine: Engine) -> None:
    engine._loop.call(engine._core.kv.check)
    state = engine.state()
    assert (state.running, state.waiting, state.pool.in_use) == (0, 0, 0)
    assert state.pool.cached + state.pool.empty == state.pool.total


# -- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "non-empty"),
        ([[1, 2]], "non-empty"),
        ([1.5, 2.0], "token ids, got float"),
        ([1, 97], r"prompt\[1\]=97 is no token id: the vocabulary has 97"),
        ([1, 2, -1], r"prompt\[2\]=-1"),
    ],
)
def test_bad_prompts_are_refused_before_they_are_queued(engine: Engine, prompt: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        engine.submit(prompt)
    assert_usable(engine)


def test_too_long_prompts_say_what_would_fit() -> None:
    with Engine(ContextHashModel(), num_blocks=16, block_size=4, max_samples=4) as engine:
        assert engine.max_context == 64
        with pytest.raises(PromptTooLongError, match=r"the prompt has 64 tokens .* context of 64"):
            engine.generate([1] * 64)
        result = engine.generate([1] * 63, SamplingParams(max_tokens=50, stop_token_ids=()))
        assert (result.generated_tokens, result.finish_reason) == (1, FinishReason.LENGTH)
        with pytest.raises(RequestError, match=r"n=5"):
            engine.generate([1], SamplingParams(n=5))
        assert_usable(engine)


def test_a_pool_that_cannot_be_had_is_a_clear_error() -> None:
    with pytest.raises(EngineMemoryError, match=r"bytes of KV memory .* lower num_blocks or kv_memory_bytes"):
        Engine(ContextHashModel(), num_blocks=2**44)
    with pytest.raises(EngineMemoryError, match=r"kv_memory_bytes=100 holds no block: .* takes 256 bytes"):
        Engine(ContextHashModel(), kv_memory_bytes=100)
    with pytest.raises(EngineMemoryError, match=r"max_context=100 needs more than the pool's 64 tokens"):
        Engine(ContextHashModel(), num_blocks=4, max_context=100)
    with pytest.raises(ValueError, match=r"max_context=5000: the model's is 4096"):
        Engine(ContextHashModel(), num_blocks=4000, max_context=5000)


@pytest.mark.parametrize("kind", ["hash", "radix"])
def test_out_of_memory_in_a_step_fails_its_requests_and_no_other(model: FaultyModel, kind: str) -> None:
    """And nothing of what the failed step announced as cached is ever found."""

    def fault(batch: Batch, logits: torch.Tensor) -> None:
        if batch.num_tokens >= 25:
            # The step's keys and values were never written, as far as anyone may rely on.
            raise torch.OutOfMemoryError("CUDA out of memory: tried to allocate 2 GiB")

    model.fault = fault
    with Engine(model, num_blocks=256, block_size=4, prefix_cache=kind) as engine:
        with pytest.raises(EngineMemoryError, match=r"ran out of memory .*lower max_step_tokens") as caught:
            engine.generate(PROMPT)
        assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)
        assert isinstance(caught.value, EngineError)
        assert engine.match(PROMPT).hit_tokens == 0
        short = engine.generate(PROMPT[:10], SamplingParams(max_tokens=5))
        assert list(short.token_ids) == model.greedy(PROMPT[:10], 5)
        model.fault = None
        assert_usable(engine)
        assert engine.state().totals.requests_failed == 1


def test_a_failing_step_spares_those_who_were_not_in_it(model: FaultyModel) -> None:
    armed = threading.Event()

    def fault(batch: Batch, logits: torch.Tensor) -> None:
        if armed.is_set() and len(batch.context_lens) == 2:
            armed.clear()
            raise RuntimeError("a kernel broke")

    model.fault = fault
    config = EngineConfig(num_blocks=16, block_size=4, max_samples=2, max_step_tokens=64)
    with Engine(model, config) as engine:
        armed.set()
        handles = engine_submit_together(engine, [PROMPT[:8], PROMPT[8:16], PROMPT[16:24]])
        for handle in handles[:2]:
            with pytest.raises(RequestFailedError, match=r"a kernel broke"):
                handle.result(timeout=20)
        assert list(handles[2].result(timeout=20).token_ids) == model.greedy(PROMPT[16:24], 6)
        assert_usable(engine)


def engine_submit_together(engine: Engine, prompts: list[list[int]]) -> list[Any]:
    """All requests reach the scheduler between the same two steps."""
    handles: list[Any] = []
    engine._loop.call(lambda: handles.extend(engine.submit(p, SamplingParams(max_tokens=6)) for p in prompts))
    return handles


def test_logits_that_are_not_numbers_fail_their_request_only(engine: Engine, model: FaultyModel) -> None:
    def fault(batch: Batch, logits: torch.Tensor) -> None:
        for row, chunk in enumerate(c for c in batch.chunks if c.logit_rows):
            if chunk.token_ids[-1] == 77:
                logits[row] = torch.nan

    model.fault = fault
    bad, good = engine_submit_together(engine, [[5, 6, 7, 8, 9, 77], [1, 2, 3]])
    with pytest.raises(RequestFailedError, match=r"not numbers"):
        bad.result(timeout=20)
    assert list(good.result(timeout=20).token_ids) == model.greedy([1, 2, 3], 6)
    assert engine.match([5, 6, 7, 8, 9, 77]).hit_tokens == 0
    model.fault = None
    assert_usable(engine)


def test_a_raising_stop_hook_fails_its_request_only(engine: Engine, model: FaultyModel) -> None:
    def hook(index: int, output: Any) -> bool:
        raise KeyError("no such thing")

    handle = engine.submit(PROMPT, SamplingParams(max_tokens=6, n=2), stop_hook=hook)
    other = engine.submit([1, 2], SamplingParams(max_tokens=6))
    with pytest.raises(RequestFailedError, match=r"its stop hook raised KeyError") as caught:
        handle.result(timeout=20)
    assert isinstance(caught.value.__cause__, KeyError)
    assert list(other.result(timeout=20).token_ids) == model.greedy([1, 2], 6)
    assert_usable(engine)


def test_waiting_with_a_timeout_leaves_the_request_running(engine: Engine) -> None:
    handle = engine.submit(PROMPT, ENDLESS)
    with pytest.raises(TimeoutError, match=r"still running after 0.01 s"):
        handle.result(timeout=0.01)
    assert not handle.done
    handle.cancel()
    handle.cancel()
    with pytest.raises(RequestCancelledError):
        handle.result(timeout=20)


@pytest.mark.parametrize("kind", ["hash", "radix"])
@pytest.mark.parametrize("salt", ["\ud800", 7, b"x"])
def test_a_salt_that_is_no_text_is_refused_before_anything_is_queued(
    model: FaultyModel, kind: str, salt: Any, tmp_path: Path
) -> None:
    with Engine(model, num_blocks=64, block_size=4, prefix_cache=kind) as engine:
        engine.save(PROMPT, tmp_path / "prefix")
        for call in (
            lambda: engine.submit(PROMPT, cache_salt=salt),
            lambda: engine.match(PROMPT, cache_salt=salt),
            lambda: engine.save(PROMPT, tmp_path / "salted", cache_salt=salt),
            lambda: engine.restore(tmp_path / "prefix", cache_salt=salt),
        ):
            with pytest.raises(RequestError, match="cache_salt must be"):
                call()
        assert not (tmp_path / "salted").exists()
        assert_usable(engine)


def test_a_request_that_cannot_be_queued_fails_alone(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    add = engine._core.add

    def refusing(request: Any) -> None:
        if len(request.prompt) == 5:
            raise MemoryError("no memory for its hashes")
        add(request)

    monkeypatch.setattr(engine._core, "add", refusing)
    bad, good = engine_submit_together(engine, [PROMPT[:5], PROMPT[:8]])
    with pytest.raises(RequestFailedError, match=r"can't be queued .*no memory for its hashes"):
        bad.result(timeout=20)
    assert list(good.result(timeout=20).token_ids) == engine.model.greedy(PROMPT[:8], 6)  # type: ignore[attr-defined]
    assert_usable(engine)


def test_a_result_that_cannot_be_made_fails_its_request_only(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(request: Any, now: float) -> Any:
        if len(request.prompt) == 5:
            raise MemoryError("unable to allocate 7.3 GiB")
        return build_result(request, now)

    monkeypatch.setattr(loop, "build_result", failing)
    bad, good = engine_submit_together(engine, [PROMPT[:5], PROMPT[:8]])
    with pytest.raises(RequestFailedError, match=r"result can't be made .*7\.3 GiB") as caught:
        bad.result(timeout=20)
    assert isinstance(caught.value.__cause__, MemoryError)
    assert bad.partial_result() is None
    good.result(timeout=20)
    assert_usable(engine)


def hook_that_calls(function: Callable[[], Any]) -> StopHook:
    def hook(index: int, output: Sequence[int]) -> bool:
        function()
        return False

    return hook


def test_a_stop_hook_that_waits_for_the_engine_fails_its_request_only(engine: Engine, tmp_path: Path) -> None:
    once = SamplingParams(max_tokens=1)
    waits: list[Any] = [
        lambda: engine.generate(PROMPT, once),
        lambda: engine.generate_many([PROMPT], once),
        lambda: list(engine.stream(PROMPT, once)),
        lambda: asyncio.run(engine.agenerate(PROMPT, once)),
        lambda: engine.save(PROMPT, tmp_path / "prefix"),
    ]
    for wait in waits:
        with pytest.raises(RequestFailedError, match=r"its stop hook raised RequestError") as caught:
            engine.submit(PROMPT, once, stop_hook=hook_that_calls(wait)).result(timeout=20)
        assert isinstance(caught.value.__cause__, RequestError)
    for answered in (engine.state, lambda: engine.match(PROMPT), engine.drop_cached):
        engine.submit(PROMPT, once, stop_hook=hook_that_calls(answered)).result(timeout=20)
    assert_usable(engine)


# -- the end ------------------------------------------------------------------------------------------------


def test_close_ends_what_runs_and_refuses_what_comes() -> None:
    engine = Engine(ContextHashModel(), num_blocks=64, block_size=4, max_samples=2)
    handles = [engine.submit(PROMPT, SamplingParams(max_tokens=200, stop_token_ids=())) for _ in range(4)]
    next(handles[0].stream())
    handles = handles[1:]
    engine.close()
    engine.close()
    for handle in handles:
        with pytest.raises(EngineClosedError):
            handle.result(timeout=5)
    with pytest.raises(EngineClosedError):
        engine.generate(PROMPT)
    with pytest.raises(EngineClosedError):
        engine.state()
    assert all(t.name != "agentctx-engine" for t in threading.enumerate())


async def test_an_engine_is_an_async_context_manager_too(model: FaultyModel) -> None:
    async with Engine(model, num_blocks=64, block_size=4) as engine:
        endless = asyncio.create_task(
            engine.agenerate(PROMPT, SamplingParams(max_tokens=200, stop_token_ids=()))
        )
        result = await engine.agenerate(PROMPT, SamplingParams(max_tokens=4))
        assert list(result.token_ids) == model.greedy(PROMPT, 4)
    with pytest.raises(EngineClosedError):
        await endless


def test_a_forgotten_engine_closes_itself() -> None:
    engine = Engine(ContextHashModel(), num_blocks=64, block_size=4)
    engine.generate([1, 2, 3], SamplingParams(max_tokens=2))
    thread = engine._loop._thread
    del engine
    gc.collect()
    thread.join(timeout=10)
    assert not thread.is_alive()


def test_an_error_of_the_engines_own_reaches_everyone_and_closes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(ContextHashModel(), num_blocks=64, block_size=4)
    monkeypatch.setattr(engine._core.scheduler, "schedule", lambda: 1 / 0)
    handle = engine.submit(PROMPT)
    with pytest.raises(EngineError, match=r"error of its own: ZeroDivisionError"):
        handle.result(timeout=10)
    with pytest.raises(EngineClosedError, match=r"error of its own"):
        engine.submit(PROMPT)
    engine.close()


def test_what_waits_behind_a_broken_command_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(ContextHashModel(), num_blocks=64, block_size=4)
    monkeypatch.setattr(engine._core, "cancel", lambda *_: 1 / 0)
    entered, go_on = threading.Event(), threading.Event()

    def hook(index: int, output: Any) -> bool:
        entered.set()
        return not go_on.wait(20)

    handle = engine.submit(PROMPT, ENDLESS, stop_hook=hook)
    assert entered.wait(20)
    handle.cancel()
    behind: Future[Any] = Future()
    with engine._loop._wake:
        engine._loop._command(lambda: behind.set_result(engine._core.state()))
    go_on.set()
    assert behind.result(timeout=20).running == 1
    with pytest.raises(EngineError, match=r"error of its own: ZeroDivisionError"):
        handle.result(timeout=20)
    engine.close()


def test_closing_gives_the_memory_back_whoever_keeps_the_engine_or_a_handle() -> None:
    engine = Engine(ContextHashModel(), num_blocks=64, block_size=4, host_blocks=8)
    handle = engine.submit(PROMPT, SamplingParams(max_tokens=2))
    result = handle.result(timeout=20)
    store = engine._core.kv
    assert isinstance(store, PagedStore)
    copier = store._tiers.copier  # type: ignore[union-attr]
    held = [weakref.ref(tensor) for tensor in (*engine._core.runner.kv_caches, copier._host)]
    engine.close()
    gc.collect()
    assert [tensor() for tensor in held] == [None, None]
    core = weakref.ref(engine._core)
    del engine, store, copier
    gc.collect()
    assert core() is None
    assert handle.result() is result
    handle.cancel()


def test_whoever_closes_waits_for_the_end_though_it_was_asked_for_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine(ContextHashModel(), num_blocks=64, block_size=4)
    ending, go_on, closed = threading.Event(), threading.Event(), threading.Event()
    close = engine._core.kv.close

    def slow_close() -> None:
        ending.set()
        assert go_on.wait(20)
        close()

    monkeypatch.setattr(engine._core.kv, "close", slow_close)
    handle = engine.submit(PROMPT, ENDLESS, stop_hook=hook_that_calls(engine.close))
    with pytest.raises(EngineClosedError):
        handle.result(timeout=20)
    assert ending.wait(20)

    def close_again() -> None:
        engine.close()
        closed.set()

    threading.Thread(target=close_again, daemon=True).start()
    assert not closed.wait(0.05)
    go_on.set()
    assert closed.wait(20)
    assert not engine._loop._thread.is_alive()


def test_an_engine_may_be_forgotten_on_any_of_its_threads() -> None:
    """The garbage collector runs on whichever thread allocates: none may wait for itself there."""
    for where in ("engine", "memory", "files"):
        engine = Engine(ContextHashModel(), num_blocks=64, block_size=4, host_blocks=8)
        engine.generate([1, 2, 3], SamplingParams(max_tokens=2))
        store, thread, forget = engine._core.kv, engine._loop._thread, engine._finalizer
        assert isinstance(store, PagedStore)
        copier = store._tiers.copier  # type: ignore[union-attr]
        if where == "engine":
            engine._loop.call(forget)
        else:
            getattr(copier, f"_{where}").submit(forget).result(timeout=20)
        thread.join(timeout=20)
        assert not thread.is_alive()
