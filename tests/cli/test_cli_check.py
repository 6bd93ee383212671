"""``agentctx check`` alone and ``agentctx init``: what is configured is run, accepted, compared and told."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from .command import Command, Ended

CLEAN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
TRIMS = CLEAN.replace("{{ m.content }}", "{{ m.content if loop.last else m.content[:9] }}")
BUILDER = """
def build(messages, tools):
    return {"tools": tools, "messages": [{"role": "system", "content": "You are an agent."}, *messages]}
"""
CLOCK = BUILDER.replace('"You are an agent."', 'f"Now: {datetime.now()}"').replace(
    "\ndef", "from datetime import datetime\n\ndef", 1
)
CONFIG = """
baseline = "known.json"
[[templates]]
paths = ["templates/*.jinja"]
[[builders]]
callable = "prompts:build"
vary = ["clock"]
[[logs]]
files = ["log.jsonl"]
max_rework_session = 1000
target = "own"
[targets.own]
template = "chatml"
cache = "paged:16"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project in order, and the current folder somewhere inside."""
    (tmp_path / "templates").mkdir()
    (tmp_path / "templates/coder.jinja").write_text(CLEAN)
    (tmp_path / "prompts.py").write_text(BUILDER)
    talk = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "two"},
    ]
    lines = [json.dumps({"model": "m", "messages": talk[:end]}) for end in (1, 3)]
    (tmp_path / "log.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "agentctx.toml").write_text(CONFIG.replace('baseline = "known.json"\n', ""))
    monkeypatch.chdir(tmp_path / "templates")
    return tmp_path


def log_with_a_clock(project: Path) -> None:
    """A log whose second request pays for the first one's system prompt again."""
    talk = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "two"},
    ]
    head = [{"role": "system", "content": f"It is 10:0{turn}. " + "word " * 2000} for turn in range(2)]
    lines = [json.dumps({"model": "m", "messages": [head[turn], *talk[: 1 + 2 * turn]]}) for turn in range(2)]
    (project / "log.jsonl").write_text("\n".join(lines) + "\n")


def test_a_project_in_order(command: Command, project: Path) -> None:
    ended = command("check")
    assert ended.code == 0, ended.out + ended.err
    assert "0 failing" in ended.out


def test_pyproject_says_the_same(command: Command, project: Path) -> None:
    text = CONFIG.replace('baseline = "known.json"\n', "")
    text = text.replace("[[", "[[tool.agentctx.").replace("[targets", "[tool.agentctx.targets")
    (project / "agentctx.toml").unlink()
    (project / "pyproject.toml").write_text('[project]\nname = "user"\n' + text)
    assert command("check").code == 0


def test_each_kind_of_flaw_fails_and_every_report_is_written(command: Command, project: Path) -> None:
    (project / "templates/coder.jinja").write_text(TRIMS)
    (project / "prompts.py").write_text(CLOCK)
    log_with_a_clock(project)
    ended = command(
        "check", "--report", "sarif=out/c.sarif", "--report", "junit=out/c.xml", "--format", "github"
    )
    assert ended.code == 1, ended.out + ended.err
    assert "::error file=templates/coder.jinja,line=1,title=AC150" in ended.out
    assert "::error file=prompts.py,line=4,title=AC101" in ended.out
    assert "::error file=log.jsonl,line=1,title=AC190 A budget isn't kept" in ended.out
    found = json.loads((project / "templates/out/c.sarif").read_text())["runs"][0]["results"]
    assert {entry["ruleId"] for entry in found} >= {"AC150", "AC101", "AC190"}
    assert (project / "templates/out/c.xml").read_text().startswith("<?xml")


def test_baseline_and_suppression(command: Command, project: Path) -> None:
    (project / "agentctx.toml").write_text(CONFIG)
    (project / "templates/coder.jinja").write_text(TRIMS)
    missing = command("check")
    assert missing.code == 3
    assert "known.json" in missing.err
    refused = command("check", "--update-baseline")
    assert refused.code == 2
    assert "--reason" in refused.err
    assert command("check", "--update-baseline", "--reason", "our old model").code == 0
    assert {entry["reason"] for entry in json.loads((project / "known.json").read_text())["accepted"]} == {
        "our old model"
    }
    assert command("check").code == 0
    (project / "prompts.py").write_text(CLOCK)
    assert command("check").code == 1
    suppress = '[[suppress]]\nsubject = "prompts:*"\ncode = "AC101"\nreason = "a demo"\n'
    (project / "agentctx.toml").write_text(CONFIG + suppress)
    ended = command("check")
    assert ended.code == 0, ended.out
    assert "allowed: a demo" in ended.out
    (project / "prompts.py").write_text(BUILDER)
    assert "suppress[0] (prompts:* AC101) covers nothing: take it out" in command("check").out


def test_a_budget_that_is_not_kept_can_be_accepted(command: Command, project: Path) -> None:
    log_with_a_clock(project)
    ended = command("check")
    assert (ended.code, "! AC190 budget-exceeded" in ended.out) == (1, True)
    config = (project / "agentctx.toml").read_text()
    suppress = '[[suppress]]\nsubject = "log.jsonl"\ncode = "budget-exceeded"\nreason = "the old agent"\n'
    (project / "agentctx.toml").write_text(config + suppress)
    ended = command("check")
    assert ended.code == 0, ended.out
    assert "allowed: the old agent" in ended.out
    (project / "agentctx.toml").write_text(
        config.replace("max_rework_session = 1000", 'max_rework_session = 1000\nallow = ["AC190"]')
    )
    assert command("check").code == 0


def git(project: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], cwd=project, check=True, capture_output=True)


def test_only_what_a_change_makes_worse_fails(command: Command, project: Path) -> None:
    (project / "templates/coder.jinja").write_text(TRIMS)
    git(project, "init", "-q")
    git(project, "add", ".")
    git(project, "commit", "-q", "-m", "base")
    hook = project / ".git/hooks/post-checkout"
    hook.write_text("#!/bin/sh\ntouch hooked\n")
    hook.chmod(0o755)
    assert command("check").code == 1
    same = command("check", "--base", "HEAD")
    assert same.code == 0, same.out
    assert "allowed: no worse than in HEAD" in same.out
    (project / "prompts.py").write_text(CLOCK)
    worse = command("check", "--base", "HEAD", "--format", "json")
    assert worse.code == 1
    failing = [
        found
        for found in json.loads(worse.out)["findings"]
        if found["allowed"] is None and found["level"] == "error"
    ]
    assert {found["subject"] for found in failing} == {"prompts:build"}
    (project / "templates/coder.jinja").write_text(CLEAN)
    (project / "prompts.py").write_text(BUILDER)
    assert "of HEAD are gone" in command("check", "--base", "HEAD").out
    for wrong in ("nothing-like-it", "--help"):
        ended = command("check", f"--base={wrong}")
        assert ended.code == 2
        assert "--base takes a commit" in ended.err
    assert not (project / "hooked").exists()


def test_a_new_template_is_not_excused_by_an_old_one_of_its_name(command: Command, project: Path) -> None:
    (project / "agentctx.toml").write_text('[[templates]]\npaths = ["**/*.jinja"]\n')
    (project / "templates/coder.jinja").write_text(TRIMS)
    git(project, "init", "-q")
    git(project, "add", ".")
    git(project, "commit", "-q", "-m", "base")
    (project / "more").mkdir()
    (project / "more/coder.jinja").write_text(TRIMS)
    worse = command("check", "--base", "HEAD", "--format", "json")
    assert worse.code == 1
    found = json.loads(worse.out)["findings"]
    failing = {each["subject"] for each in found if each["allowed"] is None and each["level"] == "error"}
    assert failing == {"more/coder.jinja"}
    # A template that was moved is no worse than before.
    (project / "templates/coder.jinja").unlink()
    moved = command("check", "--base", "HEAD")
    assert moved.code == 0, moved.out
    assert "are gone" not in moved.out


def test_a_path_that_the_revision_has_not_leaves_the_others(command: Command, project: Path) -> None:
    (project / "agentctx.toml").write_text(
        '[[templates]]\npaths = ["templates/coder.jinja", "more/new.jinja"]\n'
    )
    (project / "templates/coder.jinja").write_text(TRIMS)
    git(project, "init", "-q")
    git(project, "add", ".")
    git(project, "commit", "-q", "-m", "base")
    (project / "more").mkdir()
    (project / "more/new.jinja").write_text(CLEAN)
    assert command("check", "--base", "HEAD").code == 0


def subjects(file: Path) -> dict[str, str]:
    """A baseline's reason by subject."""
    return {entry["subject"]: entry["reason"] for entry in json.loads(file.read_text())["accepted"]}


def test_one_baseline_for_several_checks(command: Command, project: Path) -> None:
    """Each update writes about what it checked, and keeps the rest."""
    (project / "templates/coder.jinja").write_text(TRIMS)
    (project / "prompts.py").write_text(CLOCK)
    log_with_a_clock(project)
    tables = {
        "templates": '[[templates]]\npaths = ["templates/*.jinja"]\n',
        "builders": '[[builders]]\ncallable = "prompts:build"\nvary = ["clock"]\n',
        "logs": '[[logs]]\nfiles = ["log.jsonl"]\n',
    }
    file = project / "known.json"
    update = ("--baseline", file, "--update-baseline", "--reason")
    for name, table in tables.items():
        (project / f"{name}.toml").write_text(table)
        ended = command("check", "--config", project / f"{name}.toml", *update, name)
        assert ended.code == 0, ended.out + ended.err
    (project / "templates/other.jinja").write_text(TRIMS)
    assert command("check", "template", "other.jinja", *update, "by command").code == 0
    reasons = {
        "templates/coder.jinja": "templates",
        "templates/other.jinja": "by command",
        "prompts:build": "builders",
        "log.jsonl": "logs",
    }
    assert subjects(file) == reasons
    # All at once finds nothing new, and says nothing else.
    (project / "agentctx.toml").write_text("".join(tables.values()))
    before = file.read_text()
    ended = command("check", *update, "everything")
    assert ended.code == 0, ended.out + ended.err
    assert file.read_text() == before
    assert "take the entry out" not in ended.out
    # What can't be evaluated keeps its entries, what is mended loses them.
    (project / "prompts.py").write_text("def build(messages, tools):\n    raise ValueError\n")
    (project / "templates/coder.jinja").write_text(CLEAN)
    assert command("check", *update, "once more").code == 3
    del reasons["templates/coder.jinja"]
    assert subjects(file) == reasons
    (project / "prompts.py").write_text(BUILDER)
    (project / "log.jsonl").write_text((project / "log.jsonl").read_text().splitlines()[0] + "\n")
    assert command("check", *update, "once more").code == 0
    assert subjects(file) == {"templates/other.jinja": "by command"}


def test_what_is_suppressed_needs_no_baseline(command: Command, project: Path) -> None:
    (project / "prompts.py").write_text(CLOCK)
    (project / "templates/coder.jinja").write_text(TRIMS)
    suppressed = '[[suppress]]\nsubject = "prompts:*"\ncode = "AC101"\nreason = "a demo"\n'
    (project / "agentctx.toml").write_text(CONFIG + suppressed)
    ended = command("check", "--update-baseline", "--reason", "known")
    assert ended.code == 0, ended.out + ended.err
    assert subjects(project / "known.json") == {"templates/coder.jinja": "known"}
    assert "take it out" not in ended.out
    # An entry beside the suppression stays, with its reason, and is no contradiction.
    entries = json.loads((project / "known.json").read_text())
    entries["accepted"].append({"subject": "prompts:build", "reason": "by hand"})
    (project / "known.json").write_text(json.dumps(entries))
    for arguments in (("check",), ("check", "--update-baseline", "--reason", "again")):
        ended = command(*arguments)
        assert ended.code == 0, ended.out
        assert "allowed: a demo" in ended.out
        assert "take" not in ended.out
        assert subjects(project / "known.json")["prompts:build"] == "by hand"


def test_a_suppression_of_a_shared_name_needs_the_path(command: Command, project: Path) -> None:
    (project / "more").mkdir()
    for folder in ("templates", "more"):
        (project / folder / "coder.jinja").write_text(TRIMS)
    tables = '[[templates]]\npaths = ["templates"]\n[[templates]]\npaths = ["more"]\nkeywords = {a = 1}\n'

    def suppressing(subject: str) -> Ended:
        entry = f'[[suppress]]\nsubject = "{subject}"\nreason = "old"\n'
        (project / "agentctx.toml").write_text(tables + entry)
        return command("check")

    named = suppressing("coder")
    assert named.code == 1
    assert (
        "note: suppress[0] (coder) covers nothing: several templates are called so, write the path of the one that is meant "
        "(templates/coder.jinja, more/coder.jinja)" in named.out
    )
    one = suppressing("more/coder.jinja")
    assert one.code == 1
    assert "! AC150 template-made  templates/coder.jinja:1  templates/coder.jinja, a_chat" in one.out
    assert "! AC150 template-made  more/coder.jinja:1" not in one.out
    assert suppressing("cod*").code == suppressing("*/coder.jinja").code == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("templates = [", "agentctx.toml:1: is no TOML"),
        ("target = 'a'\nbuilder = []", "there is no such setting (field builder); did you mean builders?"),
        ("[[builders]]\ncallable = 'x'", "(field builders[0].callable); write MODULE:CALLABLE"),
        ("[[builders]]\ncallable = 'x:y'\ntimout = 3", "(field builders[0].timout); did you mean timeout?"),
        (
            "[[suppress]]\nsubject = 'x'",
            "a setting is missing (field suppress[0].reason); say why it is accepted",
        ),
        ("[[suppress]]\nsubject = 'x'\nreason = ' '", "(field suppress[0].reason); say why it is accepted"),
        (
            "[[logs]]\nfiles = ['x']\nmin_hit_rate = 90",
            "(field logs[0].min_hit_rate); write a share between 0 and 1",
        ),
        (
            "[[suppress]]\nsubject = 'x'\nreason = 'y'\ncode = 'volatile-txt'",
            "no finding is called 'volatile-txt' (field suppress[0].code); did you mean volatile-text?",
        ),
        (
            "[[logs]]\nfiles = ['x']\nallow = ['AC101', 'AC999']",
            "(field logs[0].allow[1]); write a code such as",
        ),
        ("[[builders]]\ncallable = 'x:y'\nallow = ['print']", "(field builders[0].allow[0]); write a code"),
        ("[[builders]]\ncallable = 'x:y'\nvary = ['moon']", "(field builders[0].vary[0]); known: hash-seed"),
        ("[targets.a]\ntokenizer = 'x'", "a setting is missing (field targets.a.template); add template"),
    ],
)
def test_errors_name_file_field_and_remedy(command: Command, project: Path, text: str, message: str) -> None:
    (project / "agentctx.toml").write_text(text)
    ended = command("check")
    assert ended.code == 3
    assert "agentctx.toml" in ended.err
    assert message in ended.err


def test_usage(
    command: Command, project: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "agentctx.toml").write_text("target = 'chatml'")
    assert "has no templates, builders or logs" in command("check").err
    (project / "agentctx.toml").write_text("[[templates]]\npaths = ['nothing/*.jinja']")
    assert command("check").code == 2
    assert command("check", "--report", "pdf=x").code == 2
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))
    ended = command("check")
    assert ended.code == 2
    assert "`agentctx init` writes a start" in ended.err


def test_init_writes_what_can_be_read_and_overwrites_nothing(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentctx.checks.config import OWN, Config, read_config

    monkeypatch.chdir(tmp_path)
    assert command("init").code == 0
    text = (tmp_path / OWN).read_text()
    assert read_config(tmp_path / OWN).config == Config()
    assert command("init").code == 2
    # Every setting that it shows in a comment is one.
    told = [
        line[2:]
        for line in text.splitlines()
        if line.startswith("# ") and ("= " in line or line.startswith("# ["))
    ]
    (tmp_path / OWN).write_text("\n".join(told))
    config = read_config(tmp_path / OWN).config
    assert config.builders
    assert config.suppress
    assert set(config.targets) == {"coder"}


def test_a_configured_target_by_name(command: Command, project: Path) -> None:
    ended = command("check", "log", "../log.jsonl", "--target", "own", "--report", "sarif=log.sarif")
    assert ended.code == 0, ended.err
    assert "chatml+paged:16" in ended.out
    assert (project / "templates/log.sarif").exists()


def test_check_build(command: Command, project: Path) -> None:
    (project / "prompts.py").write_text(CLOCK)
    ended = command("check", "build", "prompts:build", "--root", "..", "--vary", "clock")
    assert ended.code == 1, ended.err
    assert "! AC101 volatile-text  prompts.py:4  prompts:build, turn 2" in ended.out
    assert command("check", "build", "prompts").code == 2
    assert command("check", "build", "nothing:build").code == 3
