"""From the findings of a log to those of a check. The data itself is in ``agentctx.reports.check_result``: reports stand below checks."""

from __future__ import annotations

from collections.abc import Iterable

from agentctx.diagnosis.findings import Finding
from agentctx.reports.check_result import (
    CheckError,
    CheckFinding,
    CheckResult,
    Level,
    finding_json,
    result_json,
    same_place,
)

__all__ = [
    "CheckError",
    "CheckFinding",
    "CheckResult",
    "Level",
    "finding_json",
    "of_diagnosis",
    "result_json",
    "same_place",
]


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
