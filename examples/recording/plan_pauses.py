"""Plan: add a small function to ``agentctx.traces``, test first, with one honest mistake on the way."""

from __future__ import annotations

from recording.loop import Plan, User, edit, expect, listing, pytest_run, read, say, search, write

TEST = '''\
"""Pauses: where a session stood still for so long that a provider's cache forgot its prefix."""

from __future__ import annotations

import pytest

from agentctx.messages import Message
from agentctx.traces import Entry, Session
from agentctx.traces.pauses import Pause, pauses


def session(*at: float | None) -> Session:
    """A session of a user and an assistant taking turns, at the times given."""
    entries = [
        Entry(Message(role="assistant" if index % 2 else "user", content=str(index)), call=f"{index}" if index % 2 else None, at=time)
        for index, time in enumerate(at)
    ]
    return Session("s", "s.jsonl", "agentctx", entries=tuple(entries))


def test_a_long_pause_is_found() -> None:
    assert pauses(session(0, 10, 400, 410), longer_than=300) == [Pause(index=2, seconds=390)]


def test_short_pauses_are_not() -> None:
    assert pauses(session(0, 10, 20, 30), longer_than=300) == []


def test_a_message_without_a_time_is_stepped_over() -> None:
    assert pauses(session(0, None, None, 500), longer_than=300) == [Pause(index=3, seconds=500)]


def test_a_session_without_times_has_no_pauses() -> None:
    assert pauses(session(None, None), longer_than=300) == []


def test_clocks_that_go_backwards_are_no_pause() -> None:
    assert pauses(session(1000, 10, 20), longer_than=300) == []


@pytest.mark.parametrize("limit", [-1, float("nan")])
def test_the_limit_must_be_a_duration(limit: float) -> None:
    with pytest.raises(ValueError, match="longer_than"):
        pauses(session(0, 1), longer_than=limit)
'''

MODULE = '''\
"""Pauses of a recorded session: a provider's cache forgets a prefix that nobody asks for."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from agentctx.traces.shape import Session


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing happened for ``seconds`` before message ``index`` of ``Session.messages``."""

    index: int
    seconds: float


def pauses(session: Session, *, longer_than: float) -> list[Pause]:
    """The pauses of more than ``longer_than`` seconds, in order.

    Raises ``ValueError`` when ``longer_than`` is no duration.
    """
    if not longer_than >= 0:
        raise ValueError(f"longer_than must be 0 or more seconds, not {longer_than}")
    times = session.conversation.at
    found = []
    for index, (before, after) in enumerate(pairwise(times), 1):
        if after - before > longer_than:
            found.append(Pause(index, after - before))
    return found
'''

LOOP_BEFORE = """\
    times = session.conversation.at
    found = []
    for index, (before, after) in enumerate(pairwise(times), 1):
        if after - before > longer_than:
            found.append(Pause(index, after - before))
    return found
"""

LOOP_AFTER = """\
    found = []
    before: float | None = None
    for index, at in enumerate(session.conversation.at):
        if at is None:
            continue
        if before is not None and at - before > longer_than:
            found.append(Pause(index, at - before))
        before = at
    return found
"""

CALL_BEFORE = '''\
    """Nothing happened for ``seconds`` before message ``index`` of ``Session.messages``."""

    index: int
    seconds: float
'''

CALL_AFTER = '''\
    """Nothing happened for ``seconds`` before message ``index`` of ``Session.messages``.

    ``call`` is the first model call, counted from 0, whose prompt was sent after the pause: the one that pays.
    ``None`` when the session ends before another call.
    """

    index: int
    seconds: float
    call: int | None
'''

RETURN_BEFORE = """\
        if before is not None and at - before > longer_than:
            found.append(Pause(index, at - before))
"""

RETURN_AFTER = """\
        if before is not None and at - before > longer_than:
            found.append(Pause(index, at - before, _next_call(session.generated, index)))
"""

HELPER = '''\


def _next_call(generated: tuple[bool, ...], index: int) -> int | None:
    """The number of the first model call at or behind message ``index``."""
    return sum(generated[:index]) if any(generated[index:]) else None
'''


def plan() -> Plan:
    """The session."""
    yield User(
        "Provider caches forget a prefix after about five minutes. For a recorded session I want to know where it "
        "stood still for longer than that, because the next model call pays for its whole prompt again. Please add "
        "this to agentctx.traces, with tests. Keep in mind that not every recorder writes times."
    )
    yield say(
        "I'll start with what the traces package holds, to see where times are kept.",
        listing("agentctx/traces"),
    )
    yield say(
        "Sessions and entries first: they are what the function will take in.",
        read("agentctx/traces/shape.py"),
        read("agentctx/traces/entry.py"),
    )
    yield say(
        "`Session.messages` comes from the conversation, and it has a time per message. I need to know how those "
        "times survive when pieces of one reply are joined.",
        read("agentctx/traces/conversation.py"),
    )
    found = yield say(
        "When pieces are joined the later time wins. Now every place where an entry gets its time.",
        search(r"\bat=|seconds\(", "agentctx/traces"),
    )
    expect("seconds(" in found[0], "the readers set times with seconds()")
    yield say(
        "All readers go through `seconds`. I want to see what it gives for a missing or a strange time.",
        read("agentctx/interchange/times.py"),
    )
    yield say(
        "It gives `None` for anything that is no time, so `None` is the one case to handle. Claude Code writes one "
        "line per block of a reply; I'll check which of the lines gives the time.",
        read("agentctx/traces/formats/claude_code.py"),
    )
    yield say(
        "The first block's time stays. Codex writes a reply in several items, so I'll check the same there.",
        read("agentctx/traces/formats/codex.py"),
    )
    yield say(
        "Every item has its own time, and the conversation keeps the last one of a reply. Both are times at which the "
        "session was alive, so differences between neighbours are pauses. Next, how the tests of this package look.",
        listing("tests/traces"),
        search(r"^def test_|^from|^import", "tests/traces/test_trace_recording.py"),
    )
    yield say(
        "And one test module in full, for the style.",
        read("tests/traces/test_trace_counts.py"),
    )
    yield say(
        "The format of our own traces keeps `at` too. I'll read it to be sure that a session read back has the same "
        "times.",
        read("agentctx/traces/recording.py"),
    )
    baseline = yield say(
        "It does: `at` is written when it is known and left out otherwise. Before I change anything I'll run the tests "
        "of the recording as they are.",
        pytest_run("tests/traces/test_trace_recording.py", "torn or killed or misuse"),
    )
    expect(
        "passed" in baseline[0] and "failed" not in baseline[0], "the recording tests pass before the change"
    )
    yield say(
        "They pass. I'll write the tests first. The cases: a long pause, only short ones, messages without a time in "
        "between, no times at all, a clock that was set back, and a limit that is no duration.",
        write("tests/traces/test_trace_pauses.py", TEST),
    )
    failed = yield say(
        "They have to fail now, because the module isn't there.",
        pytest_run("tests/traces/test_trace_pauses.py"),
    )
    expect(
        "No module named 'agentctx.traces.pauses'" in failed[0], "the new test can't import its module yet"
    )
    yield say(
        "As expected: there is no such module. Now the module itself: compare the times of neighbours.",
        write("agentctx/traces/pauses.py", MODULE),
    )
    failed = yield say("Run the new tests.", pytest_run("tests/traces/test_trace_pauses.py"))
    expect("2 failed" in failed[0] and "NoneType" in failed[0], "the first version fails on missing times")
    yield say(
        "Two tests fail, and both for the same reason: I subtract neighbours without looking whether they have a time. "
        "Comparing neighbours is wrong anyway: a message without a time would hide the pause around it. The loop has to "
        "remember the last known time instead.",
        edit("agentctx/traces/pauses.py", LOOP_BEFORE, LOOP_AFTER),
        edit("agentctx/traces/pauses.py", "from itertools import pairwise\n", ""),
    )
    passed = yield say("Again.", pytest_run("tests/traces/test_trace_pauses.py"))
    expect("7 passed" in passed[0], "the second version passes")
    yield say(
        "All seven pass. The package exports its names in one place; I'll look at it before I add to it.",
        read("agentctx/traces/__init__.py"),
    )
    yield say(
        "I'll export both names.",
        edit(
            "agentctx/traces/__init__.py",
            "from agentctx.traces.reading import",
            "from agentctx.traces.pauses import Pause, pauses\nfrom agentctx.traces.reading import",
        ),
        edit("agentctx/traces/__init__.py", '    "LoggedRequest",\n', '    "LoggedRequest",\n    "Pause",\n'),
        edit("agentctx/traces/__init__.py", '    "load",\n', '    "load",\n    "pauses",\n'),
    )
    passed = yield say(
        "The export could clash with the name of the module, so the tests once more, with those of the recording.",
        pytest_run("tests/traces/test_trace_pauses.py"),
        pytest_run("tests/traces/test_trace_recording.py", "torn or killed or misuse or records"),
    )
    expect(all("passed" in result and "failed" not in result for result in passed), "nothing broke")
    yield say(
        "Done.\n\n"
        "- `agentctx/traces/pauses.py`: `pauses(session, longer_than=300)` gives a list of `Pause(index, seconds)`. It "
        "measures from the last message that has a time, so messages without one don't hide a pause. A clock that was "
        "set back is no pause.\n"
        "- `agentctx/traces/__init__.py`: exports both names. Note that the function now hides the module of the same "
        "name as an attribute of the package; importing from the module still works, as the tests do it.\n"
        "- `tests/traces/test_trace_pauses.py`: seven tests.\n\n"
        "I ran the new tests and those of the recording, not the whole suite. I did not check it on recordings of real "
        "sessions."
    )
    yield User(
        "Good. One thing is missing: I need the number of the model call that pays after the pause, not only the index of "
        "a message. And rename nothing in the package's exports, but I don't like that the function hides the module."
    )
    yield say(
        "Two changes, then. For the first I need to know which messages were generated by a model call: the session has "
        "`generated`. I'll check who uses it and how demonstrations are treated.",
        search("generated", "agentctx/traces"),
        read("agentctx/traces/formats/chat_list.py"),
    )
    yield say(
        "`generated` is False for demonstrations, so counting the True ones before the pause numbers the calls from 0. A "
        "pause directly before a reply belongs to that reply's call: its prompt went out after the message before it, but "
        "the wait was the model's own. I'll still name that call, since it is the first one behind the pause.",
        edit("agentctx/traces/pauses.py", CALL_BEFORE, CALL_AFTER),
        edit("agentctx/traces/pauses.py", RETURN_BEFORE, RETURN_AFTER),
    )
    yield say(
        "The helper goes to the end of the module.",
        edit(
            "agentctx/traces/pauses.py",
            "        before = at\n    return found\n",
            "        before = at\n    return found\n" + HELPER,
        ),
    )
    failed = yield say(
        "The tests name the fields, so two of them must fail now.",
        pytest_run("tests/traces/test_trace_pauses.py"),
    )
    expect("2 failed" in failed[0] and "call" in failed[0], "the tests miss the new field")
    yield say(
        "They do, because the new field is missing in what they expect. In the first the call after the pause is the second "
        "one, number 1; in the other, the reply at index 3 is the second call too. I'll also add a session that ends before "
        "another call.",
        edit(
            "tests/traces/test_trace_pauses.py",
            "[Pause(index=2, seconds=390)]",
            "[Pause(index=2, seconds=390, call=1)]",
        ),
        edit(
            "tests/traces/test_trace_pauses.py",
            "[Pause(index=3, seconds=500)]",
            "[Pause(index=3, seconds=500, call=1)]",
        ),
        edit(
            "tests/traces/test_trace_pauses.py",
            "def test_a_session_without_times",
            "def test_a_pause_that_no_call_follows() -> None:\n"
            "    assert pauses(session(0, 10, 400), longer_than=300) == [Pause(index=2, seconds=390, call=None)]\n\n\n"
            "def test_a_session_without_times",
        ),
    )
    passed = yield say("Run them.", pytest_run("tests/traces/test_trace_pauses.py"))
    expect("8 passed" in passed[0], "the tests know the new field")
    yield say(
        "Eight pass. Now the name. The exports keep their names, so the module gets another one: `pause.py` can't be "
        "mistaken for the function. There is no tool to move a file, so I'll read the final text and write it anew.",
        read("agentctx/traces/pauses.py"),
    )
    final = MODULE.replace(LOOP_BEFORE, LOOP_AFTER).replace("from itertools import pairwise\n", "")
    final = final.replace(CALL_BEFORE, CALL_AFTER).replace(RETURN_BEFORE, RETURN_AFTER) + HELPER
    yield say(
        "The same text under the new name, and the two imports that name the module.",
        write("agentctx/traces/pause.py", final),
        edit(
            "agentctx/traces/__init__.py",
            "from agentctx.traces.pauses import",
            "from agentctx.traces.pause import",
        ),
        edit(
            "tests/traces/test_trace_pauses.py",
            "from agentctx.traces.pauses import",
            "from agentctx.traces.pause import",
        ),
    )
    passed = yield say(
        "The old module still lies there, and I can't delete it. I'll make sure that nothing imports it any more, and run "
        "the tests.",
        search("traces.pauses", "agentctx"),
        search("traces.pauses", "tests"),
        pytest_run("tests/traces/test_trace_pauses.py"),
        pytest_run("tests/traces/test_trace_recording.py", "torn or killed or misuse or records"),
    )
    expect(passed[0] == passed[1] == "no match" and "8 passed" in passed[2], "nothing imports the old module")
    yield say(
        "Both changes are in.\n\n"
        "- `Pause.call` is the number of the first model call behind the pause, from 0, or `None` when none follows. "
        "Demonstrations aren't counted.\n"
        "- The module is now `agentctx/traces/pause.py`; the package still exports `Pause` and `pauses`. The old file "
        "`agentctx/traces/pauses.py` is unused, and I have no tool to delete it: please remove it.\n"
        "- Tests: eight in `tests/traces/test_trace_pauses.py`; they and the tests of the recording pass. I did not run the "
        "rest of the suite or the type checker."
    )
