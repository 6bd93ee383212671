"""Replaying recorded sessions: accounts that add up, in one process or several, on every cache and policy."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentctx.compare import DEFAULT_POLICIES, Setting, compare, replay
from agentctx.errors import UsageError
from agentctx.messages import Message, Tool, ToolCall
from agentctx.traces import Session, load
from agentctx.traces.entry import Entry

TOOLS = (Tool.of("read", "Read a file", {"type": "object", "properties": {"path": {"type": "string"}}}),)


def session(turns: list[tuple[str, str, str | None]], name: str = "made") -> Session:
    """A session of (user text, reply, tool result or None) turns, as a recorder would write it."""
    entries = [Entry(Message(role="system", content="You fix bugs in small programs. " * 4))]
    for calls, (user, reply, result) in enumerate(turns, 1):
        entries.append(Entry(Message(role="user", content=user)))
        call = (
            (ToolCall(id=f"c{calls}", name="read", arguments='{"path": "a.py"}'),)
            if result is not None
            else ()
        )
        entries.append(Entry(Message(role="assistant", content=reply, tool_calls=call), call=f"m{calls}"))
        if result is not None:
            entries.append(Entry(Message(role="tool", tool_call_id=f"c{calls}", content=result)))
            entries.append(Entry(Message(role="assistant", content=f"read: {reply}"), call=f"n{calls}"))
    return Session(id=name, file="made", format="made", tools=TOOLS, entries=tuple(entries))


texts = st.text(st.sampled_from("ab \n<|>é"), max_size=60)
made = st.lists(st.tuples(texts, texts, st.none() | texts), min_size=1, max_size=7).map(session)
policies = st.sampled_from(
    [*DEFAULT_POLICIES, "keep-last:1", "clear-results:1", "window:2", "summarize-budget:150"]
)
caches = st.sampled_from(["paged:16", "paged:4", "radix", "slot", "paged:block=4,capacity=600"])


@settings(max_examples=150, deadline=None)
@given(made, policies, caches)
def test_every_turn_adds_up(recorded: Session, policy: str, cache: str) -> None:
    """prompt = cached + reprocessed, reprocessed = new + rework, rework = rounding + broken + server: alone in its cache."""
    report = replay(recorded, policy, Setting(cache))
    assert len(report.turns) == sum(recorded.generated)
    for turn in report.turns:
        assert turn.prompt == turn.reused + turn.reprocessed
        assert turn.reprocessed >= turn.new >= 0
        assert turn.rework == turn.rounding + turn.broken + turn.server
        assert min(turn.rounding, turn.broken, turn.server) >= 0


@settings(max_examples=60, deadline=None)
@given(made)
def test_append_only_never_breaks_the_prefix(recorded: Session) -> None:
    report = replay(recorded, "append-only", Setting("radix"))
    assert report.broken_turns == 0
    for turn in report.turns[1:]:
        assert turn.rework == 1  # the last reply token: sampled, never read, so never cached


def test_processes_give_what_one_process_gives(root_dir: Path) -> None:
    sessions = load(root_dir / "examples/sessions/add-pauses.jsonl")
    one = compare(sessions, DEFAULT_POLICIES, jobs=1)
    two = compare(sessions, DEFAULT_POLICIES, jobs=2)
    assert one == two
    assert [report.policy for report in one.reports] == list(DEFAULT_POLICIES)


def test_a_wrong_spec_is_refused_before_any_work() -> None:
    with pytest.raises(UsageError, match="nonsense"):
        compare([session([("a", "b", None)])], ["append-only", "nonsense"])


def test_a_session_that_fails_under_a_policy_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import agentctx.compare as module
    from agentctx.errors import HistoryError

    plain = module.replay

    def sometimes(recorded: Session, policy: str, setting: Setting) -> object:
        if policy == "window:10":
            raise HistoryError("no", item="messages[3]")
        return plain(recorded, policy, setting)

    monkeypatch.setattr(module, "replay", sometimes)
    done = compare([session([("a", "b", None)])], ["append-only", "window:10"], jobs=1)
    assert [report.policy for report in done.reports] == ["append-only"]
    assert "window:10" in str(done.failures[0])
    assert "messages[3]" in str(done.failures[0])


def test_eviction_is_the_servers_doing_and_rounding_is_not() -> None:
    recorded = session([(f"question {turn} " + "word " * 60, "yes " * 20, None) for turn in range(6)])
    unlimited = replay(recorded, "append-only", Setting("paged:block=4"))
    tight = replay(recorded, "append-only", Setting("paged:block=4,capacity=1000"))
    assert [turn.server for turn in unlimited.turns] == [0] * 6
    assert [turn.rounding for turn in unlimited.turns] == [turn.rounding for turn in tight.turns]


@pytest.mark.corpus
def test_every_corpus_file_is_compared(shared_dir: Path) -> None:
    """All 39 files of the index are read and replayed under a policy that keeps all and one that drops."""
    names = [
        line.split("\t")[0] for line in (shared_dir / "corpus/traces/INDEX.tsv").read_text().splitlines()[1:]
    ]
    assert len(names) == 39
    sessions = [found for name in names for found in load(shared_dir / "corpus/traces" / name)]
    assert {Path(found.file) for found in sessions} == {shared_dir / "corpus/traces" / name for name in names}
    small = [found for found in sessions if found.size < 200_000]
    done = compare(small, ["append-only", "keep-last:5"], jobs=1)
    assert done.failures == ()
    for report in done.reports:
        assert all(turn.prompt == turn.reused + turn.reprocessed for turn in report.turns)
        if report.policy == "append-only":
            assert report.broken_turns == 0
