"""The examples beside the coding agent: an agent with a guard, a comparison of policies, a llama-server with a saved slot.

All run as a reader runs them. The servers are real llama-servers with a small model; what they say isn't tested.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import require_llama_server
from tests.real.llama_server import LlamaServer


@pytest.fixture(scope="module")
def server(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    require_llama_server()
    slots = tmp_path_factory.mktemp("slots")
    with LlamaServer(
        smollm2_gguf, n_parallel=1, n_ctx=4096, cache_ram_mib=0, slot_save_path=f"{slots}/"
    ) as server:
        yield server


def run(root: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "examples" / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def existing(
    root: Path, server: LlamaServer, repository: Path, *more: str
) -> subprocess.CompletedProcess[str]:
    questions = ("What does half.py do?", "Is it right?", "What is missing?")
    options = ("--url", f"{server.url}/v1", "--root", str(repository), "--turns", "3", "--max-tokens", "8")
    return run(root, "existing_agent.py", *questions, *options, *more)


@pytest.mark.real
def test_an_existing_agent_whose_list_only_grows(
    root_dir: Path, server: LlamaServer, repository: Path
) -> None:
    done = existing(root_dir, server, repository)
    assert done.returncode == 0, done.stderr
    turns = re.findall(r"^turn (\d): prompt (\d+), cached (\d+)$", done.stdout, re.MULTILINE)
    prompts, cached = [int(turn[1]) for turn in turns], [int(turn[2]) for turn in turns]
    assert len(turns) == 3
    assert prompts == sorted(prompts)
    assert all(now >= before for now, before in zip(cached[1:], prompts, strict=False))


@pytest.mark.real
def test_an_existing_agent_with_a_clock_is_stopped(
    root_dir: Path, server: LlamaServer, repository: Path
) -> None:
    done = existing(root_dir, server, repository, "--clock")
    assert done.returncode == 1
    assert done.stdout.count("turn ") == 1
    assert "stopped before it was sent: turn 2: AC101" in done.stderr
    assert "messages[0].content" in done.stderr


def test_an_existing_agent_without_its_server(root_dir: Path, repository: Path) -> None:
    done = run(root_dir, "existing_agent.py", "Hello", "--url", "http://127.0.0.1:9/v1")
    assert done.returncode == 3
    assert done.stderr.startswith("error: http://127.0.0.1:9/v1: Connection error")


def test_the_tools_of_the_existing_agent(root_dir: Path, repository: Path) -> None:
    spec = importlib.util.spec_from_file_location("existing_agent", root_dir / "examples/existing_agent.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.run_tool(repository, "list_files", '{"folder": "pkg"}') == "half.py"
    assert "number // 3" in module.run_tool(repository, "read_file", '{"path": "pkg/half.py"}')
    assert "outside" in module.run_tool(repository, "read_file", '{"path": "../secret"}')
    for arguments in ("no json", "[1]", "{}", '{"path": "nothing.py"}'):
        assert module.run_tool(repository, "read_file", arguments).startswith("error: ")


@pytest.mark.real
def test_a_llama_server_predicted_saved_and_restored(root_dir: Path, server: LlamaServer) -> None:
    done = run(root_dir, "llama_server.py", server.url, "--cache", "llama-server:slots=1,ctx=4096,ram=0")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^(agent|another) +(\d+) +(\d+) +(\d+)$", done.stdout, re.MULTILINE)
    assert [row[0] for row in rows] == ["agent"] * 3 + ["another", "agent"]
    assert all(predicted == observed for _, _, predicted, observed in rows)
    lengths, cached = [int(row[1]) for row in rows], [int(row[3]) for row in rows]
    assert cached[1] >= lengths[0]
    assert cached[4] >= lengths[2]  # from the file: the slot held another conversation
    [saved] = re.findall(r"^saved (\d+) tokens", done.stdout, re.MULTILINE)
    assert f"restored {saved} tokens" in done.stdout
    assert "predicted = observed on every turn" in done.stdout


@pytest.mark.real
def test_a_llama_server_that_saves_nothing(root_dir: Path, smollm2_gguf: Path) -> None:
    require_llama_server()
    with LlamaServer(smollm2_gguf, n_parallel=1, n_ctx=4096, cache_ram_mib=0) as server:
        done = run(root_dir, "llama_server.py", server.url, "--cache", "llama-server:slots=1,ctx=4096,ram=0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "start the server with --slot-save-path" in done.stdout


def test_a_llama_server_that_is_not_there(root_dir: Path) -> None:
    done = run(root_dir, "llama_server.py", "http://127.0.0.1:9")
    assert done.returncode == 3
    assert "can't connect to http://127.0.0.1:9" in done.stderr


def test_a_comparison_of_policies(root_dir: Path, tmp_path: Path) -> None:
    session = str(root_dir / "examples/sessions/find-eviction-bug.jsonl")
    page = tmp_path / "out/policies.html"
    done = run(root_dir, "policy_comparison.py", session, "--report", str(page))
    assert done.returncode == 0, done.stderr
    read = {line.split()[0]: int(line.split()[2].replace(",", "")) for line in done.stdout.splitlines()[1:]}
    assert next(iter(read)) == "append-only"
    assert len(read) == 5
    assert all(read["append-only"] < tokens for policy, tokens in read.items() if policy != "append-only")
    text = page.read_text(encoding="utf-8")
    assert "<svg" in text
    assert all(policy in text for policy in read)


def test_a_comparison_of_a_file_that_is_no_session(root_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "notes.jsonl"
    file.write_text('{"hello": 1}\n')
    done = run(root_dir, "policy_comparison.py", str(file))
    assert done.returncode == 3
    assert "notes.jsonl" in done.stderr
