"""Several conversations on one server: what others left there is neither paid nor lost by a conversation that never sent it."""

from __future__ import annotations

import pytest

from agentctx.backends.backend import Options
from agentctx.backends.engine import EngineBackend
from agentctx.caches.registry import parse_cache
from agentctx.history import History
from agentctx.rendering import load_renderer
from agentctx.rendering.chatml_reply import read_reply
from agentctx.reports.turn import TurnReport
from agentctx.session import PrefixBroken, Session, SessionParts
from agentctx_engine.models import random_config, random_model
from agentctx_engine.runtime import Engine

RENDERER = load_renderer("chatml")
SPECIAL = RENDERER.tokenizer.special_tokens
COMMON = "shared prompt " * 150
SHORT = Options(max_tokens=2)


def adds_up(turn: TurnReport) -> None:
    assert turn.prompt == turn.reused + turn.reprocessed
    assert turn.reprocessed >= turn.new >= 0
    assert turn.rework == turn.rounding + turn.broken + turn.server
    assert min(turn.rounding, turn.broken, turn.server) >= 0
    assert turn.matches_prediction


def test_sub_agents_share_a_prefix_and_evict_one_another() -> None:
    """Forty blocks for two agents with one system prompt and a third with another."""
    config = random_config("llama", vocab_size=max(SPECIAL.values()) + 1, hidden_size=32, num_layers=1)
    with Engine(random_model(config=config, seed=3), num_blocks=40) as engine:
        backend = EngineBackend(
            engine, lambda ids: read_reply(RENDERER.tokenizer, ids), (SPECIAL["<|im_end|>"],)
        )
        cache = parse_cache("paged:block=16,capacity=40")

        def begun(system: str) -> Session:
            return Session(SessionParts(History(system), RENDERER, cache, strict=True), backend)

        def asked(session: Session, question: str) -> TurnReport:
            session.history.user(question)
            report = session.complete(SHORT).report
            adds_up(report)
            return report

        one, third, two = begun(COMMON), begun("other " * 500), begun(COMMON)
        first = asked(one, "q")
        assert (first.reused, first.new) == (0, first.prompt)
        asked(third, "q")
        shared = asked(two, "q")
        assert 0 < shared.reused < first.prompt - 16  # a part of it was evicted in between
        assert shared.new == shared.reprocessed  # and that is no loss of an agent that has sent nothing yet
        assert (shared.rework, shared.server) == (0, 0)
        assert asked(two, "q2").rework < 16
        asked(third, "q2")
        again = asked(one, "q2")
        assert again.server > 0  # this one had sent it


def test_a_break_is_one_though_somebody_else_sent_the_same() -> None:
    """The other conversation's blocks save the tokens; the client still changed what it had sent."""
    config = random_config("llama", vocab_size=max(SPECIAL.values()) + 1, hidden_size=32, num_layers=1)
    with Engine(random_model(config=config, seed=3), num_blocks=256) as engine:
        backend = EngineBackend(
            engine, lambda ids: read_reply(RENDERER.tokenizer, ids), (SPECIAL["<|im_end|>"],)
        )
        cache = parse_cache("paged:16")
        one, two = (
            Session(SessionParts(History(system), RENDERER, cache, strict=True), backend)
            for system in ("Be kind. " * 40, "Be rude. " * 40)
        )
        for session in (one, two):
            session.history.user("hello " * 40)
            session.complete(SHORT)
        with pytest.raises(PrefixBroken, match=r"messages\[0\]"):
            one.check(two.history.request())
