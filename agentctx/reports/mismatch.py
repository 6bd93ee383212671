"""Prediction against observation: where a server did something else than its cache model said, and why, if it tells."""

from __future__ import annotations

from dataclasses import replace

from agentctx.backends.backend import Completion
from agentctx.caches.model import Prediction
from agentctx.reports.ledger import Account, split
from agentctx.reports.turn import TurnReport

NOT_REPORTED = "not-reported"
SLOT_TAKEN = "slot-taken"
UNEXPLAINED = "unexplained"


def observed_turn(
    report: TurnReport, account: Account, predicted: Prediction, completion: Completion, *, rounded: int
) -> TurnReport:
    """A predicted turn's report with what the server did. What it reused less than its rules allow is the server's doing.

    ``account`` and ``rounded`` are those that ``report`` was made of.
    """
    cached = completion.usage.cached
    reused = predicted.cached if cached is None else cached
    return replace(
        report,
        predicted=predicted.cached,
        cached=cached,
        **split(account, rounded=rounded, reused=reused)._asdict(),
        mismatch=mismatch(predicted, completion),
    )


def mismatch(predicted: Prediction, completion: Completion) -> str | None:
    """Why the server's count is not the predicted one; ``None`` when it is.

    Only what the server itself said is a cause: that it reported nothing, which slot it took, what it gave as reasons.
    Anything else is ``unexplained``: the rules of the cache model, or what was believed of the server, are wrong.
    """
    cached = completion.usage.cached
    if cached is None:
        return NOT_REPORTED
    if cached == predicted.cached:
        return None
    if None not in (predicted.slot, completion.slot) and predicted.slot != completion.slot:
        return SLOT_TAKEN
    expected = dict(predicted.lost)
    more = {reason: tokens - expected.get(reason, 0) for reason, tokens in completion.lost}
    reason = max(more, key=lambda name: more[name], default=None)
    return reason if reason is not None and more[reason] > 0 else UNEXPLAINED
