"""A check's result for GitHub: annotations (workflow commands) and the Markdown of a job summary.

Source: https://docs.github.com/en/actions/reference/workflows-and-actions/workflow-commands
"""

from __future__ import annotations

import html
from collections.abc import Iterator

from agentctx.diagnosis.report import price_of
from agentctx.reports.check_result import CheckFinding, CheckResult
from agentctx.reports.check_text import place_of, summary_line

_COMMANDS = {"error": "error", "warning": "warning", "note": "notice"}
_ROWS = 200  # a job summary may have 1 MiB


def annotation_lines(result: CheckResult) -> Iterator[str]:
    """One workflow command a line. What is allowed is a notice."""
    for finding in result.findings:
        command = "notice" if finding.allowed else _COMMANDS[finding.level]
        properties = {"file": finding.file} if finding.file else {}
        if finding.line is not None and finding.file:
            properties["line"] = str(finding.line)
        properties["title"] = f"{finding.code} {finding.info.title}"
        yield _command(command, properties, _message(finding))
    for error in result.errors:
        properties = {"file": error.file} if error.file else {}
        yield _command(
            "error", {**properties, "title": "could not evaluate"}, f"{error.subject}: {error.message}"
        )


def _message(finding: CheckFinding) -> str:
    lines = [f"{finding.subject}, {finding.case}: {finding.message}"]
    if finding.was or finding.now:
        lines += [f"was: {finding.was}", f"now: {finding.now}"]
    if finding.allowed:
        lines.append(f"allowed: {finding.allowed}")
    elif finding.remedy:
        lines.append(f"remedy: {finding.remedy}")
    return "\n".join(lines)


def _command(name: str, properties: dict[str, str], message: str) -> str:
    given = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{name} {given}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def job_summary(result: CheckResult) -> str:
    """Markdown: a verdict, a table of findings, what could not be evaluated."""
    verdict = {0: "✅ prompts stay append-only", 1: "❌ prompts break their prefix"}
    lines = [f"## agentctx: {verdict.get(result.exit_code, '⚠️ not everything could be evaluated')}", ""]
    if result.findings:
        lines += ["| | code | where | what | cost |", "|:--|:--|:--|:--|--:|"]
        shown = sorted(result.findings, key=lambda finding: not finding.fails)
        lines += [_row(finding) for finding in shown[:_ROWS]]
        if len(shown) > _ROWS:
            lines.append(f"\n… and {len(shown) - _ROWS:,} more")
        lines.append("")
    lines += [f"- ⚠️ {_cell(error.subject)}: {_cell(error.message)}" for error in result.errors]
    lines += [""] if result.errors else []
    lines += [f"{_cell(summary_line(result))}", ""]
    return "\n".join(lines)


def _row(finding: CheckFinding) -> str:
    mark = "allowed" if finding.allowed else "**fails**" if finding.fails else finding.level
    what = f"{_cell(finding.subject)}, {_cell(finding.case)}: {_cell(finding.message)}"
    if finding.was or finding.now:
        what += f"<br>was: {_code(finding.was)}<br>now: {_code(finding.now)}"
    what += f"<br>{_cell(finding.allowed or finding.remedy)}" if finding.allowed or finding.remedy else ""
    return (
        f"| {mark} | {finding.code} | {_code(place_of(finding))} | {what} | {price_of(finding.loss) or '-'} |"
    )


def _cell(text: str) -> str:
    """Text in a cell: no markup of its own, on one line."""
    escaped = html.escape(" ".join(text.split()), quote=False)
    return "".join(f"\\{c}" if c in "|*_`[]\\~@#" else c for c in escaped)


def _code(text: str) -> str:
    escaped = html.escape(text.replace("\n", " "), quote=False).replace("|", "&#124;")
    return f"<code>{escaped}</code>"
