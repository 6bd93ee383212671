"""GenerationHandle: a submitted request, seen from the caller's side, whatever thread or event loop that is."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator

from agentctx_engine.runtime.results import GenerationResult, TokenEvent


class GenerationHandle:
    """Read its tokens as they come (``stream``, ``async for``) or wait for all of them (``result``, ``await``).

    Each reader sees every token from the first. Leaving a stream before its end cancels the request.
    """

    def __init__(
        self, request_id: int, cancel: Callable[[], None], before_waiting: Callable[[], None] = lambda: None
    ) -> None:
        """``before_waiting`` raises on a thread that must not wait for the request."""
        self.request_id = request_id
        self._cancel: Callable[[], None] | None = cancel
        self._before_waiting: Callable[[], None] | None = before_waiting
        self._changed = threading.Condition()
        self._events: list[TokenEvent] = []
        self._result: GenerationResult | None = None
        self._error: Exception | None = None
        self._done = False
        self._wakers: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        state = "running" if not self._done else "failed" if self._error is not None else "done"
        return f"<GenerationHandle {self.request_id} {state}, {len(self._events)} tokens>"

    # -- the caller's side ----------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        return self._done

    def cancel(self) -> None:
        """Ask for the request's end; harmless when it has ended. Tokens that are in flight may still arrive."""
        cancel = self._cancel
        if cancel is not None:
            cancel()

    def result(self, timeout: float | None = None) -> GenerationResult:
        """Wait for the end. Raises the request's error, ``RequestCancelledError``, or ``TimeoutError`` (it goes on).

        ``RequestError`` in a stop hook, whose thread can't wait for itself; so does ``stream``.
        """
        self._may_wait()
        with self._changed:
            if not self._changed.wait_for(lambda: self._done, timeout):
                raise TimeoutError(f"request {self.request_id} is still running after {timeout} s")
        return self._outcome()

    def partial_result(self) -> GenerationResult | None:
        """What a request had reached when it ended, also if it was cancelled or failed; ``None`` while it runs."""
        return self._result

    def stream(self, timeout: float | None = None) -> Iterator[TokenEvent]:
        """Tokens as they come; ``timeout`` seconds at most between two of them. Ends like ``result``."""
        position = 0
        try:
            while True:
                events, done = self._next_events(position, timeout)
                yield from events
                position += len(events)
                if done:
                    break
        finally:
            self.cancel()
        self._outcome()

    def _may_wait(self) -> None:
        before = self._before_waiting
        if before is not None:
            before()

    def _next_events(self, position: int, timeout: float | None) -> tuple[list[TokenEvent], bool]:
        """Wait for events behind ``position``; with them, whether they are the last."""
        self._may_wait()
        with self._changed:
            if not self._changed.wait_for(lambda: self._done or len(self._events) > position, timeout):
                raise TimeoutError(f"request {self.request_id} gave no token for {timeout} s")
            return self._events[position:], self._done

    async def _stream(self) -> AsyncIterator[TokenEvent]:
        position = 0
        wake = self._waker()
        try:
            while True:
                wake.clear()
                with self._changed:
                    events, done = self._events[position:], self._done
                for event in events:
                    yield event
                position += len(events)
                if done:
                    break
                if not events:
                    await wake.wait()
        finally:
            self.cancel()
        self._outcome()

    def __aiter__(self) -> AsyncIterator[TokenEvent]:
        return self._stream()

    async def aresult(self) -> GenerationResult:
        """Like ``result``, for an event loop. If the waiting task is cancelled, so is the request."""
        wake = self._waker()
        try:
            while not self._done:
                await wake.wait()
                wake.clear()
        finally:
            self.cancel()
        return self._outcome()

    def _waker(self) -> asyncio.Event:
        """An event of the running loop that is set whenever something has changed."""
        self._may_wait()
        loop, event = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop was closed: nobody reads any more
                loop.call_soon_threadsafe(event.set)

        with self._changed:
            self._wakers.append(wake)
        return event

    def _outcome(self) -> GenerationResult:
        if self._error is not None:
            raise self._error
        assert self._result is not None
        return self._result

    # -- the engine's side ----------------------------------------------------------------------------------

    def push(self, event: TokenEvent) -> None:
        with self._changed:
            self._events.append(event)
            self._wake()

    def finish(self, result: GenerationResult | None, error: Exception | None) -> None:
        with self._changed:
            self._result, self._error, self._done = result, error, True
            self._cancel = self._before_waiting = (
                None  # they hold the engine, which a kept handle need not do
            )
            self._wake()
            self._wakers.clear()

    def _wake(self) -> None:
        self._changed.notify_all()
        for wake in self._wakers:
            wake()
