"""The command: exit codes, baselines, URLs, and templates that mean harm."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from xml.etree import ElementTree

import pytest

from agentctx.checks import subject
from agentctx.checks.template_sources import TemplateSource
from agentctx.checks.templates import check_template, result_of
from tests.cli.command import Command
from tests.rendering.hostile_templates import GROUPS

CLEAN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{{ c.function | tojson }}{% endfor %}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
BROKEN = "{{ messages | length }} messages\n" + CLEAN


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "clean.jinja").write_text(CLEAN)
    (tmp_path / "broken.jinja").write_text(BROKEN)
    return tmp_path


def test_clean_is_0(command: Command, folder: Path) -> None:
    code, text, _ = command("check", "template", folder / "clean.jinja")
    assert code == 0
    assert "clean: append-only" in text
    assert "1 template, 1 append-only from call to call, 0 findings" in text


def test_a_break_is_1_and_names_the_line(command: Command, folder: Path) -> None:
    code, text, _ = command("check", "template", folder / "broken.jinja")
    assert code == 1
    assert f"{folder / 'broken.jinja'}:1" in text
    assert "{{ messages | length }} messages" in text
    assert "was: 1 messages" in text
    assert "now: 3 messages" in text


@pytest.mark.parametrize(
    "args",
    [
        ("nothing.jinja",),
        ("clean.jinja", "--keyword", "enable_thinking"),
        ("clean.jinja", "--update-baseline"),
        ("clean.jinja", "--update-baseline", "--baseline", "b.json"),
    ],
)
def test_usage_is_2(
    command: Command, folder: Path, args: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert command("check", "template", *args)[0] == 2


def test_an_empty_folder_is_2(command: Command, tmp_path: Path) -> None:
    code, _, error = command("check", "template", tmp_path)
    assert code == 2
    assert "holds no chat template" in error


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("syntax.jinja", "{% for m in messages %}"),
        ("config.json", "{"),
        ("bytes.jinja", "\udcff"),
        ("model.gguf", "not a GGUF"),
    ],
)
def test_what_cannot_be_read_is_3_and_the_rest_is_checked(
    command: Command, folder: Path, name: str, content: str
) -> None:
    path = folder / name
    path.write_bytes(content.encode(errors="surrogateescape"))
    code, text, _ = command("check", "template", path, folder / "clean.jinja")
    assert code == 3
    assert "clean: append-only" in text
    assert "1 could not be checked" in text
    assert path.stem in text


@pytest.mark.parametrize("name", sorted(GROUPS["endless"]))
def test_endless_templates_are_3_in_time(name: str) -> None:
    """One refusal ends the whole check: it isn't tried again in every case."""
    start = time.process_time()
    report = check_template(TemplateSource("hostile", "hostile.jinja", GROUPS["endless"][name]))
    assert time.process_time() - start < subject.MOST_SECONDS
    assert report.error.startswith("hostile")
    assert result_of([report]).exit_code == 3


def test_a_template_that_refuses_everything_is_not_called_append_only() -> None:
    source = "{{ raise_exception('only for embeddings') }}"
    report = check_template(TemplateSource("refusing", "refusing.jinja", source))
    assert "only for embeddings" in report.error
    assert report.error.endswith("; no conversation could be rendered")


def test_a_slow_template_ends_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each text stays within its limit, all together would take minutes."""
    monkeypatch.setattr(subject, "MOST_SECONDS", 1.0)
    slow = "{% for i in range(99) %}{% for j in range(999) %}{% endfor %}{% endfor %}" + CLEAN
    report = check_template(TemplateSource("slow", "slow.jinja", slow))
    assert report.error == "slow.jinja: trying this template takes more than 1 s of CPU time"


def test_a_baseline_accepts_with_a_reason(command: Command, folder: Path) -> None:
    baseline = folder / "accepted.json"
    template = folder / "broken.jinja"
    code, text, error = command(
        "check",
        "template",
        template,
        "--baseline",
        baseline,
        "--update-baseline",
        "--reason",
        "a model of old",
    )
    assert code == 0
    assert f"wrote {baseline}" in error
    code, text, _ = command("check", "template", template, "--baseline", baseline)
    assert code == 0
    assert "allowed: a model of old" in text
    # Mended, the entries cover nothing and are named.
    template.write_text(CLEAN)
    code, text, _ = command("check", "template", template, "--baseline", baseline)
    assert code == 0
    assert "note: the baseline accepts broken" in text
    # A new break isn't covered by entries for others.
    entries = json.loads(baseline.read_text())
    entries["accepted"] = [each for each in entries["accepted"] if each["case"] == "a_chat"]
    baseline.write_text(json.dumps(entries))
    template.write_text(BROKEN)
    assert command("check", "template", template, "--baseline", baseline)[0] == 1


@pytest.fixture
def twins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two templates with one name, in the current folder. One of them breaks, and a baseline accepts that."""
    monkeypatch.chdir(tmp_path)
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "chat.jinja").write_text(BROKEN if folder == "a" else CLEAN)
    return tmp_path


def accepted(file: Path) -> dict[str, set[str]]:
    """A baseline's reasons by subject."""
    found: dict[str, set[str]] = {}
    for entry in json.loads(file.read_text())["accepted"]:
        found.setdefault(entry["subject"], set()).add(entry["reason"])
    return found


def test_what_is_accepted_of_one_template_is_not_of_another_with_its_name(
    command: Command, twins: Path
) -> None:
    update = ("--baseline", "known.json", "--update-baseline", "--reason")
    assert command("check", "template", "a/chat.jinja", *update, "a model of old")[0] == 0
    assert accepted(twins / "known.json") == {"a/chat.jinja": {"a model of old"}}
    assert command("check", "template", "a", "b", "--baseline", "known.json")[0] == 0
    (twins / "b/chat.jinja").write_text(BROKEN)
    assert command("check", "template", "b", "--baseline", "known.json")[0] == 1
    reports = ("--report", "sarif=c.sarif", "--report", "junit=c.xml")
    code, text, _ = command("check", "template", "a", "b", "--baseline", "known.json", *reports)
    assert code == 1
    assert "  a/chat.jinja: breaks" in text
    assert "! b/chat.jinja: breaks" in text
    found = json.loads((twins / "c.sarif").read_text())["runs"][0]["results"]
    assert {entry["properties"]["subject"]: "suppressions" in entry for entry in found} == {
        "a/chat.jinja": True,
        "b/chat.jinja": False,
    }
    assert len({entry["partialFingerprints"]["agentctx/v2"] for entry in found}) == len(found)
    suites = ElementTree.parse(twins / "c.xml").getroot()
    assert {suite.get("name"): suite.get("failures") != "0" for suite in suites} == {
        "a/chat.jinja": False,
        "b/chat.jinja": True,
    }
    # From another folder the paths mean the same files.
    code, text, _ = command("check", "template", twins / "a", "--baseline", twins / "known.json")
    assert code == 0, text


def test_an_entry_by_name_works_where_one_template_has_it(command: Command, twins: Path) -> None:
    file = twins / "known.json"
    file.write_text(json.dumps({"accepted": [{"subject": "chat", "reason": "by name"}]}))
    assert command("check", "template", "a", "--baseline", file)[0] == 0
    code, text, _ = command("check", "template", "a", "b", "--baseline", file)
    assert code == 1
    assert (
        "note: the baseline accepts chat, and 2 templates are called so: write the path of the one that is meant "
        "(a/chat.jinja, b/chat.jinja)" in text
    )
    update = ("--baseline", file, "--update-baseline", "--reason", "seen again")
    assert command("check", "template", "a", "b", *update)[0] == 0
    assert accepted(file) == {"a/chat.jinja": {"by name; seen again"}}
    assert json.loads(file.read_text())["accepted"] == [
        {"subject": "a/chat.jinja", "reason": "by name; seen again"}
    ]


def test_an_update_keeps_what_it_did_not_look_at(command: Command, twins: Path) -> None:
    file = twins / "known.json"
    (twins / "other.jinja").write_text(BROKEN)
    update = ("--baseline", file, "--update-baseline", "--reason")
    assert command("check", "template", "a", *update, "one")[0] == 0
    assert command("check", "template", "other.jinja", *update, "two")[0] == 0
    assert accepted(file) == {"a/chat.jinja": {"one"}, "other.jinja": {"two"}}
    (twins / "a/chat.jinja").write_text("{% for")  # can't be looked at
    code, text, _ = command("check", "template", "a", "b", "other.jinja", *update, "three")
    assert code == 3
    assert "error a/chat.jinja: a/chat.jinja:1: not a valid template" in text
    assert accepted(file) == {"a/chat.jinja": {"one"}, "other.jinja": {"two"}}
    (twins / "a/chat.jinja").write_text(CLEAN)
    assert command("check", "template", "a", "b", *update, "four")[0] == 0
    assert accepted(file) == {"other.jinja": {"two"}}


@pytest.mark.parametrize(
    ("entry", "field"),
    [
        ({"subject": "broken", "case": "a_chat"}, "reason"),
        ({"subject": "broken", "reason": " "}, "reason"),
        ({"reason": "old"}, "subject"),
        ({"subject": "broken", "reason": "old", "until": "May"}, "until"),
        ({"subject": 5, "reason": "old"}, "accepted[0]"),
        ("broken", "accepted[0]"),
    ],
)
def test_a_baseline_without_a_reason_is_refused(
    command: Command, folder: Path, entry: object, field: str
) -> None:
    baseline = folder / "accepted.json"
    baseline.write_text(json.dumps({"schema": 1, "accepted": [entry]}))
    code, _, error = command("check", "template", folder / "broken.jinja", "--baseline", baseline)
    assert code == 3
    assert str(baseline) in error
    assert field in error


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@pytest.fixture
def served(folder: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://user:secret@127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_template_at_a_url(command: Command, served: str, folder: Path) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": BROKEN}))
    code, text, _ = command("check", "template", f"{served}/clean.jinja", "--json")
    assert code == 0
    assert json.loads(text)["templates"][0]["name"] == "clean"
    code, text, _ = command("check", "template", f"{served}/tokenizer_config.json")
    assert code == 1
    assert "secret" not in text


def test_a_url_that_gives_nothing_is_3_and_keeps_the_secret(
    command: Command, served: str, folder: Path
) -> None:
    (folder / "page.json").write_text("{}")
    for place in (f"{served}/gone.jinja?key=hidden", f"{served}/page.json", "http://127.0.0.1:9/x.jinja"):
        code, text, error = command("check", "template", place)
        assert code == 3, place
        assert "could not be checked" in text
        assert "secret" not in text + error
        assert "hidden" not in text + error
