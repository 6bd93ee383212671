"""Templates as a Markdown table: what breaks, what it costs, what mends it."""

from __future__ import annotations

from collections.abc import Sequence

from agentctx.checks.template_report import TemplateReport
from agentctx.reports.check_result import CheckFinding, same_place

HEADER = (
    "| template | from call to call | what breaks (line) | tokens paid again | mended by |",
    "|---|---|---|---:|---|",
)


def template_table(reports: Sequence[TemplateReport]) -> str:
    """A row for each template, in the order given."""
    return "\n".join((*HEADER, *map(_row, reports), ""))


def _row(report: TemplateReport) -> str:
    name = report.name.replace("|", "\\|")
    if report.error:
        return f"| {name} | could not be checked | {report.error.replace('|', chr(92) + '|')[:200]} | | |"
    errors = [finding for finding in report.findings if finding.level == "error"]
    verdict = "append-only" if report.append_only else "breaks"
    return f"| {name} | {verdict} | {_breaks(errors)} | {_cost(report)} | {_repair(report)} |"


def _breaks(errors: Sequence[CheckFinding]) -> str:
    """Causes with their lines; those that most conversations of the battery meet come first."""
    groups = sorted(same_place(errors), key=lambda group: (-len(group), group[0].line or 0))
    by_cause: dict[str, list[str]] = {}
    for group in groups:
        first = group[0]
        line = str(first.line) if first.line else "?"
        lines = by_cause.setdefault(first.cause.replace("_", " "), [])
        if line not in lines:
            lines.append(line)
    return "; ".join(f"{cause} ({', '.join(lines)})" for cause, lines in by_cause.items())


def _cost(report: TemplateReport) -> str:
    cost = report.cost
    if cost is None:
        return "refuses the session"
    return f"{cost.rework:,} ({cost.share:.0%})" if cost.rework else "0"


def _repair(report: TemplateReport) -> str:
    mended = report.mended_by
    if mended is not None:
        return f"`{mended.text}`"
    if report.cost is None or not report.cost.rework:
        return ""
    best = min(report.repairs, key=lambda repair: repair.cost.rework, default=None)
    if best is not None and best.cost.rework < report.cost.rework:
        return f"`{best.text}` leaves {best.cost.rework:,}"
    return "no keyword"
