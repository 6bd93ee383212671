"""``agentctx check build``: sound builders pass, each flaw is found with its line, and hostile ones are stopped."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from agentctx.checks.builders.judging import BuildRules, allowed_words, check_builder, variations
from agentctx.checks.builders.process import Place, Setting, another_folder
from agentctx.checks.builders.scenario import built_in, from_file
from agentctx.diagnosis import parse_target
from agentctx.errors import InputError, UsageError
from agentctx.reports.check_result import CheckResult
from tests.checks import some_builders

HERE = Path(some_builders.__file__).parent


def check(
    name: str, rules: BuildRules | None = None, *, root: Path = HERE, timeout: float = 60.0
) -> CheckResult:
    place = Place(f"some_builders:{name}", root, timeout)
    return check_builder(place, built_in(), rules or BuildRules())


def line_of(text: str) -> int:
    lines = Path(some_builders.__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, start=1) if text in line)


@pytest.mark.parametrize("name", ["plain", "only_messages", "awaited", "Frozen", "logs_to_stderr"])
def test_sound_builders_pass(name: str) -> None:
    result = check(name)
    assert result.exit_code == 0, (result.findings, result.errors)
    assert len(result.passed) == 2


def test_files_of_the_project_are_found_from_another_folder(tmp_path: Path) -> None:
    (tmp_path / "some_builders.py").write_text(Path(some_builders.__file__).read_text())
    (tmp_path / "prompt.txt").write_text("You are an agent.")
    assert check("reads_a_file", root=tmp_path).exit_code == 0
    with another_folder(tmp_path) as elsewhere:
        assert (elsewhere / "prompt.txt").read_text() == "You are an agent."
        assert elsewhere.resolve() != tmp_path.resolve()


@pytest.mark.parametrize(
    ("name", "code", "case", "line"),
    [
        ("clock", "AC101", "turn 2", "now = datetime.now()"),
        ("day", "AC101", "turn 4", "Today is {date.today()"),
        ("formatted", "AC101", "turn 2", "time.strftime('%A %H:%M')"),
        ("zone", "AC101", "fresh process: timezone", "def zone"),
        ("set_order", "AC103", "fresh process: hash seed", "def set_order"),
        ("set_in_text", "AC110", "fresh process: hash seed", "def set_in_text"),
        ("dumped_again", "AC108", "turn 2", "def dumped_again"),
        ("trims", "AC114", "turn 3", "def trims"),
        ("folder", "AC101", "fresh process: cwd", "where = os.getcwd()"),
        ("drawn", "AC102", "turn 2", "request id {uuid.uuid4()}"),
        ("DrawnOnce", "AC102", "fresh process: chance", "self.id = uuid.uuid4()"),
    ],
)
def test_each_flaw_is_found_with_its_line(name: str, code: str, case: str, line: str) -> None:
    result = check(name)
    assert result.exit_code == 1
    # Trimming is found in each form that it takes.
    assert len(result.findings) == (2 if name == "trims" else 1)
    finding = result.findings[0]
    assert (finding.code, finding.case) == (code, case)
    assert (finding.file, finding.line) == ("some_builders.py", line_of(line))
    assert finding.was != finding.now


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("exits", "turn 1: it called exit(3)"),
        ("exits_hard", "turn 1: the process ended by itself (exit code 0) [last words]"),
        ("killed", "turn 1: the process ended by itself (signal SIGKILL)"),
        ("prints", "it prints to standard output ('hello')"),
        ("spawns", "it leaves threads running (spinner"),
        ("raises", "turn 1: it raised IndexError: list index out of range"),
        ("no_json", "turn 1: it returned what is no JSON: set is no JSON value"),
        ("no_body", "turn 1: it returned a int"),
        ("takes_nothing", "import: it takes no messages"),
        ("huge", "turn 1: it returned a request of more than 32 MiB"),
        ("scribbles", "it wrote into a file descriptor that isn't its own"),
        ("NUMBER", "import: some_builders:NUMBER is a int, not a callable"),
        ("nothing", "import: module some_builders has no nothing"),
    ],
)
def test_what_can_t_be_evaluated_is_said(name: str, message: str) -> None:
    result = check(name)
    assert result.exit_code == 3
    [error] = result.errors
    assert message in error.message


@pytest.mark.parametrize("name", ["endless", "floods", "leaves_children", "closes_everything"])
def test_what_never_ends_is_killed_in_time(name: str, tmp_path: Path) -> None:
    (tmp_path / "some_builders.py").write_text(Path(some_builders.__file__).read_text())
    start = time.monotonic()
    result = check(name, root=tmp_path, timeout=3.0)
    assert time.monotonic() - start < 3.0 + 10.0  # the limit, and a busy machine
    assert result.exit_code == 3
    assert "not done within 3 s, so it was killed; raise the limit with --timeout" in result.errors[0].message
    said = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True, check=True).stdout
    assert [line for line in said.splitlines() if str(tmp_path) in line] == []


def test_what_is_allowed_is_no_error() -> None:
    assert check("prints", BuildRules(allow=allowed_words(["output"]))).exit_code == 0
    assert check("spawns", BuildRules(allow=allowed_words(["threads"]))).exit_code == 0
    assert check("clock", BuildRules(allow=allowed_words(["volatile-text"]))).exit_code == 0


def test_only_what_is_varied_is_compared() -> None:
    assert check("folder", BuildRules(vary=variations(["clock", "hash-seed"]))).exit_code == 0
    with pytest.raises(UsageError, match="can't differ in 'weather'; known: hash-seed"):
        variations(["weather"])


def test_a_target_s_template_is_asked(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text(
        "{% for m in messages %}<{{ m.role }}>{{ m.content if loop.last else m.content[:3] }}{% endfor %}<assistant>"
    )
    result = check("plain", BuildRules(target=parse_target(str(tmp_path / "t.jinja"))))
    assert {finding.code for finding in result.findings} == {"AC150"}


def test_a_recorded_session_as_scenario(root_dir: Path, tmp_path: Path) -> None:
    session = min((root_dir / "examples/sessions").glob("*.jsonl"), key=lambda path: path.stat().st_size)
    scenario = from_file(str(session))
    assert len(scenario.ends) > 2
    assert all(scenario.messages[end]["role"] == "assistant" for end in scenario.ends)
    empty = tmp_path / "session.json"
    empty.write_text(json.dumps({"messages": [{"role": "user", "content": "hello"}]}))
    with pytest.raises(InputError):
        from_file(str(empty))


def test_the_parent_s_surroundings_don_t_matter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.chdir(tmp_path)
    before = dict(os.environ)
    assert check("plain").exit_code == 0
    assert dict(os.environ) == before
    assert Setting().timezone == "UTC"
