"""Recorded sessions on the bundled engine, three at a time on one memory: every turn is predicted, with room and without."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

import pytest

from agentctx.backends.backend import Options
from agentctx.history import History
from agentctx.messages import Request
from agentctx.replaying import Live, connect
from agentctx.session import Session, SessionParts
from agentctx.traces import Session as Recorded
from agentctx.traces import load
from tests.real.session_runs import corpus_files, recorded_requests

pytestmark = [pytest.mark.corpus, pytest.mark.slow]

LONGEST = 12_000  # tokens of a prompt: what is behind it in a session is left out
TOGETHER = 3
SESSIONS, TURNS = 15, 500
GENERATED = 3
CACHES = [
    "paged:16",
    "paged:block=16,capacity=900",  # 14,400 tokens: one long conversation and a bit
    "radix:page=1",
    "radix:page=1,capacity=14400",
]


@pytest.fixture(scope="module")
def sessions(shared_dir: Path) -> list[Recorded]:
    """Sessions with many turns for little text first."""
    found = [one for file in corpus_files(shared_dir) for one in load(file) if sum(one.generated) > 4]
    return sorted(found, key=lambda one: one.size / sum(one.generated))


def turns_of(live: Live, recorded: Recorded) -> Iterator[Session]:
    """Run a session turn by turn; what the engine wrote is replaced by the recorded reply, and so breaks off there."""
    session = Session(SessionParts(History(), live.renderer, live.cache, name=recorded.id), live.backend)
    requests: Iterator[Request] = recorded_requests(recorded)
    for number, request in enumerate(requests):
        options = Options(max_tokens=GENERATED, temperature=1.0, seed=number)
        prepared = session.check(request, options)
        if len(prepared.prompt) > LONGEST:
            return
        session.observe(prepared, live.backend.complete(prepared.prompt, options))
        yield session


@pytest.mark.parametrize("cache", CACHES)
def test_corpus_sessions_on_the_engine(cache: str, sessions: list[Recorded]) -> None:
    evicted = turns = taken = 0
    with connect("engine", cache=cache) as live:
        queue = list(sessions)
        while queue and (taken < SESSIONS or turns < TURNS):
            together, queue = queue[:TOGETHER], queue[TOGETHER:]
            taken += len(together)
            for row in zip_longest(*(turns_of(live, recorded) for recorded in together)):
                for session in filter(None, row):
                    turn = session.report.turns[-1]
                    assert (turn.cached, turn.mismatch) == (turn.predicted, None), (
                        cache,
                        session.report.session,
                        turn,
                    )
                    evicted += turn.server
                    turns += 1
    assert taken >= SESSIONS
    assert turns >= TURNS
    assert bool(evicted) == ("capacity" in cache), (
        "the limit is there to be felt, and without one nothing is lost"
    )
