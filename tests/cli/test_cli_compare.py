"""`agentctx compare` as a person runs it: what it prints, what it writes, how it ends."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from .command import agentctx

SESSION = "examples/sessions/add-pauses.jsonl"


@pytest.fixture(scope="module")
def bad_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bad")
    good_line = '{"role": "user", "content": "hello"}'
    texts = {
        "empty": "",
        "truncated": f'{{"history": [{good_line}, {{"role": "assis',
        "unknown": '{"weather": "fine"}\n{"weather": "rain"}\n',
        "orphan": json.dumps(
            [
                {"role": "user", "content": "hello"},
                {"role": "assistant", "content": "", "tool_calls": []},
                {"role": "tool", "tool_call_id": "call_9", "content": "42"},
            ]
        ),
    }
    files = {}
    for name, text in texts.items():
        files[name] = folder / f"{name}.jsonl"
        files[name].write_text(text)
    files["huge"] = folder / "huge.jsonl"
    with files["huge"].open("wb") as stream:
        stream.write(b'{"role": "user", "content": "')
        for _ in range(200):
            stream.write(b"x" * 1024 * 1024)
        stream.write(b'"}\n')
    return files


@pytest.mark.parametrize("name", ["empty", "truncated", "unknown", "orphan", "huge"])
def test_a_bad_file_is_named_with_its_line_and_the_others_are_compared(
    root_dir: Path, bad_files: dict[str, Path], name: str
) -> None:
    done = agentctx("compare", bad_files[name], SESSION, "-p", "append-only", cwd=root_dir)
    assert done.returncode == 3
    assert f"{bad_files[name]}:" in done.stderr
    assert done.stderr.split(f"{bad_files[name]}:")[1][0].isdigit()
    assert "Traceback" not in done.stderr
    assert "append-only" in done.stdout


def test_every_bad_file_in_one_run_is_reported(root_dir: Path, bad_files: dict[str, Path]) -> None:
    done = agentctx("compare", *bad_files.values(), SESSION, "-p", "append-only", cwd=root_dir)
    assert done.returncode == 3
    assert all(str(path) in done.stderr for path in bad_files.values())
    assert "append-only" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["compare"], "no session files"),
        (["compare", SESSION, "-p", "keep-first:3"], "keep-first:3"),
        (["compare", SESSION, "--cache", "pagd"], "pagd"),
        (["compare", SESSION, "--layout", "latin"], "latin"),
        (["compare", SESSION, "--frmt", "json"], "--frmt"),
    ],
)
def test_wrong_usage_exits_with_2_and_says_what(root_dir: Path, arguments: list[str], says: str) -> None:
    done = agentctx(*arguments, cwd=root_dir)
    assert done.returncode == 2
    assert says in done.stderr


def test_json_adds_up_and_markdown_is_a_table(root_dir: Path) -> None:
    done = agentctx(
        "compare", SESSION, "-p", "append-only", "-p", "window:3", "--format", "json", cwd=root_dir
    )
    assert done.returncode == 0
    data = json.loads(done.stdout)
    assert [row["policy"] for row in data["policies"]] == ["append-only", "window:3"]
    for row, session in zip(data["policies"], data["sessions"], strict=True):
        assert row["prompt"] == sum(turn["prompt"] for turn in session["turns"])
        assert row["prompt"] == row["reused"] + row["reprocessed"]
    markdown = agentctx("compare", SESSION, "-p", "append-only", "--format", "markdown", cwd=root_dir).stdout
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines}) == 1


class Balance(HTMLParser):
    """Counts the elements that are open; SVG shapes close themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rects = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "i", "body", "html"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.rects += tag == "rect"

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("i", "body", "html"):
            assert self.open.pop() == tag


def test_html_is_written_whole_and_well_formed(root_dir: Path, tmp_path: Path) -> None:
    report = tmp_path / "out" / "report.html"
    done = agentctx(
        "compare", SESSION, "-p", "append-only", "-p", "clear-results:2", "-o", report, cwd=root_dir
    )
    assert done.returncode == 0
    assert [path.name for path in report.parent.iterdir()] == ["report.html"]
    parser = Balance()
    parser.feed(report.read_text())
    assert parser.open == []
    assert parser.rects > 40
    assert "http" not in report.read_text().replace("http://www.w3.org", "")


def test_turns_are_listed_one_a_line(root_dir: Path) -> None:
    done = agentctx("compare", SESSION, "-p", "append-only", "--turns", cwd=root_dir)
    turns = [line for line in done.stdout.splitlines() if line.startswith("turn ")]
    assert len(turns) >= 20
    assert len({line.index("cached") for line in turns}) == 1
    assert any(line.startswith("session ") for line in done.stdout.splitlines())


def test_version_and_list(root_dir: Path) -> None:
    from agentctx import __version__

    assert agentctx("--version", cwd=root_dir).stdout.strip() == f"agentctx {__version__}"
    listed = agentctx("compare", "--list", cwd=root_dir)
    assert listed.returncode == 0
    assert "append-only" in listed.stdout
    assert "paged:block=16" in listed.stdout
