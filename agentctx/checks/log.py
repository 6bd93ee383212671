"""``agentctx check log``: request logs and recorded sessions diagnosed, and held against budgets."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from agentctx.checks.log_budgets import NO_BUDGETS, BudgetCheck, Budgets, Overrun
from agentctx.diagnosis import CAUSES, Diagnosis, Finding, LogDiagnosis, Target, cause_of
from agentctx.diagnosis.report import json_schema, text_lines, to_json
from agentctx.errors import AgentctxError, InputError, UsageError
from agentctx.traces import Doubt, LogRecord, Skipped, read_calls

SCHEMA_VERSION = 1
BUDGET = CAUSES["budget_exceeded"]
_MAX_SKIPPED = 20


@dataclass(slots=True)
class LogReport:
    """What a check found in one log.

    ``failing`` are the findings that no budget covers. ``overruns`` are budgets that aren't kept; with ``overruns_allowed`` they don't
    fail. ``unknown`` names the budgets that could not be evaluated.
    ``error``: why the file could not be read to its end; what stands before was diagnosed all the same.
    """

    file: str
    diagnosis: Diagnosis
    failing: list[Finding] = field(default_factory=list)
    overruns: list[Overrun] = field(default_factory=list)
    overruns_allowed: bool = False
    unknown: list[str] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    doubts: list[Doubt] = field(default_factory=list)
    error: AgentctxError | None = None

    @property
    def failing_overruns(self) -> list[Overrun]:
        """The budgets that make the check fail."""
        return [] if self.overruns_allowed else self.overruns

    @property
    def exit_code(self) -> int:
        """0 clean, 1 findings or a budget that isn't kept, 3 could not evaluate all of it."""
        if self.error is not None or self.unknown:
            return 3
        return 1 if self.failing or self.failing_overruns else 0


@dataclass(frozen=True, slots=True)
class LogRules:
    """How logs are judged.

    Without budgets every proven finding fails. A budget for rework allows breaks whose price is known and within it;
    a budget for compactions allows compactions. ``allow`` are codes (``AC115``) that never fail, budgets (``AC190``) among them. ``skip_others``: records
    that are no request to a model are passed over instead of refused.
    """

    target: Target
    budgets: Budgets = NO_BUDGETS
    allow: frozenset[str] = frozenset()
    skip_others: bool = False

    def fails(self, finding: Finding) -> bool:
        """Whether this finding makes the check fail by itself."""
        if finding.code in self.allow:
            return False
        if finding.cause == "compaction" and self.budgets.compactions is not None:
            return False
        return not (self.budgets.limits_rework and finding.loss.again is not None)


def known_codes(codes: Iterable[str]) -> frozenset[str]:
    """Codes or names of findings as codes. Raises ``UsageError`` for one that there isn't."""
    return frozenset(map(_code, codes))


def _code(name: str) -> str:
    try:
        return cause_of(name.lower()).code
    except KeyError:
        near = difflib.get_close_matches(name.lower(), [cause.name for cause in CAUSES.values()], 1)
        advice = (
            f"did you mean {near[0]}?" if near else "write a code such as AC101, or its name, volatile-text"
        )
        raise UsageError(f"no finding is called {name!r}; {advice}") from None


def check_log(paths: str | Sequence[str], rules: LogRules) -> LogReport:
    """Check one log: a file, or several that are pieces of one log, oldest first."""
    pieces = [paths] if isinstance(paths, str) else list(paths)
    diagnosis, budgets = LogDiagnosis(rules.target), BudgetCheck(rules.budgets)
    report = LogReport(pieces[0], diagnosis.result())
    try:
        for call in _calls(pieces, rules, report):
            diagnosis.feed(call)
            if rules.budgets and diagnosis.turn is not None:
                budgets.take(diagnosis.turn)
    except AgentctxError as error:
        report.error = error
    report.diagnosis = diagnosis.result()
    report.failing = [finding for finding in report.diagnosis.findings if rules.fails(finding)]
    report.overruns, report.overruns_allowed = budgets.overruns(), BUDGET.code in rules.allow
    report.unknown = sorted(budgets.unknown)
    return report


def _calls(pieces: Iterable[str], rules: LogRules, report: LogReport) -> Iterator[LogRecord]:
    def skip(other: Skipped) -> None:
        if len(report.skipped) < _MAX_SKIPPED:
            report.skipped.append(other)

    for piece in pieces:
        on_skip = skip if rules.skip_others else None
        yield from read_calls(piece, on_skip=on_skip, on_doubt=report.doubts.append)


def exit_code(reports: Iterable[LogReport]) -> int:
    """The worst of all: 3 when something could not be evaluated, else 1 when something was found."""
    return max((report.exit_code for report in reports), default=0)


# -- shown ------------------------------------------------------------------------------------------------------


def report_lines(report: LogReport, *, suspicions: bool = True) -> Iterator[str]:
    """One log's report as plain text; nothing for a log of which nothing could be read."""
    if report.error is not None and not report.diagnosis.requests:
        return
    yield from text_lines(report.diagnosis, suspicions=suspicions)
    allowed = len(report.diagnosis.findings) - len(report.failing)
    if allowed:
        yield f"{allowed} of {len(report.diagnosis.findings)} findings allowed by budgets or by --allow"
    for overrun in report.overruns:
        mark, allowed_too = (" ", ", allowed") if report.overruns_allowed else ("!", "")
        yield f"{mark} budget {overrun.budget.replace('_', '-')}: {overrun}{allowed_too}"
    for name in report.unknown:
        yield (
            f"! budget {name.replace('_', '-')}: can't be evaluated, the log has no token counts; "
            "give a --target that counts"
        )
    for other in report.skipped:
        yield f"note: {other.file}:{other.line}: passed over, {other.reason}"
    for doubt in report.doubts:
        yield f"note: {doubt.file}:{doubt.line}: {doubt.reason}"


def reports_json(reports: Sequence[LogReport]) -> dict[str, Any]:
    """All reports as JSON values (schema: ``log_schema.json`` beside this module)."""
    return {
        "schema": SCHEMA_VERSION,
        "exit_code": exit_code(reports),
        "logs": [_report_json(report) for report in reports],
    }


def _report_json(report: LogReport) -> dict[str, Any]:
    error = report.error
    return {
        "file": report.file,
        "exit_code": report.exit_code,
        "failing": [finding.code for finding in report.failing],
        "diagnosis": to_json(report.diagnosis),
        "overruns": [
            {
                "budget": overrun.budget,
                "limit": overrun.limit,
                "value": round(overrun.value, 6),
                "conversation": overrun.conversation,
                "place": overrun.place,
                "allowed": report.overruns_allowed,
            }
            for overrun in report.overruns
        ],
        "unknown": list(report.unknown),
        "skipped": [_place_json(other) for other in report.skipped],
        "doubts": [_place_json(doubt) for doubt in report.doubts],
        "error": None
        if error is None
        else {"message": str(error), "line": error.line if isinstance(error, InputError) else None},
    }


def _place_json(told: Skipped | Doubt) -> dict[str, Any]:
    return {"file": told.file, "line": told.line, "reason": told.reason}


@cache
def log_schema() -> dict[str, Any]:
    """The JSON schema of ``reports_json``, with that of a diagnosis put in."""
    text = (files("agentctx.checks") / "log_schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    diagnosis = dict(json_schema())
    schema["$defs"] = {**schema["$defs"], **diagnosis.pop("$defs")}
    diagnosis.pop("$schema")
    schema["$defs"]["diagnosis"] = diagnosis
    return schema
