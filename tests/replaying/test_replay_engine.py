"""Replays on the bundled engine: what its cache model says of a recorded session is what the engine does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agentctx.compare import Setting, compare, replay
from agentctx.errors import UsageError
from agentctx.messages import Request
from agentctx.policies import parse_policy
from agentctx.rendering import Prompt
from agentctx.replaying import Replay, connect
from agentctx.reports.mismatch import UNEXPLAINED
from agentctx.traces import Session, load

SESSION = "examples/sessions/find-eviction-bug.jsonl"


@pytest.fixture(scope="module")
def session(root_dir: Path) -> Session:
    """The first eight turns of a recorded session."""
    (whole,) = load(root_dir / SESSION)
    ends = [index for index, entry in enumerate(whole.entries) if entry.message.role == "assistant"]
    return Session(whole.id, whole.file, whole.format, whole.tools, whole.entries[: ends[7] + 1])


@pytest.mark.parametrize("cache", ["paged:16", "radix:page=4", "paged:block=16,capacity=900"])
@pytest.mark.parametrize("policy", ["append-only", "keep-last:2", "summarize-budget:6000"])
def test_observed_is_predicted_and_both_are_what_the_model_alone_says(
    session: Session, policy: str, cache: str
) -> None:
    alone = replay(session, policy, Setting(cache))
    seen = replay(session, policy, Setting(cache, observe="engine"))
    assert seen.observed
    assert not alone.observed
    assert seen.mismatches == ()
    assert seen.unreported == 0
    assert len(seen.turns) == 8
    if "capacity" not in cache:  # reading a reply is a request of its own, and so moves what is evicted first
        assert [turn.reused for turn in seen.turns] == [turn.reused for turn in alone.turns]
        assert [turn.rework for turn in seen.turns] == [turn.rework for turn in alone.turns]
        assert [turn.asked_reused for turn in seen.turns] == [turn.asked_reused for turn in alone.turns]
    for turn in seen.turns:
        assert turn.prompt == turn.reused + turn.reprocessed
        assert turn.rework == turn.rounding + turn.broken + turn.server


def test_a_wrong_model_of_the_engine_is_seen_and_the_engine_names_the_reason(session: Session) -> None:
    """An engine that is believed to have blocks of 64; and one on which somebody else took the memory."""
    with connect("engine", cache="paged:16") as live, connect("engine", cache="paged:64") as other:
        run = Replay(session, parse_policy("append-only"), live.renderer, other.cache, live=live)
        assert any(turn.mismatch == UNEXPLAINED for turn in run.turns())
        assert run.report.mismatches
    with connect("engine", cache="paged:block=16,capacity=900") as small:
        run = Replay(session, parse_policy("append-only"), small.renderer, small.cache, live=small)
        turns = run.turns()
        assert [next(turns).mismatch for _ in range(3)] == [None] * 3
        theirs = Prompt(np.arange(14_000, dtype=np.int32), "", (), Request())
        small.backend.complete(theirs, small.options)
        after = next(turns)
        assert after.mismatch == "evicted"
        assert after.cached is not None
        assert after.cached == after.predicted - after.server < after.predicted


def test_a_replay_stops_where_the_context_is_full(session: Session) -> None:
    with connect("engine", cache="paged:block=16,capacity=600") as live:
        run = Replay(session, parse_policy("append-only"), live.renderer, live.cache, live=live)
        turns = list(run.turns())
        assert 0 < len(turns) < 8
        assert all(turn.matches_prediction for turn in turns)
        assert f"stopped before turn {len(turns) + 1}" in run.report.notes[0]


def test_observed_comparisons_give_the_same_in_one_process_and_in_two(session: Session) -> None:
    setting = Setting(observe="engine")
    one = compare([session], ["append-only", "window:2"], setting, jobs=1)
    two = compare([session], ["append-only", "window:2"], setting, jobs=2)
    assert one == two
    assert all(report.observed for report in one.reports)


@pytest.mark.parametrize(
    ("target", "cache", "says"),
    [
        ("engine", "slot", "paged and radix"),
        ("engine", "paged:x", "block=N"),
        ("ftp://there", None, "neither"),
        ("motor", None, "neither"),
        ("http://127.0.0.1:9", "pagd", "unknown cache"),
    ],
)
def test_a_target_or_cache_that_cannot_be_used_is_named(target: str, cache: str | None, says: str) -> None:
    with pytest.raises(UsageError, match=says), connect(target, cache=cache):
        pass
