"""`agentctx run` and `compare --observe` against a live llama-server, by nothing but its address."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentctx.compare import Setting, compare
from agentctx.traces import load
from tests.cli.command import agentctx

from .llama_server import LlamaServer
from .tiny_gguf import write_full_attention

pytestmark = [pytest.mark.real, pytest.mark.corpus, pytest.mark.xdist_group("session-llama-server")]

SESSIONS = ("mini-swe-agent/github_issue.traj.json", "swe-agent/function_calling_simple.traj")


@pytest.fixture(scope="module")
def files(shared_dir: Path) -> list[Path]:
    return [shared_dir / "corpus/traces" / name for name in SESSIONS]


@pytest.fixture(scope="module")
def server(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaServer]:
    """One slot, no RAM cache; random weights with SmolLM2's vocabulary and template."""
    path = tmp_path_factory.mktemp("tiny-smollm2") / "tiny-smollm2.gguf"
    write_full_attention(path, n_ctx=4096, vocabulary=smollm2_gguf)
    with LlamaServer(path, n_ctx=4096, n_parallel=1, cache_ram_mib=0) as running:
        yield running


def test_run_finds_the_template_the_tokenizer_and_the_slots(server: LlamaServer, files: list[Path]) -> None:
    done = agentctx(
        "run", "-b", server.url, "--cache", "llama-server:1,ram=0", "--fail-on", "mismatch", "--json", *files
    )
    assert done.returncode == 0, done.stderr
    sessions = json.loads(done.stdout)["sessions"]
    assert [len(session["turns"]) for session in sessions] == [10, 5]
    for session in sessions:
        assert session["layout"] == server.url
        turns = session["turns"]
        assert [turn["cached"] for turn in turns] == [turn["predicted"] for turn in turns]
        # The recorded reply was read into the slot: the next prompt finds it, as if the server had written it.
        for before, after in itertools.pairwise(turns):
            assert after["cached"] == before["prompt"] + before["reply"] - 1


def test_without_a_cache_spec_the_model_is_what_props_say(server: LlamaServer, files: list[Path]) -> None:
    done = agentctx("run", "-b", server.url, "--fail-on", "mismatch", files[0])
    assert done.returncode == 0, done.stderr
    assert "10 of 10 turns as predicted" in done.stdout
    assert "llama-server:slots=1,ctx=4096" in done.stdout


def test_a_server_that_wants_a_key(
    server: LlamaServer, files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key of the environment goes with every request, those of the turns included."""
    switches = {"n_parallel": 1, "cache_ram_mib": 0, "api_keys": ["sk-of-this-test"]}
    with LlamaServer(server.model, n_ctx=4096, **switches) as locked:
        refused = agentctx("run", "-b", locked.url, files[1])
        assert refused.returncode == 3
        assert "AGENTCTX_API_KEY" in refused.stderr
        monkeypatch.setenv("AGENTCTX_API_KEY", "sk-of-this-test")
        done = agentctx("run", "-b", locked.url, "--fail-on", "mismatch", files[1])
        assert done.returncode == 0, done.stderr
        assert "5 of 5 turns as predicted" in done.stdout
        done = agentctx("compare", "--observe", locked.url, "-p", "append-only", files[1])
        assert done.returncode == 0, done.stderr


def test_a_wrong_model_is_a_finding(server: LlamaServer, files: list[Path]) -> None:
    arguments = ("-b", server.url, "--cache", "paged:64", files[1])
    found = agentctx("run", *arguments, "--fail-on", "mismatch")
    assert found.returncode == 1
    assert "unexplained" in found.stdout
    assert agentctx("run", *arguments).returncode == 0


def test_policies_run_one_after_the_other_on_the_same_server(server: LlamaServer, files: list[Path]) -> None:
    recorded = load(files[0])
    setting = Setting(cache="llama-server:1,ram=0", observe=server.url)
    done = compare(recorded, ["append-only", "keep-last:2", "window:3"], setting)
    assert done.failures == ()
    assert [report.mismatches for report in done.reports] == [()] * 3
    assert all(report.observed and not report.unreported for report in done.reports)
    append_only, keep_last, _ = done.reports
    assert append_only.broken_turns == 0
    assert keep_last.reprocessed > append_only.reprocessed


def test_messages_go_to_an_openai_style_address(
    server: LlamaServer, files: list[Path], smollm2_gguf: Path
) -> None:
    """``/v1`` of the same server: it renders and encodes by itself, and the recorded reply is new text to it."""
    done = agentctx(
        "run",
        "-b",
        f"{server.url}/v1",
        "--cache",
        "llama-server:1,ram=0",
        "--layout",
        smollm2_gguf,
        "--json",
        files[1],
    )
    assert done.returncode == 0, done.stderr
    (session,) = json.loads(done.stdout)["sessions"]
    turns = session["turns"]
    # The first turn finds what the run before left; from then on both start from the same slot.
    assert [turn["cached"] for turn in turns[1:]] == [turn["predicted"] for turn in turns[1:]]
