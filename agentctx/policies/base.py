"""What all policies share: seal, edit, summarize, build the request, say what was dropped."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Generator, Sequence
from dataclasses import dataclass, field

from agentctx.errors import UsageError
from agentctx.history import Compaction, History, Splice
from agentctx.messages import Message
from agentctx.policies.policy import CountTokens, Dropped, SideRequest, Turn
from agentctx.policies.summaries import Asking, Summarizer, SummaryTask, summary_task
from agentctx.policies.tokens import TokenCounts


@dataclass(frozen=True, slots=True)
class SummaryPlan:
    """A summary of at most ``tokens`` tokens is to take the place of the visible messages ``[start, end)``."""

    start: int
    end: int
    tokens: int
    summarizer: Summarizer
    asking: Asking


@dataclass(slots=True)
class _Progress:
    """What happened so far in a turn."""

    events: int
    asked: list[SideRequest] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def note(self, problem: str | None) -> None:
        if problem is not None:
            self.problems.append(problem)


class EditingPolicy(ABC):
    """A policy that decides once a turn which compactions to record, and then sends what is visible.

    ``turn`` and ``aturn`` do the same; only ``aturn`` can wait for a summarizer that is a coroutine function.
    """

    def __init__(self) -> None:
        self._counts: TokenCounts | None = None
        self._known: dict[int, Dropped] = {}
        self._dropped: tuple[Dropped, ...] = ()
        self._events = 0

    @property
    @abstractmethod
    def name(self) -> str:
        """The policy as a spec string, parameters included."""

    def edit(self, history: History, counts: TokenCounts) -> str | None:
        """Record the compactions of this turn that need no summary. The history is sealed.

        Returns what went wrong, if anything did.
        """
        return None

    def plan(self, history: History, counts: TokenCounts) -> SummaryPlan | None:
        """The summary that this turn needs, if any. Called after ``edit``."""
        return None

    def members(self) -> Sequence[EditingPolicy]:
        """The policies that act, in their order: this one, or the parts of a composition."""
        return (self,)

    def turn(self, history: History, count: CountTokens) -> Turn:
        """The request for the next model call. ``count`` gives the tokens of a text.

        A summarizer that fails or answers nothing leaves the history as it was; the turn's ``problem`` says so. Raises
        ``UsageError`` when a summarizer is asynchronous, and ``HistoryError`` while a tool call has no result.
        """
        steps = self._steps(history, count)
        reply: _Reply | None = None
        while True:
            try:
                plan, task = steps.send(reply)
            except StopIteration as done:
                return _answer_of(done)
            answer = _asked(plan, task)
            if isinstance(answer, Awaitable):
                _discard(answer)
                raise UsageError("the summarizer is asynchronous: await policy.aturn(...) instead of turn")
            reply = _reply_of(answer)

    async def aturn(self, history: History, count: CountTokens) -> Turn:
        """``turn`` for asynchronous callers: a summarizer may be a function or a coroutine function."""
        steps = self._steps(history, count)
        reply: _Reply | None = None
        while True:
            try:
                plan, task = steps.send(reply)
            except StopIteration as done:
                return _answer_of(done)
            answer = _asked(plan, task)
            reply = _reply_of(await _awaited(answer) if isinstance(answer, Awaitable) else answer)

    def _steps(self, history: History, count: CountTokens) -> _Steps:
        """A turn, which waits wherever a summarizer is to be asked and goes on with its reply."""
        if self._counts is None:
            self._counts = TokenCounts(count)
        counts = self._counts
        history.seal()
        progress = _Progress(len(history.events))
        for member in self.members():
            progress.note(member.edit(history, counts))
            plan = member.plan(history, counts)
            if plan is not None:
                task = summary_task(history, plan.start, plan.end, plan.tokens, plan.asking, counts.text)
                reply = yield plan, task
                assert reply is not None, "only the first step is begun without a reply"
                _finish(history, counts, plan, task, reply, progress)
        return self._answer(history, counts, progress)

    def _answer(self, history: History, counts: TokenCounts, progress: _Progress) -> Turn:
        events = history.events
        new = [event for event in events[progress.events :] if isinstance(event, Compaction)]
        rewrites = [event.rewrites_at for event in new if event.rewrites_at is not None]
        rewritten = _paid_again(history, counts, min(rewrites)) if rewrites else 0
        return Turn(
            request=history.request(),
            dropped=self._all_dropped(history, counts, len(events)),
            rewrites_at=min(rewrites) if rewrites else None,
            rewritten=rewritten,
            compacted=bool(rewrites),
            stand_in=any(event.stand_in for event in events if isinstance(event, Compaction)),
            problem="; ".join(progress.problems) or None,
            asked=tuple(progress.asked),
        )

    def _all_dropped(self, history: History, counts: TokenCounts, events: int) -> tuple[Dropped, ...]:
        if events != self._events:
            self._events = events
            known = self._known
            for index, how in history.fates.items():
                if index not in known or known[index].how != how:
                    known[index] = Dropped(index, counts.message(history[index]), how)
            self._dropped = tuple(known[index] for index in sorted(known))
        return self._dropped


_Reply = str | Exception
_Steps = Generator[tuple[SummaryPlan, SummaryTask], _Reply | None, Turn]


def _answer_of(done: StopIteration) -> Turn:
    turn: Turn = done.value
    return turn


def _asked(plan: SummaryPlan, task: SummaryTask) -> object:
    """What the caller's summarizer returns, or the error that it raises."""
    try:
        return plan.summarizer(task)
    except Exception as error:
        return error


def _reply_of(answer: object) -> _Reply:
    if isinstance(answer, str | Exception):
        return answer
    return TypeError(f"it returned {type(answer).__name__}, not a text")


async def _awaited(answer: Awaitable[object]) -> object:
    try:
        return await answer
    except Exception as error:
        return error


def _finish(
    history: History,
    counts: TokenCounts,
    plan: SummaryPlan,
    task: SummaryTask,
    reply: _Reply,
    progress: _Progress,
) -> None:
    """Record the summary, or why there is none."""
    if isinstance(reply, Exception):
        progress.problems.append(f"the summarizer failed: {type(reply).__name__}: {reply}")
        return
    summary = Message(role="user", content=reply)
    stand_in = bool(getattr(plan.summarizer, "is_stand_in", False))
    progress.asked.append(
        SideRequest(task.request, Message(role="assistant", content=reply), task.asking, stand_in)
    )
    if not reply.strip():
        progress.problems.append("the summarizer answered nothing")
        return
    sums = counts.sums(history)
    replaced = sums[plan.end] - sums[plan.start]
    if counts.message(summary) >= replaced:
        progress.problems.append(
            f"the summary is no shorter than the {replaced} tokens that it was to replace"
        )
        return
    history.compact("summarized", [Splice(plan.start, plan.end, (summary,))], stand_in=stand_in)


def _paid_again(history: History, counts: TokenCounts, start: int) -> int:
    """Tokens from visible message ``start`` on that are not new in this turn: summaries, and what stands behind the cut."""
    sent = history.turn_end(history.turns) if history.turns else 0
    visible, origins = history.visible, history.origins
    return sum(counts.message(visible[i]) for i in range(start, len(visible)) if origins[i] < sent)


def _discard(answer: Awaitable[object]) -> None:
    if inspect.iscoroutine(answer):
        answer.close()
