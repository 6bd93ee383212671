"""Reports of turns that ran add up, whatever the server says of them, and say whose count they tell."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentctx.backends.backend import Completion, Delta, Options
from agentctx.caches.model import Prediction
from agentctx.caches.registry import parse_cache
from agentctx.history import History
from agentctx.messages import Message, Request
from agentctx.policies import Turn, parse_policy
from agentctx.rendering import load_renderer
from agentctx.rendering.prompt import Prompt, Renderer, TokenIds
from agentctx.reports.ledger import Account, predicted_turn
from agentctx.reports.mismatch import OTHER_TEMPLATE, UNEXPLAINED, observed_turn
from agentctx.reports.observed import run_line, run_table
from agentctx.reports.tables import turn_dict, turn_line
from agentctx.reports.turn import SessionReport, TurnReport, totals_by_policy
from agentctx.session import Session, SessionParts
from agentctx.usage import Usage

COUNTS = st.none() | st.just(0) | st.integers(0, 60) | st.integers(0, 9000)


def adds_up(turn: TurnReport) -> None:
    assert turn.prompt == turn.reused + turn.reprocessed
    assert turn.reprocessed >= turn.new >= 0
    assert turn.rework == turn.rounding + turn.broken + turn.server
    assert min(turn.rounding, turn.broken, turn.server, turn.reused, turn.predicted) >= 0
    assert turn.predicted <= turn.prompt
    assert 0.0 <= turn.hit_rate <= 1.0


@st.composite
def _turns(draw: st.DrawFn) -> tuple[Account, int, int, bool]:
    """Where a prompt's tokens belong, what the rules would reuse, what is predicted, and whether it is exact."""
    account = Account(*(draw(st.integers(0, 3000)) for _ in range(3)), None)
    rounded, predicted = (draw(st.integers(0, account.total)) for _ in range(2))
    return account, rounded, predicted, draw(st.booleans())


def turn_of(
    account: Account, rounded: int, predicted: int, usage: Usage, *, exact: bool = True
) -> TurnReport:
    prompt = Prompt(np.zeros(account.total, np.int32), "", (), Request(), exact)
    report = predicted_turn(1, Turn(Request()), prompt, account, rounded=rounded, predicted=predicted)
    adds_up(report)
    completion = Completion(Message(role="assistant"), usage)
    return observed_turn(report, account, Prediction(predicted, ()), completion, rounded=rounded)


@settings(max_examples=400, deadline=None)
@given(_turns(), COUNTS, COUNTS)
def test_every_turn_adds_up_whatever_the_server_says(
    turn: tuple[Account, int, int, bool], prompt: int | None, cached: int | None
) -> None:
    account, rounded, predicted, exact = turn
    report = turn_of(account, rounded, predicted, Usage(prompt=prompt, cached=cached), exact=exact)
    adds_up(report)
    assert report.cached == cached
    other = report.prompt != account.total
    assert report.rendered == (account.total if other else None)
    assert report.exact == (exact and not other)
    assert (report.mismatch == OTHER_TEMPLATE) == (exact and other)
    if prompt and prompt >= (cached or 0):
        assert report.prompt == prompt
    if not other:
        assert report.new <= account.new
        assert report.broken <= account.broken


class Says:
    """A backend whose usage is what it is told to say."""

    name = "says"
    takes_tokens = False

    def __init__(self, usages: list[Usage]) -> None:
        self.usages = usages

    def complete(self, prompt: Prompt, options: Options) -> Completion:
        return Completion(Message(role="assistant", content="yes"), self.usages.pop(0))

    def stream(self, prompt: Prompt, options: Options) -> Generator[Delta, None, None]:
        yield Delta(completion=self.complete(prompt, options))


class Exact:
    """The built-in layout, taken for the server's own."""

    def __init__(self, inner: Renderer) -> None:
        self.name, self.tokenizer, self.count = inner.name, inner.tokenizer, inner.count
        self._inner = inner

    def render(self, request: Request, previous: Prompt | None = None) -> Prompt:
        return replace(self._inner.render(request), exact=True)

    def reply_ids(self, prompt: Prompt, reply: Message) -> TokenIds:
        return self._inner.reply_ids(prompt, reply)


ESTIMATED = load_renderer("chatml")


def begun(
    usages: list[Usage], *, exact: bool, cache: str = "paged:16", policy: str = "append-only"
) -> Session:
    renderer: Renderer = Exact(ESTIMATED) if exact else ESTIMATED
    history = History("Be kind. " * 30)
    return Session(SessionParts(history, renderer, parse_cache(cache), parse_policy(policy)), Says(usages))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(COUNTS, COUNTS, st.integers(1, 60)), min_size=1, max_size=6),
    st.booleans(),
    st.sampled_from(["paged:16", "paged:block=16,capacity=64", "slot", "openai:gpt-5.1", "anthropic"]),
    st.sampled_from(["append-only", "window:2", "summarize-budget:150"]),
)
def test_every_session_adds_up_whatever_the_server_says(
    turns: list[tuple[int | None, int | None, int]], exact: bool, cache: str, policy: str
) -> None:
    session = begun([Usage(prompt=a, cached=b) for a, b, _ in turns], exact=exact, cache=cache, policy=policy)
    for _, _, words in turns:
        session.history.user("word " * words)
        adds_up(session.complete().report)
    report = session.report
    assert report.prompt == report.reused + report.reprocessed
    assert report.reprocessed == report.new + report.rework
    assert report.rework_factor >= 1.0
    assert 0.0 <= report.hit_rate <= 1.0
    wrong = [turn for turn in report.turns if turn.matches_prediction is not True]
    assert report.as_predicted + len(wrong) == len(report.turns)
    assert totals_by_policy([report])[0].wrong_turns == len(wrong)


def test_an_estimated_turn_is_told_in_the_servers_tokens() -> None:
    session = begun([Usage(prompt=180, cached=0), Usage(prompt=200, cached=150)], exact=False)
    for question in ("Why?", "And now?"):
        session.history.user(question)
        session.complete()
    first, second = session.report.turns
    assert (first.prompt, first.new, first.rework) == (180, 180, 0)
    assert (second.prompt, second.reprocessed) == (200, 50)
    assert 0 < second.new < 50
    assert not second.exact
    assert second.mismatch in (None, UNEXPLAINED)
    assert second.rendered is not None
    assert f"{second.rendered} rendered" in turn_line(second).plain
    assert session.report.hit_rate == 150 / 380


@pytest.mark.parametrize("cached", [0, None])
def test_an_exact_prompt_that_the_server_counts_otherwise_is_a_finding(cached: int | None) -> None:
    """Also where nothing was reused, as predicted, and where the server does not say what it reused."""
    session = begun([Usage(prompt=5000, cached=cached)], exact=True)
    session.history.user("hi")
    turn = session.complete().report
    assert (turn.prompt, turn.exact, turn.mismatch) == (5000, False, OTHER_TEMPLATE)
    assert turn.matches_prediction is False
    assert session.report.mismatches == (turn,)
    assert session.report.as_predicted == 0
    assert "template" in run_line(session.report)
    assert f"{turn.rendered} rendered" in turn_line(turn).plain
    assert OTHER_TEMPLATE in turn_line(turn).plain
    verdicts = list(run_table(session.report, title="").columns[-1].cells)
    assert verdicts == [f"{OTHER_TEMPLATE} ({turn.rendered} rendered)"]
    assert (turn_dict(turn)["prompt"], turn_dict(turn)["rendered"]) == (5000, turn.rendered)


@pytest.mark.parametrize("usage", [Usage(), Usage(prompt=0, cached=0), Usage(cached=10)])
def test_a_server_that_does_not_count_prompts_is_none(usage: Usage) -> None:
    session = begun([usage], exact=True)
    session.history.user("hi")
    ours = session.check(session.history.request()).report.prompt
    turn = session.complete().report
    assert (turn.prompt, turn.rendered, turn.exact) == (ours, None, True)
    assert turn.mismatch != OTHER_TEMPLATE


def test_reports_of_several_turns_count_each_wrong_turn_once() -> None:
    usages = [Usage(prompt=5000), Usage(prompt=5000, cached=0), Usage()]
    session = begun(usages, exact=True)
    for question in "abc":
        session.history.user(question)
        session.complete()
    report: SessionReport = session.report
    assert (len(report.mismatches), report.unreported, report.as_predicted) == (2, 2, 0)
    assert totals_by_policy([report])[0].wrong_turns == 3
    assert "0 of 3 turns as predicted" in run_line(report)
