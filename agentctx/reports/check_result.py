"""What a check says, whatever it checked: findings with file, line, code, message and cost, and the exit code that follows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from agentctx.diagnosis.causes import BY_CODE, Cause
from agentctx.diagnosis.findings import Loss
from agentctx.diagnosis.report import loss_json

Level = Literal["error", "warning", "note"]
"""``error`` fails a check, ``warning`` costs something once, ``note`` is good to know."""


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """One thing that was found.

    ``subject``: what was checked (a template, a builder, a conversation); ``case``: the case of the battery, or the turn. ``file`` and
    ``line`` (1-based) say where to mend it. ``code`` is one of ``docs/findings``; ``cause`` the word for what happened. ``message`` is one
    line. ``was``/``now``: the texts around the first difference, redacted. ``loss``: what it costs. ``allowed``: the baseline's reason
    for which it doesn't fail.
    """

    subject: str
    case: str
    file: str
    line: int | None
    code: str
    cause: str
    message: str
    level: Level = "error"
    was: str = ""
    now: str = ""
    remedy: str = ""
    loss: Loss = field(default_factory=Loss)
    allowed: str = ""

    @property
    def info(self) -> Cause:
        """The code's entry in the registry."""
        return BY_CODE[self.code]

    @property
    def fails(self) -> bool:
        return self.level == "error" and not self.allowed

    def permitted(self, reason: str) -> CheckFinding:
        """The same, allowed for a reason."""
        return replace(self, allowed=reason)


@dataclass(frozen=True, slots=True)
class CheckError:
    """Something that could not be evaluated."""

    subject: str
    file: str
    message: str


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a subject stands whose name alone doesn't tell it from others: a template.

    ``name``: what it is called. ``place``: its file or URL, relative to where the check ran, with ``:NAME`` for one of several templates in it.
    """

    name: str
    place: str


@dataclass(slots=True)
class CheckResult:
    """All that a check found. ``passed``: names of (subject, case) that were tried and are in order. ``notes``: lines for a reader.

    ``origins``: of subjects that have one, also of those that could not be evaluated.
    """

    findings: list[CheckFinding] = field(default_factory=list)
    errors: list[CheckError] = field(default_factory=list)
    passed: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    origins: dict[str, Origin] = field(default_factory=dict)

    @property
    def failing(self) -> list[CheckFinding]:
        return [finding for finding in self.findings if finding.fails]

    @property
    def exit_code(self) -> int:
        """0 clean, 1 findings, 3 could not evaluate all of it."""
        return 3 if self.errors else 1 if self.failing else 0

    def add(self, other: CheckResult) -> None:
        """Take in another check's result."""
        self.findings += other.findings
        self.errors += other.errors
        self.passed += other.passed
        self.notes += other.notes
        self.origins.update(other.origins)

    @property
    def evaluated(self) -> set[str]:
        """The subjects of which everything was evaluated."""
        tried = {finding.subject for finding in self.findings} | {subject for subject, _ in self.passed}
        return tried - {error.subject for error in self.errors}

    def place(self, subject: str) -> str:
        """Where a subject stands; empty when its name tells it."""
        origin = self.origins.get(subject)
        return origin.place if origin is not None else ""


def fingerprint(finding: CheckFinding, place: str = "") -> str:
    """A name for the finding that stays when lines and texts move: subject, case, code and cause.

    ``place``: where the subject stands (``CheckResult.place``). It takes the place of the subject, which may be called otherwise when
    others of its name are checked, too.
    """
    text = "\0".join((place or finding.subject, finding.case, finding.code, finding.cause))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def finding_json(finding: CheckFinding) -> dict[str, Any]:
    """The finding as JSON values."""
    return {
        "subject": finding.subject,
        "case": finding.case,
        "file": finding.file,
        "line": finding.line,
        "code": finding.code,
        "name": finding.info.name,
        "cause": finding.cause,
        "level": finding.level,
        "message": finding.message,
        "was": finding.was,
        "now": finding.now,
        "remedy": finding.remedy,
        "loss": loss_json(finding.loss),
        "allowed": finding.allowed or None,
    }


def result_json(result: CheckResult) -> dict[str, Any]:
    """The result as JSON values."""
    return {
        "schema": 1,
        "exit_code": result.exit_code,
        "findings": [finding_json(finding) for finding in result.findings],
        "errors": [
            {"subject": error.subject, "file": error.file, "message": error.message}
            for error in result.errors
        ],
        "passed": [{"subject": subject, "case": case} for subject, case in result.passed],
        "notes": result.notes,
    }


def same_place(findings: Sequence[CheckFinding]) -> list[list[CheckFinding]]:
    """Findings of one subject in groups that one mend removes: same file, line, cause, level and reason to be allowed."""
    groups: dict[tuple[Any, ...], list[CheckFinding]] = {}
    for found in findings:
        key = (found.subject, found.file, found.line, found.cause, found.level, found.allowed)
        groups.setdefault(key, []).append(found)
    return list(groups.values())
