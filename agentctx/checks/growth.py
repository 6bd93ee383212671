"""Trying a case: does every prompt extend the one before?

Three questions are asked of a growing conversation. A *state* is the message list after a user message, after an assistant
message, or after all tool results of one step:

- ``stored``: is the rendering of a state, without generation prompt, a prefix of the next state's?
- ``reply``: is the prompt a prefix of the stored conversation with the reply in it?
- ``calls``: is the prompt of one model call a prefix of the next call's? This is what a prefix cache sees.

A pair asks one: are both texts equal?
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from agentctx.checks.battery import Case, Growth, Pair
from agentctx.checks.material import Json
from agentctx.checks.subject import Call, Subject
from agentctx.common_ends import common_start
from agentctx.errors import RenderError
from agentctx.rendering.templates.limits import LimitError

Level = Literal["stored", "reply", "calls", "pair"]
Verdict = Literal["yes", "no", "raises", "n/a"]


@dataclass(frozen=True, slots=True)
class Side:
    """One text of a comparison and how it was made."""

    call: Call
    generation: bool
    text: str


@dataclass(frozen=True, slots=True)
class Break:
    """The first place at which the later text stops extending the earlier one.

    ``offset``: character in both texts. The counts of messages are those of ``before`` and ``after``.
    """

    level: Level
    before: Side
    after: Side
    offset: int

    @property
    def step(self) -> tuple[int, int]:
        """Messages in the earlier call and in the later one."""
        return len(self.before.call.messages), len(self.after.call.messages)

    @property
    def lost(self) -> int:
        """Characters of the earlier text that can't be reused."""
        return len(self.before.text) - self.offset


@dataclass(slots=True)
class CaseResult:
    """The verdicts of a case. ``breaks`` holds the first break of each level; ``worst_lost`` the characters lost at the worst call.

    ``texts``: the stored conversation after each state, or both texts of a pair. ``error``: why the template refuses.
    """

    case: Case
    stored: Verdict = "n/a"
    reply: Verdict = "n/a"
    calls: Verdict = "n/a"
    breaks: dict[Level, Break] = field(default_factory=dict)
    worst_lost: int = 0
    error: str = ""
    texts: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.case.name

    @property
    def first(self) -> Break | None:
        """The break that is told first: of the stored conversation, else of the reply, else of the calls."""
        return next(iter(self.breaks.values()), None)


def run_case(subject: Subject, case: Case) -> CaseResult:
    """Render the case and compare."""
    return _grown(subject, case) if isinstance(case, Growth) else _paired(subject, case)


def _paired(subject: Subject, case: Pair) -> CaseResult:
    result = CaseResult(case)
    try:
        sides = [
            Side(call, case.generation, subject.render(call, case.generation))
            for call in (case.left, case.right)
        ]
    except LimitError:  # it would take as long in every case
        raise
    except RenderError as error:
        return _refused(result, error)
    left, right = sides
    result.texts = [left.text, right.text]
    result.stored = "yes" if left.text == right.text else "no"
    if left.text != right.text:
        found = Break("pair", left, right, common_start(left.text, right.text))
        result.breaks["pair"] = found
        result.worst_lost = found.lost
    return result


def states(messages: Sequence[Json], every_result: bool) -> list[int]:
    """Numbers of messages after which the conversation may stand still."""
    ends = []
    for index, message in enumerate(messages):
        following = messages[index + 1]["role"] if index + 1 < len(messages) else None
        inside = message["role"] == "tool" and following == "tool" and not every_result
        if message["role"] != "system" and not inside:
            ends.append(index + 1)
    return ends


def _grown(subject: Subject, case: Growth) -> CaseResult:
    result = CaseResult(case)
    ends = states(case.messages, case.every_result)

    def side(end: int, generation: bool) -> Side:
        call = Call(case.messages[:end], case.tools, case.keywords)
        return Side(call, generation, subject.render(call, generation))

    try:
        stored = {end: side(end, False) for end in ends}
        result.texts = [each.text for each in stored.values()]
        prompts = {end: side(end, True) for end in ends if case.messages[end - 1]["role"] in ("user", "tool")}
    except LimitError:  # it would take as long in every case
        raise
    except RenderError as error:
        return _refused(result, error)
    steps = list(pairwise(ends))
    result.stored = _judge(result, "stored", [(stored[a], stored[b]) for a, b in steps])
    replies = [(a, b) for a, b in steps if a in prompts and case.messages[b - 1]["role"] == "assistant"]
    result.reply = _judge(result, "reply", [(prompts[a], stored[b]) for a, b in replies])
    calls = list(prompts.values())
    pairs = list(pairwise(calls))
    result.calls = _judge(result, "calls", pairs)
    if result.calls == "no":
        result.worst_lost = max(len(a.text) - common_start(a.text, b.text) for a, b in pairs)
    return result


def _judge(result: CaseResult, level: Level, pairs: Iterable[tuple[Side, Side]]) -> Verdict:
    verdict: Verdict = "n/a"
    for before, after in pairs:
        if not after.text.startswith(before.text):
            offset = common_start(before.text, after.text)
            result.breaks[level] = Break(level, before, after, offset)
            return "no"
        verdict = "yes"
    return verdict


def _refused(result: CaseResult, error: RenderError) -> CaseResult:
    result.stored = result.reply = result.calls = "raises"
    result.error = str(error)
    return result
