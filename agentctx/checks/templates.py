"""``agentctx check template``: many templates at once, each in its own time, and what is said about them."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from typing import Any

from agentctx.checks.subject import Subject
from agentctx.checks.template_report import TemplateReport, check_subject, report_line
from agentctx.checks.template_sources import TemplateSource
from agentctx.diagnosis.report import price_of
from agentctx.errors import AgentctxError
from agentctx.reports.check_result import CheckError, CheckResult, Origin, finding_json, same_place
from agentctx.reports.check_text import MARKS, place_of
from agentctx.traces import Session

_WORTH_A_POOL = 6  # templates; starting processes takes longer than fewer do


@dataclass(frozen=True, slots=True)
class TemplateRules:
    """How templates are checked. ``keywords``: how they are used. ``session``: a recorded session to count."""

    keywords: Mapping[str, Any] = field(default_factory=dict)
    session: Session | None = None


def check_template(source: TemplateSource, rules: TemplateRules | None = None) -> TemplateReport:
    """Check one template. What makes that impossible is the report's ``error``."""
    rules = rules or TemplateRules()
    report = _report(source, source.error)
    if source.error:
        return report
    try:
        # Called by its place, so that errors name the file.
        subject = Subject(
            source.source, name=source.place, variables=source.variables, keywords=rules.keywords
        )
        check_subject(report, subject, source.counting(), rules.session)
    except AgentctxError as error:
        return _report(source, str(error))
    if report.cases and all(case.error for case in report.cases):
        # Nothing was compared, so nothing may be called append-only.
        report.error = f"{report.cases[0].error}; no conversation could be rendered"
    return report


def _report(source: TemplateSource, error: str = "") -> TemplateReport:
    return TemplateReport(source.subject, source.location, Origin(source.name, source.place), error=error)


def check_templates(
    sources: Sequence[TemplateSource],
    rules: TemplateRules | None = None,
    *,
    jobs: int | None = None,
    on_done: Callable[[], None] = lambda: None,
) -> list[TemplateReport]:
    """Check all, in their order. ``jobs``: processes (default: one per core when there is much to do)."""
    if jobs is None:
        jobs = (os.cpu_count() or 1) if len(sources) >= _WORTH_A_POOL else 1
    chosen = rules or TemplateRules()
    reports = []
    for report in _run(sources, chosen, min(jobs, max(1, len(sources)))):
        reports.append(report)
        on_done()
    return reports


def _run(sources: Sequence[TemplateSource], rules: TemplateRules, jobs: int) -> Iterator[TemplateReport]:
    if jobs <= 1:
        for source in sources:
            yield check_template(source, rules)
        return
    # Not forked: the parent may have threads.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        futures = [pool.submit(check_template, source, rules) for source in sources]
        for source, future in zip(sources, futures, strict=True):
            try:
                yield future.result()
            except BrokenProcessPool:
                yield _report(source, f"{source.place}: the process that checked it was killed")


def result_of(reports: Sequence[TemplateReport]) -> CheckResult:
    """All reports in the form that every check has."""
    result = CheckResult()
    for report in reports:
        result.origins[report.name] = report.origin
        if report.error:
            result.errors.append(CheckError(report.name, report.file, report.error))
            continue
        result.findings += report.findings
        failed = {finding.case for finding in report.findings if finding.level == "error"}
        result.passed += [
            (report.name, case.name)
            for case in report.cases
            if case.calls == "yes" and case.name not in failed
        ]
    return result


def report_lines(
    reports: Sequence[TemplateReport], result: CheckResult, *, notes: bool = False, brief: bool = False
) -> Iterator[str]:
    """The reports as plain text: a line for each template, and a finding for each line of it. ``notes``: hints as well."""
    for report in reports:
        yield report_line(report, result)
        if report.error or brief:
            continue
        mine = [
            found for found in result.findings if found.subject == report.name and found.file == report.file
        ]
        for group in same_place([found for found in mine if found.level == "error" or notes]):
            yield from _group_lines(group)
        for repair in report.repairs:
            verb = (
                "mends it" if not repair.cost.rework else f"leaves {repair.cost.rework:,} tokens paid again"
            )
            yield f"    with {repair.text}: {verb}"
    yield summary_line(reports, result)
    for note in result.notes:
        yield f"note: {note}"


def _group_lines(group: Sequence[Any]) -> Iterator[str]:
    first = group[0]
    mark = "-" if first.allowed else MARKS[first.level]
    more = (
        f" and {len(group) - 1} more cases"
        if len(group) > 2
        else " and 1 more case"
        if len(group) == 2
        else ""
    )
    yield f"{mark} {first.code} {first.info.name}, {first.cause.replace('_', '-')}  {place_of(first)}  {first.case}{more}"
    yield f"    {first.message}"
    if first.allowed:
        yield f"    allowed: {first.allowed}"
        return
    yield f"    was: {first.was}"
    yield f"    now: {first.now}"
    price = price_of(first.loss)
    if price:
        yield f"    cost of this call: {price}"


def summary_line(reports: Sequence[TemplateReport], result: CheckResult) -> str:
    """One line for all."""
    sound = sum(report.append_only and not report.error for report in reports)
    allowed = sum(bool(finding.allowed) for finding in result.findings)
    parts = [
        f"{len(reports)} template{'' if len(reports) == 1 else 's'}",
        f"{sound} append-only from call to call",
        f"{len(result.failing)} finding{'' if len(result.failing) == 1 else 's'}",
    ]
    parts += [f"{allowed} allowed by the baseline"] if allowed else []
    parts += [f"{len(result.errors)} could not be checked"] if result.errors else []
    return ", ".join(parts)


def reports_json(reports: Sequence[TemplateReport], result: CheckResult) -> dict[str, Any]:
    """All of it as JSON values."""
    by_subject: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for finding in result.findings:
        by_subject.setdefault((finding.subject, finding.file), []).append(finding_json(finding))
    return {
        "schema": 1,
        "exit_code": result.exit_code,
        "templates": [
            _report_json(report, by_subject.get((report.name, report.file), [])) for report in reports
        ],
        "notes": result.notes,
    }


def _report_json(report: TemplateReport, findings: list[dict[str, Any]]) -> dict[str, Any]:
    mended = report.mended_by
    return {
        "name": report.name,
        "file": report.file,
        "error": report.error or None,
        "append_only": None if report.error else report.append_only,
        "cost": asdict(report.cost) if report.cost else None,
        "repairs": [
            {"keywords": dict(repair.keywords), "cost": asdict(repair.cost)} for repair in report.repairs
        ],
        "mended_by": dict(mended.keywords) if mended else None,
        "facts": asdict(report.facts) if report.facts else None,
        "cases": [asdict(case) for case in report.cases],
        "findings": findings,
    }
