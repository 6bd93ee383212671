"""A check's result as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from agentctx.diagnosis.report import price_of
from agentctx.reports.check_result import CheckFinding, CheckResult

MARKS = {"error": "!", "warning": "~", "note": "?"}


def check_lines(result: CheckResult) -> Iterator[str]:
    """Findings that fail first, then warnings and what is allowed, then what could not be evaluated, then the sum.

    Notes are counted only: the other formats have them.
    """
    for finding in sorted(result.findings, key=lambda found: not found.fails):
        if finding.level != "note":
            yield from finding_lines(finding)
    for error in result.errors:
        yield f"error {error.subject}: {error.message}"
    for note in result.notes:
        yield f"note: {note}"
    yield summary_line(result)


def finding_lines(finding: CheckFinding) -> Iterator[str]:
    """One finding: where, what, the texts, the price, the remedy."""
    mark = MARKS[finding.level] if not finding.allowed else " "
    yield f"{mark} {finding.code} {finding.info.name}  {place_of(finding)}  {finding.subject}, {finding.case}"
    yield f"    {' '.join(finding.message.split())}"
    if finding.was or finding.now:
        yield f"    was: {finding.was}"
        yield f"    now: {finding.now}"
    price = price_of(finding.loss)
    if price:
        yield f"    cost: {price}"
    if finding.allowed:
        yield f"    allowed: {finding.allowed}"
    elif finding.remedy:
        yield f"    remedy: {finding.remedy}"


def place_of(finding: CheckFinding) -> str:
    """``file:line``."""
    return f"{finding.file}:{finding.line}" if finding.line is not None else finding.file or finding.subject


def summary_line(result: CheckResult) -> str:
    """The whole check in one line."""
    allowed = sum(1 for finding in result.findings if finding.allowed)
    hints = len(result.findings) - len(result.failing) - allowed
    parts = [
        f"{len(result.failing)} failing",
        f"{hints} warnings and notes",
        f"{allowed} allowed",
        f"{len(result.passed)} in order",
    ]
    if result.errors:
        parts.append(f"{len(result.errors)} not evaluated")
    return "check: " + ", ".join(parts)
