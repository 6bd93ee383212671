"""EngineLoop: the thread that owns the core. Everything that touches it comes in as a command, in order."""

from __future__ import annotations

import atexit
import contextlib
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from agentctx_engine.runtime.core import EngineCore, StepReport
from agentctx_engine.runtime.errors import (
    EngineClosedError,
    EngineError,
    RequestCancelledError,
    RequestError,
    RequestFailedError,
)
from agentctx_engine.runtime.handle import GenerationHandle
from agentctx_engine.runtime.request import FinishReason, Request
from agentctx_engine.runtime.results import build_result

T = TypeVar("T")

_open_loops: weakref.WeakSet[EngineLoop] = weakref.WeakSet()


class EngineLoop:
    """Thread-safe. Between two steps it runs all commands that have come in; without work it sleeps."""

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._wake = threading.Condition()
        self._commands: list[Callable[[], None]] = []
        self._news: Future[None] = Future()  # done when commands have come in, or the engine is to close
        self._handles: dict[int, tuple[Request, GenerationHandle]] = {}
        self._next_id = 0
        self._closed: EngineError | None = None
        self._thread = threading.Thread(target=self._run, name="agentctx-engine", daemon=True)
        self._thread.start()
        _open_loops.add(self)

    def submit(self, make_request: Callable[[int], Request]) -> GenerationHandle:
        """Queue the request that ``make_request`` builds for its id. Ids rise in the order of arrival."""
        with self._wake:
            self._require_open()
            request = make_request(self._next_id)
            self._next_id += 1
            handle = GenerationHandle(
                request.id, lambda: self._post(lambda: self._cancel(request)), self._require_other_thread
            )
            self._command(lambda: self._add(request, handle))
        return handle

    def call(self, function: Callable[[], T]) -> T:
        """Run ``function`` on the engine's thread, between two steps, and wait for its value."""
        future: Future[T] = Future()

        def command() -> None:
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

        if threading.current_thread() is self._thread:  # from a stop hook: we are between two steps already
            return function()
        with self._wake:
            self._require_open()
            self._command(command)
        return future.result()

    def close(self) -> None:
        """End the requests that run with ``EngineClosedError`` and stop the thread, after the step it is in."""
        self.ask_to_close()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def ask_to_close(self) -> None:
        """``close`` without waiting: for whoever forgets an engine, which the garbage collector may do on any thread."""
        with self._wake:
            if self._closed is None:
                self._closed = EngineClosedError("the engine was closed")
            self._tell()

    def _require_other_thread(self) -> None:
        if threading.current_thread() is self._thread:
            raise RequestError(
                "a stop hook runs on the engine's thread, between two steps: it can't wait for a request's tokens, which "
                "that thread would compute; wait for them elsewhere"
            )

    def _require_open(self) -> None:
        if self._closed is not None:
            raise EngineClosedError(str(self._closed)) from self._closed

    def _post(self, command: Callable[[], None]) -> None:
        with self._wake:
            if self._closed is None:
                self._command(command)

    def _command(self, command: Callable[[], None]) -> None:
        self._commands.append(command)
        self._tell()

    def _tell(self) -> None:
        """Wake the engine's thread, whether it sleeps or waits for blocks. With ``_wake`` held."""
        if not self._news.done():
            self._news.set_result(None)
        self._wake.notify()

    # -- on the engine's thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                if self._core.has_work:
                    self._deliver(self._core.step(self._news))
        except Exception as cause:
            with self._wake:
                self._closed = EngineError(f"the engine stopped on an error of its own: {cause!r}")
                self._closed.__cause__ = cause
        finally:
            self._end_all()

    def _wait_for_work(self) -> bool:
        """Run what has come in; ``False`` when the engine is to close."""
        with self._wake:
            self._wake.wait_for(lambda: self._commands or self._core.has_work or self._closed)
            commands, self._commands = self._commands, []
            if self._news.done():
                self._news = Future()
        while commands:
            try:
                commands.pop(0)()
            except BaseException:
                with self._wake:  # the engine ends, and answers those who wait for the others
                    self._commands[:0] = commands
                raise
        return self._closed is None

    def _add(self, request: Request, handle: GenerationHandle) -> None:
        try:
            self._core.add(request)
        except Exception as cause:
            error = RequestFailedError(
                f"request {request.id}: can't be queued ({type(cause).__name__}: {cause})"
            )
            error.__cause__ = cause
            handle.finish(None, error)
            return
        self._handles[request.id] = (request, handle)

    def _cancel(self, request: Request) -> None:
        if request.id in self._handles:
            self._core.cancel(request)
            self._finish(request)

    def _deliver(self, report: StepReport) -> None:
        for event in report.events:
            self._handles[event.request_id][1].push(event)
        for request in report.finished:
            self._finish(request)

    def _finish(self, request: Request) -> None:
        _, handle = self._handles[request.id]
        error, result = request.error, None
        if error is None and any(s.finish_reason is FinishReason.CANCELLED for s in request.samples):
            error = RequestCancelledError(f"request {request.id} was cancelled")
        try:
            result = build_result(request, self._core.clock())
        except Exception as cause:  # no memory for the logits that it keeps, say
            if error is None:
                error = RequestFailedError(
                    f"request {request.id}: its result can't be made ({type(cause).__name__}: {cause})"
                )
                error.__cause__ = cause
        handle.finish(result, error)
        del self._handles[request.id]

    def _end_all(self) -> None:
        with self._wake:
            reason = self._closed or RequestFailedError("the engine's thread ended")
            self._closed = reason
            commands, self._commands = self._commands, []
        for command in commands:  # so that nobody waits for an answer for ever
            with contextlib.suppress(Exception):  # what a command does, it tells whoever asked for it
                command()
        for request, handle in list(self._handles.values()):
            try:
                self._core.cancel(request, reason)
                result = build_result(request, self._core.clock())
            except Exception:  # the core's own state may be what broke
                result = None
            handle.finish(result, reason)
        self._handles.clear()
        self._core.close()


@atexit.register
def _close_all() -> None:
    """No step may run while the interpreter ends."""
    for loop in list(_open_loops):
        loop.close()
