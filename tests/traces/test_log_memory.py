"""A log may be larger than memory: what is held while it is read does not grow with it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# VmHWM is the peak of this program alone; ru_maxrss would start from the test runner that spawned it.
_PROBE = """
import sys
from agentctx.traces import read_records
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
count = 0
before = peak()
for record in read_records(sys.argv[1]):
    count += 1
    assert len(record.request["messages"]) == 30
print(count, peak() - before)
"""

MESSAGES = [{"role": ("user", "assistant")[index % 2], "content": "word " * 400} for index in range(30)]
BODY = {"model": "m", "messages": MESSAGES}


def write_log(path: Path, layout: str, count: int) -> None:
    """A log of ``count`` requests of 60 KB."""
    entry = {"request": {"url": "https://a/v1/chat/completions", "postData": {"text": json.dumps(BODY)}}}
    before, one, between, after = {
        "lines": ("", json.dumps(BODY), "\n", "\n"),
        "array": ("[", json.dumps(BODY), ",", "]"),
        "values": ("", json.dumps(BODY, indent=2), "\n", ""),
        "har": ('{"log": {"version": "1.2", "entries": [', json.dumps(entry, indent=2), ",\n", "]}}"),
    }[layout]
    with path.open("w") as file:
        file.write(before)
        for index in range(count):
            file.write((between if index else "") + one)
        file.write(after)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
@pytest.mark.parametrize("layout", ["lines", "array", "values", "har"])
def test_memory_does_not_grow_with_the_log(tmp_path: Path, layout: str) -> None:
    grown = {}
    for count in (10, 400):
        path = tmp_path / f"{count}"
        write_log(path, layout, count)
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, str(path)], capture_output=True, text=True, check=True
        )
        found, kib = map(int, done.stdout.split())
        assert found == count
        grown[count] = kib
        path.unlink()
    # 24 MB against 0.6 MB; the windows of the reader and of the allocator come once.
    assert grown[400] < grown[10] + 8 * 1024, grown
