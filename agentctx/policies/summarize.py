"""Policies that put a summary in the place of old turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agentctx.errors import UsageError
from agentctx.history import Compaction, History, Splice
from agentctx.messages import Message
from agentctx.policies.base import EditingPolicy
from agentctx.policies.policy import CountTokens
from agentctx.policies.shape import task_end, turn_starts
from agentctx.policies.stand_in import ExtractiveStandIn
from agentctx.policies.tokens import TokenCounts

Summarizer = Callable[[Sequence[Message], CountTokens], str]


class SummarizeAt(EditingPolicy):
    """One summary: at turn ``at``, turns 1 to ``first`` give way to it. The task, if the log has one, stays."""

    def __init__(self, at: int, first: int, tokens: int) -> None:
        super().__init__()
        if not 1 <= first < at:
            raise UsageError(f"turns 1 to {first} can't be summarized at turn {at}: choose 1 <= first < at")
        self.at, self.first, self.tokens = at, first, tokens
        self._summarizer = ExtractiveStandIn(tokens)

    @property
    def name(self) -> str:
        return f"summarize-at:{self.at},{self.first},{self.tokens}"

    def edit(self, history: History, counts: TokenCounts) -> None:
        """Summarize when the turn has come, once."""
        if history.turns + 1 < self.at or _summarized(history):
            return
        cut = history.turn_end(self.first)
        end = next((i for i, origin in enumerate(history.origins) if origin >= cut), len(history.visible))
        replace_by_summary(history, task_end(history), end, self._summarizer, counts)


class SummarizeAtBudget(EditingPolicy):
    """When the prompt holds more than ``budget`` tokens, the old turns give way to a summary.

    The task and the newest turns of together at most ``keep`` tokens stay as they are. An earlier summary goes into
    the new one. Nothing is done when the part to summarize is no longer than twice the summary.
    """

    def __init__(self, budget: int, keep: int | None = None, tokens: int = 300) -> None:
        super().__init__()
        keep = budget // 4 if keep is None else keep
        if budget < 1 or tokens < 1 or not 0 <= keep < budget:
            raise UsageError(
                f"budget {budget}, keep {keep}, tokens {tokens}: need budget > keep >= 0 and tokens >= 1"
            )
        self.budget, self.keep, self.tokens = budget, keep, tokens
        self._summarizer = ExtractiveStandIn(tokens)

    @property
    def name(self) -> str:
        return f"summarize-budget:{self.budget},{self.keep},{self.tokens}"

    def edit(self, history: History, counts: TokenCounts) -> None:
        """Summarize when the prompt has outgrown the budget."""
        if counts.prompt(history) <= self.budget:
            return
        sums = counts.sums(history)
        start = task_end(history)
        end = next((at for at in turn_starts(history)[1:] if sums[-1] - sums[at] <= self.keep), None)
        if end is None:  # the newest turn alone is longer than what is to be kept
            end = turn_starts(history)[-1] if turn_starts(history) else start
        if sums[end] - sums[start] > 2 * self.tokens:
            replace_by_summary(history, start, end, self._summarizer, counts)


def replace_by_summary(
    history: History, start: int, end: int, summarizer: ExtractiveStandIn, counts: TokenCounts
) -> None:
    """Put one user message with the summary in the place of the visible messages ``[start, end)``."""
    text = summarizer(history.visible[start:end], counts.text)
    if text.strip():
        splice = Splice(start, end, (Message(role="user", content=text),))
        history.compact("summarized", [splice], stand_in=summarizer.is_stand_in)


def _summarized(history: History) -> bool:
    return any(isinstance(event, Compaction) and event.how == "summarized" for event in history.events)
