"""Prediction against observation: where a server did something else than its cache model said, and why, if it tells."""

from __future__ import annotations

from dataclasses import replace

from agentctx.backends.backend import Completion
from agentctx.caches.model import Prediction
from agentctx.reports.ledger import Account, scaled, split
from agentctx.reports.turn import NOT_REPORTED, OTHER_TEMPLATE, TurnReport
from agentctx.usage import Usage

SLOT_TAKEN = "slot-taken"
SENT_AGAIN = "sent-again"
UNEXPLAINED = "unexplained"


def observed_turn(
    report: TurnReport, account: Account, predicted: Prediction, completion: Completion, *, rounded: int
) -> TurnReport:
    """A predicted turn's report with what the server did. What it reused less than its rules allow is the server's doing.

    ``account`` and ``rounded`` are those that ``report`` was made of. Where the server counts other prompt tokens than were
    rendered, the turn is told in the server's: its count is the prompt, ours are scaled to it, and the turn is no longer exact.
    """
    cached = completion.usage.cached
    rendered, total = report.prompt, counted_prompt(report.prompt, completion.usage)
    if total != rendered:
        account = account.scaled(total)
        rounded = scaled(rounded, rendered, total)
        predicted = replace(predicted, cached=scaled(predicted.cached, rendered, total))
    return replace(
        report,
        prompt=total,
        rendered=None if total == rendered else rendered,
        exact=report.exact and total == rendered,
        predicted=predicted.cached,
        cached=cached,
        **split(account, rounded=rounded, reused=predicted.cached if cached is None else cached)._asdict(),
        mismatch=OTHER_TEMPLATE if report.exact and total != rendered else mismatch(predicted, completion),
    )


def counted_prompt(rendered: int, usage: Usage) -> int:
    """The prompt's tokens: as the server counts them, where it says so, else those ``rendered``; never fewer than it reused.

    A server that says 0, or fewer than it reused, has not counted the prompt.
    """
    cached = usage.cached or 0
    said = usage.prompt or 0
    return said if said and said >= cached else max(rendered, cached)


def mismatch(predicted: Prediction, completion: Completion) -> str | None:
    """Why the server's count of what it reused is not the predicted one; ``None`` when it is.

    Only what was seen is a cause: what the server said (nothing, which slot it took, its reasons), and that the same request had
    been sent before over a connection that broke, when more was reused: the server may have read the prompt then.
    Anything else is ``unexplained``: the rules of the cache model, or what was believed of the server, are wrong.
    """
    cached = completion.usage.cached
    if cached is None:
        return NOT_REPORTED
    if cached == predicted.cached:
        return None
    if None not in (predicted.slot, completion.slot) and predicted.slot != completion.slot:
        return SLOT_TAKEN
    if completion.unanswered and cached > predicted.cached:
        return SENT_AGAIN
    expected = dict(predicted.lost)
    more = {reason: tokens - expected.get(reason, 0) for reason, tokens in completion.lost}
    reason = max(more, key=lambda name: more[name], default=None)
    return reason if reason is not None and more[reason] > 0 else UNEXPLAINED
