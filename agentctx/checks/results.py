"""From the findings of a log to those of a check. The data itself is in ``agentctx.reports.check_result``: reports stand below checks."""

from __future__ import annotations

from collections.abc import Iterable

from agentctx.checks.log import BUDGET, LogReport
from agentctx.checks.log_budgets import Overrun
from agentctx.diagnosis.findings import Finding
from agentctx.reports.check_result import CheckError, CheckFinding, CheckResult


def of_diagnosis(findings: Iterable[Finding], subject: str) -> list[CheckFinding]:
    """A log's findings in this form."""
    return [
        CheckFinding(
            subject=subject,
            case=f"conversation {found.conversation}, request {found.turn + 1}",
            file=found.file or subject,
            line=found.line,
            code=found.code,
            cause=found.cause,
            message=found.detail or found.info.title,
            level="note" if found.suspected else "error",
            was=found.was,
            now=found.now,
            remedy=found.remedy,
            loss=found.loss,
        )
        for found in findings
    ]


def of_log(report: LogReport) -> CheckResult:
    """A log's report in this form: what fails, the budgets that aren't kept, what could not be evaluated."""
    result = CheckResult(findings=of_diagnosis(report.failing, report.file))
    result.findings += [_of_overrun(overrun, report.file) for overrun in report.failing_overruns]
    result.errors += [
        CheckError(
            report.file,
            report.file,
            f"budget {name.replace('_', '-')}: the log has no token counts; give a target that counts",
        )
        for name in report.unknown
    ]
    if report.error is not None:
        result.errors.append(CheckError(report.file, report.file, str(report.error)))
    if not result.findings and not result.errors:
        result.passed.append((report.file, f"{report.diagnosis.requests} requests"))
    result.notes += [f"{other.file}:{other.line}: passed over, {other.reason}" for other in report.skipped]
    result.notes += [f"{doubt.file}:{doubt.line}: {doubt.reason}" for doubt in report.doubts]
    return result


def of_logs(reports: Iterable[LogReport]) -> CheckResult:
    """The reports of several logs as one result."""
    result = CheckResult()
    for report in reports:
        result.add(of_log(report))
    return result


def _of_overrun(overrun: Overrun, file: str) -> CheckFinding:
    place, _, line = overrun.place.rpartition(":")
    return CheckFinding(
        subject=file,
        case=f"conversation {overrun.conversation}, budget {overrun.budget.replace('_', '-')}",
        file=place.rpartition(" ")[2] or file,
        line=int(line) if line.isdigit() else None,
        code=BUDGET.code,
        cause=BUDGET.word,
        message=str(overrun),
        remedy=BUDGET.remedy,
    )
