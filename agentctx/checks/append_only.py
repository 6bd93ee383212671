"""Requests of one conversation, held to what a test allows: the guard behind ``prefix_guard`` and ``assert_append_only``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentctx.checks.log import BUDGET, known_codes
from agentctx.checks.log_budgets import NO_BUDGETS, BudgetCheck, Budgets, Overrun
from agentctx.diagnosis import (
    Exchange,
    Finding,
    LogDiagnosis,
    Loss,
    Target,
    TurnTokens,
    parse_target,
)
from agentctx.diagnosis.report import finding_lines
from agentctx.errors import UsageError
from agentctx.guard import Guard
from agentctx.interchange import write_request
from agentctx.messages import Request

COUNTING = "chatml"
"""The built-in layout, which counts tokens where the target can't: estimates for other models."""
_SHOWN = 40  # turns of a table: the first ones, and those around each break


class PrefixBroken(AssertionError):
    """Requests break their prefix more than the test allows. The message is the table of turns, with was and now."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """What a test allows. ``codes``: findings that don't fail it. Without budgets every other proven finding fails."""

    budgets: Budgets = NO_BUDGETS
    codes: frozenset[str] = frozenset()


class PrefixGuard:
    """Takes the requests of a conversation, one a turn, as an agent sends them.

    Without budgets the first break raises at once, in the line that sends it; with budgets :meth:`verify` judges the whole
    conversation. ``target`` is a target or its name (``agentctx.diagnosis.parse_target``).
    """

    def __init__(self, target: Target | str | None = None, allowed: Allowed | None = None) -> None:
        self.allowed = allowed or Allowed()
        self.target = target if isinstance(target, Target) else parse_target(target or "as-sent")
        self._guard = Guard("warn", target=self.target)
        self._before: list[Exchange] = []
        self._compactions: set[int] = set()

    def check(
        self,
        messages: Iterable[Any],
        tools: Iterable[Any] | None = None,
        *,
        system: Any = None,
        **params: Any,
    ) -> list[Finding]:
        """Take the next request: what the agent passes to its client. Raises ``PrefixBroken`` where no budget is given."""
        __tracebackhide__ = True
        newest = self._guard.newest
        return self._took(newest, self._guard.check(messages, tools, system=system, **params))

    def check_request(self, body: Mapping[str, Any] | Request) -> list[Finding]:
        """Take the next request as a whole body, or as an agentctx ``Request``."""
        __tracebackhide__ = True
        plain = write_request("openai.chat", body) if isinstance(body, Request) else body
        newest = self._guard.newest
        return self._took(newest, self._guard.check_request(plain))

    def replied(self, response: Mapping[str, Any] | Any) -> None:
        """Say what the model answered, body or client object, so that a reply stored otherwise is found."""
        self._guard.replied(response)

    def compacted(self) -> None:
        """Announce that the next request is rewritten on purpose."""
        self._compactions.add(self._guard.turns)
        self._guard.compacted()

    @property
    def exchanges(self) -> list[Exchange]:
        """All requests so far, with their answers where they are known."""
        newest = self._guard.newest
        return [*self._before, *([newest] if newest is not None else [])]

    def verify(self) -> None:
        """Judge what was taken so far. Raises ``PrefixBroken``."""
        __tracebackhide__ = True
        if self.allowed.budgets or self._failing(self._guard.findings):
            report = judge(self.exchanges, self.target, self.allowed, self._compactions)
            if not report.clean:
                raise PrefixBroken("\n".join(report.lines()))

    def _took(self, before: Exchange | None, findings: list[Finding]) -> list[Finding]:
        """Keep the request before the newest one, and fail at once where nothing is allowed."""
        __tracebackhide__ = True
        if before is not None:
            self._before.append(before)
        if self._failing(findings) and not self.allowed.budgets:
            self.verify()
        return findings

    def _failing(self, findings: Iterable[Finding]) -> bool:
        return any(found.code not in self.allowed.codes for found in findings)


@dataclass(frozen=True, slots=True)
class TurnVerdict:
    """A turn: its tokens, and what broke in it."""

    tokens: TurnTokens
    finding: Finding | None


@dataclass(frozen=True, slots=True)
class ConversationReport:
    """A conversation judged. ``counted``: the target whose tokens are told; ``exact``: they are the model's own."""

    target: Target
    counted: Target
    turns: list[TurnVerdict]
    failing: list[Finding]
    overruns: list[Overrun]

    @property
    def clean(self) -> bool:
        return not self.failing and not self.overruns

    def lines(self) -> Iterator[str]:
        """The verdict, the table of turns, and for each break the texts and the remedy."""
        broken = [turn for turn in self.turns if turn.finding is not None]
        yield f"prompts are not append-only: {len(broken)} of {len(self.turns)} turns break the prefix"
        for overrun in self.overruns:
            yield f"budget {overrun.budget.replace('_', '-')}: {overrun}"
        yield ""
        yield from self._table()
        for finding in _once(turn.finding for turn in broken):
            yield ""
            yield from finding_lines(finding)
        if self.counted is not self.target:
            yield ""
            yield f"target {self.target.name}; token counts are estimates, by the built-in layout"

    def _table(self) -> Iterator[str]:
        shown = self._turns_shown()
        for number, turn in enumerate(self.turns, start=1):
            if number not in shown:
                if number - 1 in shown:
                    yield "  …"
                continue
            yield _row(number, turn)

    def _turns_shown(self) -> set[int]:
        broken = [number for number, turn in enumerate(self.turns, start=1) if turn.finding is not None]
        near = {place for number in broken[:_SHOWN] for place in (number - 1, number, number + 1)}
        return (
            near | set(range(1, _SHOWN + 1))
            if len(self.turns) > 2 * _SHOWN
            else set(range(len(self.turns) + 1))
        )


def _row(number: int, turn: TurnVerdict) -> str:
    tokens, found = turn.tokens, turn.finding
    prompt = tokens.prompt or 0
    kept = tokens.stable or 0
    share = f"{100 * kept / prompt:5.1f} %" if prompt else "    - %"
    again = tokens.paid_again or 0
    what = f"  {found.code} {found.info.name}  {found.place or ''}".rstrip() if found is not None else ""
    return (
        f"{'!' if found is not None else ' '} turn {number:>3}  prompt {prompt:>9,}  kept {kept:>9,}  {share}  "
        f"rework {again:>9,}{what}"
    )


def _once(findings: Iterable[Finding | None]) -> list[Finding]:
    """Each finding once: what recurs was folded into one."""
    return list({id(finding): finding for finding in findings if finding is not None}.values())


def judge(
    exchanges: Sequence[Exchange], target: Target, allowed: Allowed, compactions: set[int] | None = None
) -> ConversationReport:
    """Judge the requests of one conversation. ``compactions``: turns (from 0) that were rewritten on purpose."""
    counted = target
    if target.renderer is None:
        layout = parse_target(COUNTING)
        counted = replace(layout, name=target.name)
    rewritten = compactions or set()
    verdicts, turns = _diagnosed(exchanges, target, rewritten)
    if counted is not target:
        turns = _diagnosed(exchanges, counted, rewritten)[1]
    tokens = _tokens(turns, verdicts, rewritten)
    if counted is not target:
        _price(verdicts, tokens)
    check = BudgetCheck(allowed.budgets)
    for turn in tokens:
        check.take(turn)
    failing = [
        finding
        for finding in _once(verdicts)
        if finding.code not in allowed.codes and not allowed.budgets.limits_rework
    ]
    shown = [TurnVerdict(each, finding) for each, finding in zip(tokens, verdicts, strict=True)]
    overruns = [] if BUDGET.code in allowed.codes else check.overruns()
    return ConversationReport(target, counted, shown, failing, overruns)


def _price(verdicts: Sequence[Finding | None], tokens: Sequence[TurnTokens]) -> None:
    """Tell a break's price in the tokens that the table shows."""
    for finding in _once(verdicts):
        again = sum(
            turn.paid_again or 0 for turn, found in zip(tokens, verdicts, strict=True) if found is finding
        )
        finding.loss = Loss(lost=again, again=again)


def _diagnosed(
    exchanges: Sequence[Exchange], target: Target, compactions: set[int]
) -> tuple[list[Finding | None], list[TurnTokens]]:
    """What broke in each turn, and its tokens; suspicions don't count."""
    diagnosis = LogDiagnosis(target)
    found: list[Finding | None] = []
    tokens: list[TurnTokens] = []
    for index, exchange in enumerate(exchanges):
        if index in compactions:
            diagnosis = LogDiagnosis(target)
        finding = diagnosis.feed(exchange, continues=diagnosis.newest)
        counts = finding is not None and finding.verdict == "broken" and not finding.suspected
        if counts and finding is not None and finding.count == 1:
            finding.turn = index
        found.append(finding if counts else None)
        assert diagnosis.turn is not None
        tokens.append(diagnosis.turn)
    diagnosis.result()  # says which findings recur on every turn
    return found, tokens


def _tokens(
    turns: Sequence[TurnTokens], verdicts: Sequence[Finding | None], compactions: set[int]
) -> list[TurnTokens]:
    """The tokens of each turn. What a break makes a server compute again is the last prompt's part behind it."""
    tokens: list[TurnTokens] = []
    for index, (turn, finding) in enumerate(zip(turns, verdicts, strict=True)):
        again = 0
        if finding is not None and index > 0 and index not in compactions:
            again = turn.paid_again or max(0, (tokens[-1].prompt or 0) - (turn.stable or turn.reused or 0))
        cause = "compaction" if index in compactions else finding.cause if finding is not None else None
        tokens.append(
            replace(turn, index=index, turn=index + 1, conversation=1, paid_again=again, cause=cause)
        )
    return tokens


def assert_append_only(
    requests: Iterable[Mapping[str, Any] | Request | Sequence[Any]],
    *,
    target: Target | str | None = None,
    budgets: Budgets | None = None,
    allow: Iterable[str] = (),
) -> None:
    """Assert that each request of a conversation extends the one before.

    ``requests``: bodies, lists of messages, or agentctx Requests, oldest first. ``target``: a target or its name; by default the
    bodies are compared as they are sent. ``allow``: codes of findings that don't fail. Raises ``PrefixBroken`` (an
    ``AssertionError``) with the table of turns, and ``UsageError`` when the same list object is given again and again: what it held
    earlier can't be known any more.
    """
    __tracebackhide__ = True
    guard = PrefixGuard(target, Allowed(budgets or NO_BUDGETS, known_codes(allow)))
    seen: list[Any] = []
    for number, request in enumerate(requests, start=1):
        held = request.get("messages", request.get("input")) if isinstance(request, Mapping) else request
        if isinstance(held, list) and any(held is other for other in seen):
            raise UsageError(
                f"request {number} is the very list of an earlier one; pass a copy of each request as it was sent"
            )
        seen.append(held)
        if isinstance(request, Mapping | Request):
            guard.check_request(request)
        else:
            guard.check(request)
    guard.verify()
