"""TurnTokens: what one call of a log cost, for whoever adds it up or holds it against a budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentctx.diagnosis.costs import tokens_of
from agentctx.diagnosis.findings import Finding
from agentctx.diagnosis.turns import Turn

if TYPE_CHECKING:
    from agentctx.diagnosis.counting import Counts
    from agentctx.diagnosis.tokens import Account


@dataclass(frozen=True, slots=True)
class TurnTokens:
    """Tokens of one call. ``index`` counts the log's calls from 0, ``turn`` the conversation's from 1.

    ``prompt`` and ``reused``: as the server reported them, else as the target counts them; None where neither does.
    ``paid_again``: tokens that a proven break made the server compute again; None where a break's size is unknown.
    ``stable``: leading tokens that the prompt has in common with the one that it goes on from; None for a first one
    and for a branch. ``exact``: counted, not estimated. ``cause``: of the break, if there is one.
    """

    index: int
    turn: int
    conversation: int
    file: str | None
    line: int | None
    prompt: int | None
    reused: int | None
    paid_again: int | None
    stable: int | None
    exact: bool
    cause: str | None = None

    @property
    def place(self) -> str:
        """File and line, for messages."""
        return f"{self.file or 'request'}:{self.line or self.index + 1}"


def turn_tokens(turn: Turn, counts: Counts | None, finding: Finding | None, share: float) -> TurnTokens:
    """The tokens of a judged turn. ``finding`` is the one that this turn alone led to, before it was folded; ``share`` the
    part of the earlier prompt, in characters, before the break.
    """
    proven = finding is not None and not finding.suspected
    counted = counts.account if counts is not None else None
    prompt, reused = _prompt_and_reused(turn, counts)
    return TurnTokens(
        index=turn.index,
        turn=turn.conversation.requests,
        conversation=turn.conversation.id,
        file=turn.call.file,
        line=turn.call.line,
        prompt=prompt,
        reused=reused,
        paid_again=finding.loss.again if finding is not None and proven else 0,
        stable=_stable(turn, counted, share if finding is not None else 1.0),
        exact=counted.exact if counted is not None else False,
        cause=finding.cause if finding is not None and proven else None,
    )


def _prompt_and_reused(turn: Turn, counts: Counts | None) -> tuple[int | None, int | None]:
    usage = turn.usage
    if usage is not None and usage.prompt is not None and usage.cached is not None:
        return usage.prompt, usage.cached
    if counts is None:
        return (usage.prompt if usage is not None else None), None
    return counts.prompt, counts.reused


def _stable(turn: Turn, counted: Account | None, share: float) -> int | None:
    state = turn.before
    if state is None or turn.match.relation == "branch":
        return None
    if counted is not None:
        return counted.shared
    size = tokens_of(state)
    return int(size * share) if size is not None else None
