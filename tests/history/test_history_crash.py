"""A process that is killed while it appends loses nothing that it acknowledged."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import warnings
from pathlib import Path

import pytest

from agentctx.history import History, TornLineWarning

KILLS = 200

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def append_for_ever(path: Path, acknowledge: int) -> None:
    """The child: append messages of all sizes and write each one's number to the pipe once it is kept."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TornLineWarning)
        history = History.open(path)
    while True:
        number = len(history)
        history.user(f"{number}:" + "x" * (number * 997 % 30_000))
        os.write(acknowledge, number.to_bytes(4, "big"))
        if number % 7 == 0:
            history.request()


def run_until_killed(path: Path, delay: float) -> int:
    """Fork a child that appends, kill it after ``delay`` seconds, and return the last acknowledged number."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            append_for_ever(path, writer)
        finally:
            os._exit(1)
    os.close(writer)
    last = int.from_bytes(os.read(reader, 4), "big")  # the child is running
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    while data := os.read(reader, 4):
        last = int.from_bytes(data, "big")
    os.close(reader)
    return last


def test_acknowledged_appends_survive_sigkill(tmp_path: Path) -> None:
    rng = random.Random(7)
    path = tmp_path / "history.jsonl"
    History.open(path, "system").close()
    kept = torn = 0
    before: list[str] = ["system"]
    for kill in range(KILLS):
        if kill % 8 == 0:  # a fresh file now and then, so that reopening stays cheap
            path.unlink()
            History.open(path, "system").close()
            before = ["system"]
        last = run_until_killed(path, rng.random() * 0.004)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            history = History.open(path)
        torn += len(caught)
        texts = [message.text for message in history]
        history.close()
        assert last < len(texts) <= last + 2, "an append was lost, or more than the one in flight appeared"
        assert texts[: len(before)] == before, "an older message was damaged"
        for number, text in enumerate(texts[1:], 1):
            assert text == f"{number}:" + "x" * (number * 997 % 30_000)
        kept += len(texts) - len(before)
        before = texts
    assert kept >= KILLS
    print(f"{KILLS} kills, {kept} appends kept, {torn} torn lines cut", file=sys.stderr)
