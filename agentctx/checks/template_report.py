"""Checking one template: the battery, the line behind each break, the price in a session, and the keywords that mend it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentctx.checks import growth
from agentctx.checks.agent_session import (
    Repair,
    SessionCost,
    agent_steps,
    keyword_settings,
    recorded_steps,
    session_cost,
    token_at,
)
from agentctx.checks.battery import battery
from agentctx.checks.blame import Blame, find_blame
from agentctx.checks.facts import Facts, read_facts
from agentctx.checks.growth import Break, CaseResult, Verdict, run_case
from agentctx.checks.subject import Subject
from agentctx.checks.template_causes import cause_of
from agentctx.diagnosis.causes import CAUSES
from agentctx.diagnosis.excerpt import excerpt
from agentctx.diagnosis.findings import Loss
from agentctx.rendering.incremental import encode
from agentctx.rendering.tokenizer import Tokenizer
from agentctx.reports.check_result import CheckFinding, CheckResult, Level, Origin
from agentctx.traces import Session

_SEVERITY: dict[growth.Level, Level] = {"calls": "error", "reply": "warning", "pair": "note"}
_TRIALS = ("c6_", "c7_", "c8_", "c9_")  # cases with keywords: what they say is told as repairs


@dataclass(frozen=True, slots=True)
class TemplateCase:
    """A case and its verdicts: of the stored conversation, from prompt to stored reply, from call to call.

    A pair has a verdict on ``stored`` only. ``error``: why the template refuses the case.
    """

    name: str
    about: str
    stored: Verdict
    reply: Verdict
    calls: Verdict
    error: str


@dataclass(slots=True)
class TemplateReport:
    """What was found out about a template. ``name``: what it is called in reports. ``error``: why nothing could be found out."""

    name: str
    file: str
    origin: Origin
    facts: Facts | None = None
    cases: list[TemplateCase] = field(default_factory=list)
    findings: list[CheckFinding] = field(default_factory=list)
    cost: SessionCost | None = None
    repairs: list[Repair] = field(default_factory=list)
    error: str = ""

    @property
    def mended_by(self) -> Repair | None:
        """The keyword setting with which the session has no rework, if it has some without."""
        if self.cost is None or not self.cost.rework:
            return None
        return next((repair for repair in self.repairs if not repair.cost.rework), None)

    @property
    def append_only(self) -> bool:
        """Whether no conversation of the battery, without keywords, breaks from call to call."""
        return not any(finding.level == "error" for finding in self.findings)


def check_subject(
    report: TemplateReport, subject: Subject, tokenizer: Tokenizer, session: Session | None = None
) -> None:
    """Check a template and write into its report. Raises ``RenderError`` when it is unusable.

    ``session``: a recorded session to count instead of the built-in one.
    """
    results = {case.name: run_case(subject, case) for case in battery(subject)}
    report.facts = read_facts(subject, results)
    for name, result in results.items():
        report.cases.append(
            TemplateCase(name, result.case.about, result.stored, result.reply, result.calls, result.error)
        )
        if not name.startswith(_TRIALS):
            report.findings += _findings(report, subject, tokenizer, result)
    _count(report, subject, tokenizer, session)


def _count(
    report: TemplateReport,
    subject: Subject,
    tokenizer: Tokenizer,
    session: Session | None,
) -> None:
    def cost(given: Mapping[str, Any]) -> SessionCost | None:
        steps = agent_steps(subject, given) if session is None else recorded_steps(subject, session, given)
        return session_cost(subject, steps, tokenizer)

    report.cost = cost({})
    if report.cost is None or not report.cost.rework:
        return
    for setting in keyword_settings(subject.template.source):
        found = cost(setting)
        if found is not None:
            report.repairs.append(Repair(tuple(setting.items()), found))


def _findings(
    report: TemplateReport, subject: Subject, tokenizer: Tokenizer, result: CaseResult
) -> list[CheckFinding]:
    """The breaks of a case: from call to call it fails, elsewhere it is a hint."""
    for level, severity in _SEVERITY.items():
        broken = result.breaks.get(level)
        if broken is not None:
            unanswered = level == "calls" and _only_asked_again(subject, broken)
            told: Level = "note" if unanswered else severity
            return [_finding(report, subject, tokenizer, result, broken, told)]
    return []


def _only_asked_again(subject: Subject, broken: Break) -> bool:
    """Whether just the generation prompt is lost, because the call got no reply before more results came: no template can keep it."""
    sent = len(broken.before.call.messages)
    if broken.after.call.messages[sent]["role"] == "assistant":
        return False
    stored = subject.text(broken.before.call)
    return stored is not None and broken.offset >= len(stored)


def _finding(
    report: TemplateReport,
    subject: Subject,
    tokenizer: Tokenizer,
    result: CaseResult,
    broken: Break,
    level: Level,
) -> CheckFinding:
    blame = find_blame(subject, broken.before, broken.after, broken.offset)
    encoded = encode(tokenizer, broken.before.text)
    token = token_at(encoded, broken.offset)
    lost = len(encoded.ids) - token
    return CheckFinding(
        subject=report.name,
        case=result.name,
        file=report.file,
        line=blame.line if blame else None,
        code="AC150",
        cause=cause_of(subject, broken),
        message=_message(subject, result, broken, blame, token),
        level=level,
        was=excerpt(broken.before.text, broken.offset),
        now=excerpt(broken.after.text, broken.offset),
        remedy=CAUSES["template_made"].remedy,
        loss=Loss(lost=lost, again=lost if level != "note" else None, exact=tokenizer.exact),
    )


_WHERE = {
    "calls": "the next call's prompt leaves the last one",
    "reply": "the stored reply doesn't go on from its prompt",
    "pair": "the prompts differ",
    "stored": "the stored conversation changes",
}


def _message(subject: Subject, result: CaseResult, broken: Break, blame: Blame | None, token: int) -> str:
    step = "" if broken.level == "pair" else f" after message {broken.step[0]}"
    place = f"{result.case.about}: {_WHERE[broken.level]}{step} at character {broken.offset}, token {token}"
    if blame is None:
        return place
    lines = subject.template.source.split("\n")
    text = lines[blame.line - 1].strip() if blame.line <= len(lines) else ""
    text = text if len(text) <= 120 else f"{text[:117]}…"
    outcome = f", {blame.was} before and {blame.now} now" if blame.was else ""
    origin = f", by what line {', '.join(map(str, blame.depends_on))} sets" if blame.depends_on else ""
    return f"{place}; {blame.construct}{outcome}{origin}: {text}"


def report_line(report: TemplateReport, result: CheckResult) -> str:
    """One line for a template. ``result``: where its findings stand, with what a baseline allows."""
    if report.error:
        return f"error {report.name}: {report.error}"
    broken = len({found.case for found in report.findings if found.level == "error"})
    verdict = f"breaks in {broken} of {_tried(report.cases)} conversations" if broken else "append-only"
    cost = report.cost
    price = ""
    if cost is not None and cost.rework:
        about = "" if cost.exact else "about "
        price = f"; {about}{cost.rework:,} tokens paid again in {cost.calls} calls ({cost.share:.0%} of the prompts)"
    mended = report.mended_by
    repair = f"; mended by {mended.text}" if mended else ""
    fails = any(
        each.fails and (each.subject, each.file) == (report.name, report.file) for each in result.findings
    )
    return f"{'!' if fails else ' '} {report.name}: {verdict}{price}{repair}"


def _tried(cases: Sequence[TemplateCase]) -> int:
    return sum(case.calls != "n/a" and not case.name.startswith(_TRIALS) for case in cases)
