"""What a policy did besides the turn's own prompt stands in the turn's report: what it asked, and what it could not do."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentctx.backends.backend import BackendError, ConnectionFailed
from agentctx.caches.registry import parse_cache
from agentctx.history import History
from agentctx.policies import SummarizeAtBudget, Summarizer, SummaryTask
from agentctx.policies.summaries import ExtractiveStandIn
from agentctx.rendering import load_renderer
from agentctx.reports.html import comparison_html
from agentctx.reports.observed import run_line
from agentctx.reports.tables import session_line, turn_dict, turn_line
from agentctx.session import Session, SessionParts

from .dictated import Dictated, written

RENDERER = load_renderer("chatml")


def summarized(task: SummaryTask) -> str:
    return "They talked."


def fails(task: SummaryTask) -> str:
    raise RuntimeError("no [key]\ngiven")


def run(
    summarizer: Summarizer, turns: int = 6, each: Callable[[int, Dictated], None] | None = None
) -> Session:
    backend = Dictated(RENDERER, takes_tokens=True)
    policy = SummarizeAtBudget(200, 40, 30, summarizer=summarizer)
    session = Session(
        SessionParts(History("Be kind."), RENDERER, parse_cache("slot"), policy, strict=True), backend
    )
    for turn in range(turns):
        session.history.user(f"Question {turn}. " * 12)
        backend.replies = [written(RENDERER, "certainly", "<|im_end|>")]
        if each is not None:
            each(turn, backend)
        while backend.replies:
            try:
                session.complete()
            except BackendError:
                continue
    return session


def test_what_a_summary_cost_is_in_the_report() -> None:
    session = run(summarized)
    compacted = [turn for turn in session.report.turns if turn.compacted]
    assert compacted
    assert [turn for turn in session.report.turns if turn.asked] == compacted
    for turn in compacted:
        before = session.report.turns[turn.turn - 2]
        # The request extends the last prompt: all of that, and its reply, would be reused.
        assert before.prompt < turn.asked_reused < turn.asked
        assert f"asked {turn.asked:,} for a summary" in turn_line(turn).plain
        assert turn_dict(turn)["asked"] == turn.asked
        assert turn.matches_prediction
    total = f"{session.report.asked:,} tokens asked for summaries"
    assert total in session_line(session.report)
    assert total in run_line(session.report)
    assert not session.report.stand_in


def test_a_summary_whose_turn_failed_is_paid_in_the_turn_that_ran() -> None:
    asked: list[int] = []

    def counted(task: SummaryTask) -> str:
        asked.append(len(RENDERER.render(task.request).token_ids))
        return "They talked."

    def first_fails(turn: int, backend: Dictated) -> None:
        backend.replies.insert(0, ConnectionFailed("nobody there"))

    report = run(counted, each=first_fails).report
    assert report.asked == sum(asked) > 0
    assert [turn.asked for turn in report.turns if turn.asked] == asked


def test_a_stand_in_asks_nobody() -> None:
    report = run(ExtractiveStandIn()).report
    assert any(turn.compacted for turn in report.turns)
    assert report.stand_in
    assert report.asked == 0


def test_a_summarizer_that_fails_is_seen() -> None:
    report = run(fails).report
    failed = [turn for turn in report.turns if turn.problem is not None]
    assert failed
    assert len(failed) == report.problems
    for turn in failed:
        assert turn.problem == "the summarizer failed: RuntimeError: no [key]\ngiven"
        assert "problem: the summarizer failed: RuntimeError: no [key] given" in turn_line(turn).plain
        assert turn_dict(turn)["problem"] == turn.problem
    assert f"{len(failed)} turns with a problem" in session_line(report)
    assert f"{len(failed)} turns with a problem" in run_line(report)
    assert "the summarizer failed" in comparison_html([report], title="run")


@pytest.mark.parametrize("asking", ["own-prefix", "fresh"])
def test_how_it_was_asked_does_not_matter(asking: str) -> None:
    backend = Dictated(RENDERER, takes_tokens=True)
    policy = SummarizeAtBudget(200, 40, 30, summarizer=summarized, asking=asking)
    session = Session(SessionParts(History("Be kind."), RENDERER, parse_cache("paged:16"), policy), backend)
    for turn in range(6):
        session.history.user(f"Question {turn}. " * 12)
        backend.replies = [written(RENDERER, "certainly", "<|im_end|>")]
        session.complete()
    asked = [turn for turn in session.report.turns if turn.asked]
    assert asked
    assert all((turn.asked_reused > 16) == (asking == "own-prefix") for turn in asked)
