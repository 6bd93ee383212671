"""A strict session lets a compaction through, whoever records it and however often the turn must be tried."""

from __future__ import annotations

import pytest

from agentctx.backends.backend import BackendError, ConnectionFailed
from agentctx.caches.registry import parse_cache
from agentctx.history import History, Splice
from agentctx.messages import Message, Tool
from agentctx.policies import Policy, SummarizeAtBudget
from agentctx.rendering import load_renderer
from agentctx.session import PrefixBroken, Session, SessionParts

from .dictated import Dictated, written

RENDERER = load_renderer("chatml")


def begun(policy: Policy | None = None) -> tuple[Session, Dictated]:
    backend = Dictated(RENDERER, takes_tokens=True)
    history = History("Be kind.", tools=[Tool.of("read", "Read a file.")])
    return Session(
        SessionParts(history, RENDERER, parse_cache("slot"), policy, strict=True), backend
    ), backend


def said(session: Session, backend: Dictated, question: str, answer: str = "certainly") -> None:
    session.history.user(question)
    backend.replies = [written(RENDERER, answer, "<|im_end|>")]
    session.complete()


def goes_on(session: Session, backend: Dictated) -> None:
    """The turn that pays for the compaction runs and says so; the next one pays for nothing."""
    backend.replies = [written(RENDERER, "yes", "<|im_end|>")] * 2
    report = session.complete().report
    assert report.compacted
    assert report.broken > 0
    session.history.user("And then?")
    report = session.complete().report
    assert (report.compacted, report.broken, report.matches_prediction) == (False, 0, True)


def test_a_turn_that_compacted_and_was_not_answered_can_be_tried_again() -> None:
    session, backend = begun(SummarizeAtBudget(200, 40, 30))
    turn = 0
    while session.history.epoch == 0:
        session.history.user(f"Question {turn}. " * 8)
        backend.replies = [written(RENDERER, "certainly", "<|im_end|>")]
        if turn:
            before = len(session.report.turns)
            backend.replies.insert(0, ConnectionFailed("nobody there"))
            with pytest.raises(BackendError):
                session.complete()
            assert len(session.report.turns) == before
            if session.history.epoch:
                break
        session.complete()
        turn += 1
    backend.replies = [ConnectionFailed("still nobody")]
    with pytest.raises(BackendError):
        session.complete()
    goes_on(session, backend)


def test_the_caller_may_record_a_compaction_as_the_error_says() -> None:
    session, backend = begun()
    for question in ("one " * 20, "two", "three"):
        said(session, backend, question)
    session.history.user("four")
    session.history.compact("summarized", [Splice(1, 5, (Message(role="user", content="sum"),))])
    goes_on(session, backend)


def test_a_tool_that_is_added_as_an_epoch_is_no_break() -> None:
    session, backend = begun()
    said(session, backend, "one " * 20)
    session.history.user("two")
    session.history.add_tool(Tool.of("edit", "Edit a file."), "epoch")
    goes_on(session, backend)


def test_a_compaction_excuses_no_turn_but_the_next() -> None:
    session, backend = begun()
    for question in ("one " * 20, "two", "three"):
        said(session, backend, question)
    session.history.user("four")
    session.history.compact("summarized", [Splice(1, 5, (Message(role="user", content="sum"),))])
    goes_on(session, backend)
    session.history.user("five")
    request = session.history.request()
    changed = (Message(role="system", content="Be rude."), *request.messages[1:])
    with pytest.raises(PrefixBroken, match=r"messages\[0\]"):
        session.check(request.model_copy(update={"messages": changed}))
