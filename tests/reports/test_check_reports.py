"""A check's result in each format, against a golden file and against the format's own rules.

Golden files are written anew with AGENTCTX_WRITE_GOLDEN=1; look at the difference before it is committed.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentctx import __version__
from agentctx.commands.report_options import ReportFormat, written
from agentctx.diagnosis.causes import BY_CODE
from agentctx.diagnosis.findings import Loss
from agentctx.reports.check_result import CheckError, CheckFinding, CheckResult
from agentctx.reports.sarif import sarif

HERE = Path(__file__).parent
GOLDEN = {
    ReportFormat.text: "check.txt",
    ReportFormat.json: "check.json",
    ReportFormat.sarif: "check.sarif",
    ReportFormat.junit: "check.junit.xml",
    ReportFormat.github: "check.annotations.txt",
    ReportFormat.summary: "check.summary.md",
}
SCHEMA = json.loads((HERE / "data/sarif-2.1.0-rtm.5.json").read_text())


def result() -> CheckResult:
    """One finding of each kind, with characters that each format has to escape."""
    return CheckResult(
        findings=[
            CheckFinding(
                subject="qwen.jinja",
                case="c3_reasoning_new_user",
                file="templates/my qwen, v3.jinja",
                line=21,
                code="AC150",
                cause="reasoning_removed",
                message="the next call's prompt leaves the last one after message 6 at character 120, token 31: {%- if x %}",
                was="…<think>⏎100% sure | `yes`",
                now="…<|im_end|>",
                remedy="set preserve_thinking",
                loss=Loss(lost=1234, again=1234, exact=True),
            ),
            CheckFinding(
                subject="app.prompts:build",
                case="turn 2",
                file="app/prompts.py",
                line=12,
                code="AC101",
                cause="volatile_text",
                message="Volatile text in front of the history\nat messages[0].content@42",
                was="It is 09:30. <b>&amp;</b>\x07",
                now="It is 14:47. ]]>",
                remedy="put it in the newest message",
                loss=Loss(lost=10, again=10),
                allowed="demo: the clock, until 2027",
            ),
            CheckFinding(
                subject="qwen.jinja",
                case="f1_chat_with_system",
                file="https://example.com/a template.jinja?x=1",
                line=None,
                code="AC150",
                cause="whitespace",
                message="the stored reply doesn't go on from its prompt",
                level="warning",
            ),
            CheckFinding(
                subject="prod.jsonl",
                case="conversation 1",
                file="",
                line=None,
                code="AC190",
                cause="budget_exceeded",
                message="hit rate 81.0%, at least 90.0% wanted",
                level="note",
            ),
        ],
        errors=[
            CheckError(
                "app.prompts:other", "app/other.py", "turn 3: not done within 5 s, so it was killed: 50%"
            )
        ],
        passed=[("app.prompts:build", "fresh process: clock, cwd"), ("llama.jinja", "a_chat")],
        notes=["the baseline accepts old.jinja, which was not found: take the entry out"],
    )


@pytest.mark.parametrize("form", ReportFormat)
def test_golden(form: ReportFormat) -> None:
    text = written(result(), form).replace(f'"version": "{__version__}"', '"version": "VERSION"')
    path = HERE / "golden" / GOLDEN[form]
    if os.environ.get("AGENTCTX_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def findings() -> st.SearchStrategy[CheckFinding]:
    texts = st.text(max_size=30)
    return st.builds(
        CheckFinding,
        subject=texts,
        case=texts,
        file=st.one_of(
            texts.filter(lambda text: "\0" not in text), st.just("/abs/päth.jinja"), st.just("https://h/a b")
        ),
        line=st.one_of(st.none(), st.integers(1, 10_000)),
        code=st.sampled_from(list(BY_CODE)),
        cause=texts,
        message=texts,
        level=st.sampled_from(["error", "warning", "note"]),
        was=texts,
        now=texts,
        remedy=texts,
        loss=st.builds(Loss, again=st.one_of(st.none(), st.integers(0, 10**9))),
        allowed=texts,
    )


def results() -> st.SearchStrategy[CheckResult]:
    texts = st.text(max_size=30)
    return st.builds(
        CheckResult,
        findings=st.lists(findings(), max_size=3),
        errors=st.lists(st.builds(CheckError, texts, texts, texts), max_size=2),
        passed=st.lists(st.tuples(texts, texts), max_size=2),
    )


@settings(deadline=None, max_examples=50)
@given(results())
def test_sarif_validates(made: CheckResult) -> None:
    value = json.loads(json.dumps(sarif(made, version=__version__)))
    jsonschema.validate(value, SCHEMA, cls=jsonschema.Draft4Validator)


def test_sarif_says_template_line_and_suppression() -> None:
    value = sarif(result(), version=__version__)
    jsonschema.validate(value, SCHEMA, cls=jsonschema.Draft4Validator)
    [run] = value["runs"]
    first, second, third, fourth = run["results"]
    location = first["locations"][0]["physicalLocation"]
    assert location["region"] == {"startLine": 21}
    assert location["artifactLocation"] == {
        "uri": "templates/my%20qwen%2C%20v3.jinja",
        "uriBaseId": "%SRCROOT%",
    }
    assert second["suppressions"][0]["justification"] == "demo: the clock, until 2027"
    assert "region" not in third["locations"][0]["physicalLocation"]
    assert "locations" not in fourth
    rules = run["tool"]["driver"]["rules"]
    assert [rules[entry["ruleIndex"]]["id"] for entry in run["results"]] == [
        "AC150",
        "AC101",
        "AC150",
        "AC190",
    ]
    assert run["invocations"][0]["executionSuccessful"] is False


def test_fingerprints_stay_when_lines_and_texts_move() -> None:
    before, after = result(), result()
    moved = CheckFinding(
        **{**_fields(after.findings[0]), "line": 99, "message": "elsewhere", "was": "", "now": ""}
    )
    after.findings[0] = moved

    def marks(made: CheckResult) -> list[str]:
        return [
            entry["partialFingerprints"]["agentctx/v2"]
            for entry in sarif(made, version="1")["runs"][0]["results"]
        ]

    assert marks(before) == marks(after)
    assert len(set(marks(before))) == 4


def _fields(finding: CheckFinding) -> dict[str, Any]:
    return {name: getattr(finding, name) for name in CheckFinding.__dataclass_fields__}


@settings(deadline=None, max_examples=50)
@given(results())
def test_junit_parses_and_adds_up(made: CheckResult) -> None:
    root = ElementTree.fromstring(written(made, ReportFormat.junit).encode())
    cases = root.findall("testsuite/testcase")
    assert (
        int(root.get("tests", "")) == len(cases) == len(made.findings) + len(made.errors) + len(made.passed)
    )
    assert int(root.get("failures", "")) == len(root.findall(".//failure")) == len(made.failing)
    assert int(root.get("errors", "")) == len(root.findall(".//error")) == len(made.errors)
    assert int(root.get("skipped", "")) == sum(bool(finding.allowed) for finding in made.findings)


_COMMAND = re.compile(
    r"::(error|warning|notice) ((?:file|line|title)=[^,:\r\n]*(?:,(?:line|title)=[^,:\r\n]*)*)::([^\r\n]*)"
)


def _read(text: str) -> str:
    """Undo the escapes as the runner does."""
    for escaped, plain in (("%2C", ","), ("%3A", ":"), ("%0A", "\n"), ("%0D", "\r"), ("%25", "%")):
        text = text.replace(escaped, plain)
    return text


@settings(deadline=None, max_examples=50)
@given(results())
def test_annotations_are_workflow_commands(made: CheckResult) -> None:
    text = written(made, ReportFormat.github)
    lines = text.split("\n")[:-1]
    assert len(lines) == len(made.findings) + len(made.errors)
    for line, finding in zip(lines, made.findings, strict=False):
        match = _COMMAND.fullmatch(line)
        assert match is not None, line
        assert finding.message in _read(match.group(3))
        properties = dict(each.split("=", 1) for each in match.group(2).split(","))
        assert _read(properties.get("file", "")) == finding.file
        assert properties.get("line") == (
            str(finding.line) if finding.line is not None and finding.file else None
        )


@settings(deadline=None, max_examples=50)
@given(results())
def test_a_summary_is_one_table(made: CheckResult) -> None:
    text = written(made, ReportFormat.summary)
    rows = [line for line in text.split("\n") if line.startswith("| ") and not line.startswith("| |")]
    assert len(rows) == len(made.findings)
    for row in rows:
        bare = row.replace("\\\\", "").replace("\\|", "")
        assert bare.count("|") == 6
