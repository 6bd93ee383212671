"""The coding agent of the examples: its loop and its tools on a repository with a bug, and the command on real models.

In the first tests the words of the model are written down here (a Backend that reads from a list); the tools, the history,
the prompts and the reports are real. The last ones ask a real llama-server and the bundled engine, with a model too small
to fix anything: there the command, the counts and the turn lines are what is tested.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from agentctx.backends.backend import Completion, Options
from agentctx.caches.registry import parse_cache
from agentctx.history import History
from agentctx.messages import Message, ToolCall
from agentctx.policies import parse_policy
from agentctx.rendering import Prompt, load_renderer
from agentctx.reports.turn import TurnReport
from agentctx.session import Session, SessionParts
from agentctx.usage import Usage
from tests.conftest import require_llama_server


@pytest.fixture(scope="module")
def example(root_dir: Path) -> Iterator[ModuleType]:
    folder = str(root_dir / "examples")
    sys.path.insert(0, folder)
    try:
        import coding_agent

        yield coding_agent
    finally:
        sys.path.remove(folder)


class Words:
    """A backend whose model says what stands in a list."""

    name = "words"
    takes_tokens = False

    def __init__(self, replies: list[Message]) -> None:
        self.replies = iter(replies)
        self.prompts: list[Prompt] = []

    def complete(self, prompt: Prompt, options: Options) -> Completion:
        self.prompts.append(prompt)
        return Completion(next(self.replies), Usage(prompt=len(prompt)))

    def stream(self, prompt: Prompt, options: Options) -> Iterator[object]:
        raise NotImplementedError


def says(text: str, *calls: tuple[str, object]) -> Message:
    says.number += 1  # type: ignore[attr-defined]
    made = tuple(
        ToolCall(id=f"c{says.number}-{i}", name=name, arguments=arguments)  # type: ignore[attr-defined]
        for i, (name, arguments) in enumerate(calls)
    )
    return Message(role="assistant", content=text, tool_calls=made)


says.number = 0  # type: ignore[attr-defined]

FIX = {"path": "pkg/half.py", "old": "number // 3", "new": "number // 2"}


def plan() -> list[Message]:
    return [
        says("", ("list_files", {"path": "."}), ("run_tests", {"path": "."})),
        says("The test fails.", ("search", {"pattern": "def half", "path": "."})),
        says(
            "",
            ("read_file", {"path": "pkg/half.py"}),
            ("nonsense", {}),
            ("read_file", "not json"),
            ("search", "[]"),
        ),
        says("", ("read_file", {"file": "pkg/half.py"}), ("read_file", {"path": "../secret"})),
        says("", ("edit_file", FIX)),
        says("", ("run_tests", {"path": "test_half.py"})),
        says("Half divides by two now; the test passes."),
    ]


def session_of(backend: Words, history: History, policy: str = "append-only") -> Session:
    parts = SessionParts(
        history, load_renderer("chatml"), parse_cache("slot"), parse_policy(policy), strict=True
    )
    return Session(parts, backend)  # type: ignore[arg-type]


def test_the_agent_fixes_a_bug_with_real_tools(example: ModuleType, repository: Path) -> None:
    backend, reports = Words(plan()), list[TurnReport]()
    history = History(example.SYSTEM, example.TOOLS)
    agent = example.Agent(
        session_of(backend, history),
        example.Workspace(repository),
        lambda report, message: reports.append(report),
    )
    assert agent.work("Fix the failing test.", turns=20) == "Half divides by two now; the test passes."
    assert "number // 2" in (repository / "pkg/half.py").read_text()
    results = [message.text for message in history if message.role == "tool"]
    assert "1 failed" in results[1]
    assert "1 passed" in results[-1]
    assert results[4] == "error: there is no tool nonsense"
    assert results[5].startswith("error: the arguments are no JSON")
    assert results[6] == "error: the arguments must be an object"
    assert "unexpected keyword argument" in results[7]
    assert results[8] == "error: ../secret is outside of the repository"
    assert len(reports) == 7
    assert all(report.broken == 0 and report.rework <= 1 for report in reports)
    assert all("turns left]" in message.notes[0] for message in history if message.notes)


def test_it_gives_up_after_its_turns(example: ModuleType, repository: Path) -> None:
    backend = Words([says("", ("list_files", {"path": "."})) for _ in range(3)])
    agent = example.Agent(
        session_of(backend, History(example.SYSTEM, example.TOOLS)),
        example.Workspace(repository),
        lambda *_: None,
    )
    assert agent.work("Fix it.", turns=3) == ""


def test_it_goes_on_from_its_log(example: ModuleType, repository: Path, tmp_path: Path) -> None:
    """Stopped between a call and its result, started again: the new prompt extends the last one that was sent."""
    log = tmp_path / "log.jsonl"
    first = Words(plan()[:2])
    with History.open(log, example.SYSTEM, example.TOOLS) as history:
        agent = example.Agent(session_of(first, history), example.Workspace(repository), lambda *_: None)
        with pytest.raises(StopIteration):
            agent.work("Fix the failing test.", turns=20)
        history.assistant(tool_calls=[ToolCall(id="lost", name="run_tests", arguments='{"path": "."}')])
    second = Words([says("Done.")])
    with History.open(log, example.SYSTEM, example.TOOLS) as history:
        agent = example.Agent(session_of(second, history), example.Workspace(repository), lambda *_: None)
        assert agent.work("Go on.", turns=5) == "Done."
        assert "error: interrupted before it ran" in [message.text for message in history]
    before, after = first.prompts[-1], second.prompts[0]
    assert after.token_ids[: len(before)].tolist() == before.token_ids.tolist()


def test_a_reply_with_calls_in_its_text(example: ModuleType) -> None:
    text = (
        'I look.\n<tool_call>\n{"name": "read_file", "arguments": {"path": "a"}}\n</tool_call>\n'
        "<tool_call>{broken</tool_call>\n<tool_call>[1]</tool_call>"
        '<tool_call>{"name": "run_tests"}</tool_call>'
    )
    message = example.read_reply(text, 5)
    assert message.text == "I look."
    assert [(call.id, call.name, call.arguments) for call in message.tool_calls] == [
        ("call_5", "read_file", '{"path":"a"}'),
        ("call_6", "run_tests", "{}"),
    ]


def agent_command(root: Path, repository: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        str(root / "examples/coding_agent.py"),
        "Say hello.",
        "--root",
        str(repository),
    ]
    return subprocess.run(
        [*command, "--turns", "2", "--max-tokens", "12", *more],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def turn_lines(output: str) -> list[str]:
    return re.findall(r"^turn +\d+  prompt +[\d,]+  cached +[\d,]+ .*$", output, re.MULTILINE)


@pytest.mark.real
def test_the_command_against_the_bundled_engine(
    root_dir: Path, repository: Path, tmp_path: Path, smollm2_gguf: Path
) -> None:
    log = tmp_path / "log.jsonl"
    for run in range(2):
        done = agent_command(
            root_dir, repository, "--engine", str(smollm2_gguf), "--blocks", "128", "--log", str(log)
        )
        assert done.returncode in (0, 1), done.stderr
        assert turn_lines(done.stdout), done.stdout
        assert "session coding agent, append-only: 1 turns" in done.stdout
        with History.open(log) as history:
            assert history.turns == run + 1


@pytest.mark.real
def test_the_command_against_a_llama_server(root_dir: Path, repository: Path, smollm2_gguf: Path) -> None:
    from tests.real.llama_server import LlamaServer

    require_llama_server()
    with LlamaServer(smollm2_gguf, n_parallel=1, n_ctx=4096, use_jinja=True) as server:
        done = agent_command(
            root_dir, repository, "--url", f"{server.url}/v1", "--model", "smollm2", "--cache", "slot"
        )
    assert done.returncode in (0, 1), done.stderr
    assert turn_lines(done.stdout), done.stdout


def test_a_server_that_is_not_there_is_an_error_with_its_address(root_dir: Path, repository: Path) -> None:
    done = agent_command(root_dir, repository, "--url", "http://127.0.0.1:9/v1")
    assert done.returncode == 3
    assert "error: can't connect to http://127.0.0.1:9/v1/chat/completions" in done.stderr
