"""A step that is interrupted (Ctrl-C, a timeout) anywhere leaves a history that goes on, and a file that says the same.

The interruptions come at every instruction of every kind of step, at every call of the operating system in any order and
also while an earlier one is dealt with, and as a real signal.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import random
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any, Literal, TypeAlias
from unittest import mock

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

import agentctx.history
from agentctx.errors import HistoryError
from agentctx.history import History, Splice, TornLineWarning
from agentctx.history.journal import Journal
from agentctx.messages import Message, Tool

# The steps are context managers, whose code is contextlib's.
OWN_CODE = (str(Path(agentctx.history.__file__).parent), contextlib.__file__)
GREP = Tool.of("grep")
SUMMARY = Splice(1, 4, (Message(role="user", content="summary"),))

Step: TypeAlias = Callable[[History], object]
TraceFunction: TypeAlias = Callable[[FrameType, str, Any], Any]


class Interrupted(BaseException):
    """What a signal handler raises."""


def after_a_call(history: History) -> None:
    history.user("look")
    history.request()
    history.tool_call("read", "{}", id="a")


def after_a_draft(history: History) -> None:
    after_a_call(history)
    history.tool_result("a", "alpha")
    history.note("10:05", key="time")


def after_turns(history: History) -> None:
    after_a_draft(history)
    history.request()
    history.assistant("done")
    history.seal()


# Each is one record of the file: what stands before it, and the step.
STEPS: dict[str, tuple[Step, Step]] = {
    "append": (after_turns, lambda history: history.user("more")),
    "result": (after_a_call, lambda history: history.tool_result("a", "alpha")),
    "call": (after_a_call, lambda history: history.tool_call("read", "{}", id="b")),
    "draft": (after_a_draft, lambda history: history.__delitem__(-1)),
    "seal": (after_a_draft, lambda history: history.seal()),
    "request": (after_turns, lambda history: history.request()),
    "tool in a message": (after_turns, lambda history: history.add_tool(GREP, "message")),
    "tool in an epoch": (after_turns, lambda history: history.add_tool(GREP, "epoch")),
    "compact": (after_turns, lambda history: history.compact("summarized", [SUMMARY])),
}


@contextmanager
def interrupted_at(instruction: int) -> Iterator[None]:
    """Raise ``Interrupted`` before so many more instructions have run from where a journal's write begins."""
    left = instruction
    writing = False

    def trace(frame: FrameType, event: str, _: object) -> TraceFunction | None:
        nonlocal left, writing
        code = frame.f_code
        if not code.co_filename.startswith(OWN_CODE):
            return None
        writing = writing or code is Journal.write.__code__
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if writing and event == "opcode":
            left -= 1
            if left < 0:
                raise Interrupted
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)


def go_on(history: History) -> None:
    """As an agent does that catches Ctrl-C: it looks at what is open, and takes the next turn."""
    for call in history.open_calls:
        history.tool_result(call, "late")
    history.user("go on")
    history.request()


@pytest.mark.parametrize("step", STEPS)
def test_an_interruption_at_any_instruction(step: str, tmp_path: Path) -> None:
    prepare, take = STEPS[step]
    path = tmp_path / "history.jsonl"
    with History.open(path, "system") as history:
        prepare(history)
        before = history.checkpoint()
    kept = path.read_bytes()
    plain = History.resume(before)
    take(plain)
    after = plain.checkpoint()
    seen = set()
    finished = False
    for instruction in itertools.count():
        path.write_bytes(kept)
        history = History.open(path)
        with suppress(Interrupted), interrupted_at(instruction):
            take(history)
            finished = True
        state = history.checkpoint()
        assert state in (before, after), "half a step was taken"
        seen.add(state)
        go_on(history)
        left = history.checkpoint()
        history.close()
        with History.open(path) as again:
            assert again.checkpoint() == left
        if finished:
            break
    assert instruction > 100
    assert seen == {before, after}, "an interruption before the write, and one behind it"
    assert state == after


Fault = Literal["none", "before", "halfway", "after", "disk error"]
faults = st.lists(st.sampled_from(["none", "none", "before", "halfway", "after", "disk error"]), max_size=12)


class Disk:
    """A file whose calls of the operating system are cut short, or fail, as ``faults`` say: one for each call."""

    def __init__(self, file: IO[bytes], faults: list[Fault]) -> None:
        self.file, self.faults, self.fsync = file, iter(faults), os.fsync
        self.on = self.written = False

    def call(self, whole: Callable[[], Any], half: Callable[[], object] = lambda: None) -> Any:
        fault = next(self.faults, "none") if self.on else "none"
        if fault == "disk error":
            half()
            raise OSError(errno.EIO, "Input/output error")
        if fault in ("before", "halfway"):
            half() if fault == "halfway" else None
            raise Interrupted
        result = whole()
        if fault == "after":
            raise Interrupted
        return result

    def write(self, data: memoryview) -> int:
        self.written = True
        written: int = self.call(
            lambda: self.file.write(data), lambda: self.file.write(data[: len(data) // 2])
        )
        return written

    def truncate(self, size: int) -> None:
        self.call(lambda: self.file.truncate(size))

    def read(self) -> bytes:
        data: bytes = self.call(lambda: self.file.read())
        return data

    def sync(self, descriptor: int) -> None:
        self.call(lambda: self.fsync(descriptor))

    def close(self) -> None:
        self.call(self.file.close)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def next_call(history: History) -> None:
    if not history.open_calls:
        history.tool_call("read")


def next_result(history: History) -> None:
    for call in history.open_calls[:1]:
        history.tool_result(call, "result")


ANY_STEPS: dict[str, Step] = {
    "user": lambda history: history.user("text"),
    "call": next_call,
    "result": next_result,
    "note": lambda history: history.note("10:05"),
    "seal": lambda history: None if history.open_calls else history.seal(),
    "look": lambda history: history.messages,
}


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(st.sampled_from(sorted(ANY_STEPS)), min_size=1, max_size=10), faults=faults)
def test_interruptions_and_disk_errors_in_any_order(steps: list[str], faults: list[Fault]) -> None:
    """One step after the other, whatever becomes of each: memory is always a history that the steps lead to."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "history.jsonl"
        history = History.open(path, "system", fsync=True)
        journal = history._steps._journal
        assert journal is not None
        disk = Disk(journal._file, faults)
        journal._file = disk  # type: ignore[assignment]
        state = history.checkpoint()
        uncut = state  # what the file may hold as long as it could not be cut
        with mock.patch.object(os, "fsync", disk.sync):
            for step in steps:
                plain = History.resume(state)
                ANY_STEPS[step](plain)
                after = plain.checkpoint()
                disk.on, disk.written = True, False
                try:
                    ANY_STEPS[step](history)
                except (Interrupted, HistoryError) as error:
                    disk.on = False
                    failed = isinstance(error, HistoryError)
                    assert history.checkpoint() in ((state,) if failed else (state, after))
                    if disk.written:
                        uncut = after
                else:
                    disk.on = False
                    assert history.checkpoint() == after
                state = history.checkpoint()
            disk.on = True
            with suppress(Interrupted, OSError):
                history.close()
        disk.file.close()
        whole = path.stat().st_size == journal._kept.end
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TornLineWarning)
            with History.open(path) as again:
                assert again.checkpoint() in ((state,) if whole else (state, uncut))
                go_on(again)


def interrupt(*_: object) -> None:
    raise Interrupted


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals to a thread")
@pytest.mark.parametrize("fsync", [True, False])
def test_a_real_signal(fsync: bool, tmp_path: Path) -> None:
    rng = random.Random(1)
    main = threading.get_ident()
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        for attempt in range(20):
            path = tmp_path / f"{attempt}.jsonl"
            acknowledged = 1
            with History.open(path, "system", fsync=fsync) as history:
                timer = threading.Timer(rng.uniform(0.002, 0.02), signal.pthread_kill, (main, signal.SIGUSR1))
                with suppress(Interrupted):
                    timer.start()
                    while True:
                        history.tool_result(history.tool_call("read"), "result")
                        acknowledged += 2
                assert acknowledged <= len(history) <= acknowledged + 2
                go_on(history)
                left = history.checkpoint()
            with History.open(path) as again:
                assert again.checkpoint() == left
            timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
