"""Our own log format, and recorded sessions read as logs."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from agentctx.traces import LogWriter, TraceWriter, load

from .log_helpers import (
    leaves,
    records,
    whole,
    written,
)


@pytest.mark.corpus
def test_writing_any_log_loses_no_field(shared_dir: Path, tmp_path: Path) -> None:
    logs = sorted((shared_dir / "cases" / "requests").glob("*/requests.jsonl"))
    logs += sorted((shared_dir / "cases" / "scenarios").glob("*/*.jsonl"))
    logs += [
        path
        for path in sorted((shared_dir / "corpus" / "requests").glob("*.jsonl"))
        if "mooncake" not in path.name
    ]
    logs += sorted((shared_dir / "corpus" / "traces").glob("lmcache*/*"))
    assert len(logs) == 40 + 45 + 4 + 8
    for log in logs:
        original = records(log)
        copy = tmp_path / "copy.jsonl"
        copy.unlink(missing_ok=True)
        with LogWriter(copy) as writer:
            for record in original:
                writer.write(record)
        again = records(copy)
        fields = (
            "index",
            "api",
            "request",
            "response",
            "at",
            "endpoint_hint",
            "session_hint",
            "container",
            "extra",
        )
        for one, other in zip(original, again, strict=True):
            assert all(getattr(one, name) == getattr(other, name) for name in fields), log
            # Key order is part of a prompt, and equality of dicts doesn't look at it.
            assert json.dumps(one.request) == json.dumps(other.request)
            assert leaves(json.loads(one.raw)) <= leaves(whole(other)), f"{log}:{one.line}"


def test_a_recorded_session_is_a_log_of_its_calls(root_dir: Path) -> None:
    path = root_dir / "examples" / "sessions" / "add-pauses.jsonl"
    (session,) = load(path)
    found = records(path)
    assert len(found) == sum(session.generated)
    for earlier, later in pairwise(found):
        before, after = earlier.request["messages"], later.request["messages"]
        assert earlier.response is not None
        reply = earlier.response["choices"][0]["message"]
        assert after[: len(before)] == before
        assert after[len(before)] == reply
        assert earlier.request["tools"] == later.request["tools"]
    assert all(path.read_text().splitlines()[record.line - 1].startswith('{"message":{') for record in found)
    assert {record.container for record in found} == {"session"}


def test_a_session_of_logged_requests_too(tmp_path: Path) -> None:
    log = written(tmp_path / "log", {"timestamp": 5, "input": "hi", "output": "ho", "session_id": "s"})
    with TraceWriter(tmp_path / "trace") as writer:
        for session in load(log):
            writer.write(session)
    (record,) = records(tmp_path / "trace")
    assert record.request["messages"] == [{"role": "user", "content": "hi"}]
    assert record.response == {"choices": [{"index": 0, "message": {"role": "assistant", "content": "ho"}}]}
    assert (record.at, record.session_hint) == (5.0, "s")
