"""`agentctx run` as a person runs it: on the bundled engine, and where it must say what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .command import agentctx

SESSION = "examples/sessions/find-eviction-bug.jsonl"


@pytest.fixture(scope="module")
def short(root_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first turns of a recorded session."""
    lines = (root_dir / SESSION).read_text(encoding="utf-8").splitlines()
    replies = [
        number
        for number, line in enumerate(lines)
        if '"role": "assistant"' in line or '"role":"assistant"' in line
    ]
    file = tmp_path_factory.mktemp("run") / "short.jsonl"
    file.write_text("\n".join(lines[: replies[4] + 1]) + "\n", encoding="utf-8")
    return file


def test_on_the_engine_every_turn_is_as_predicted(root_dir: Path, short: Path) -> None:
    done = agentctx("run", "--backend", "engine", short, "--fail-on", "mismatch", "--json", cwd=root_dir)
    assert done.returncode == 0, done.stderr
    (session,) = json.loads(done.stdout)["sessions"]
    assert len(session["turns"]) == 5
    for turn in session["turns"]:
        assert turn["cached"] == turn["predicted"]
        assert turn["mismatch"] is None
        assert turn["prompt"] == turn["reused"] + turn["reprocessed"]
    assert session["observed"] == session["predicted"] > 0
    assert (session["mismatches"], session["unreported"]) == (0, 0)


def test_the_table_has_a_line_for_each_turn(root_dir: Path, short: Path) -> None:
    done = agentctx("run", "-b", "engine", "--cache", "radix", short, cwd=root_dir)
    assert done.returncode == 0
    assert done.stdout.count("as predicted") == 6  # five turns and the closing line
    assert "5 of 5 turns as predicted" in done.stdout


def test_what_cannot_be_read_or_reached_ends_with_3(root_dir: Path, short: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"weather": "fine"}\n')
    mixed = agentctx("run", "-b", "engine", broken, short, cwd=root_dir)
    assert mixed.returncode == 3
    assert str(broken) in mixed.stderr
    assert "5 of 5 turns" in mixed.stdout
    nobody = agentctx("run", "-b", "http://127.0.0.1:9", short, cwd=root_dir)
    assert nobody.returncode == 3
    assert "is the server running" in nobody.stderr
    assert "Traceback" not in nobody.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", SESSION], "--backend"),
        (["run", "-b", "motor", SESSION], "neither"),
        (["run", "-b", "engine", "--cache", "slot", SESSION], "paged and radix"),
        (["run", "-b", "engine", "-p", "windw:3", SESSION], "windw:3"),
        (["compare", "--observe", "motor", SESSION], "neither"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_what(root_dir: Path, arguments: list[str], says: str) -> None:
    done = agentctx(*arguments, cwd=root_dir)
    assert done.returncode == 2
    assert says in done.stderr


def test_compare_shows_observed_beside_predicted(root_dir: Path, short: Path) -> None:
    done = agentctx(
        "compare",
        short,
        "--observe",
        "engine",
        "-p",
        "append-only",
        "-p",
        "window:2",
        "--format",
        "json",
        cwd=root_dir,
    )
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    for row in data["policies"]:
        assert row["observed"] is True
        assert row["wrong_turns"] == 0
        assert row["predicted"] == row["reused"]
    table = agentctx("compare", short, "--observe", "engine", "-p", "append-only", cwd=root_dir).stdout
    assert "observed" in table
    assert "run on engine" in table
