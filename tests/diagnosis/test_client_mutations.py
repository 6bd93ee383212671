"""A healthy random session, one random change of each kind at a random place: named in turn, place and cause, alone."""

from __future__ import annotations

import random
from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from agentctx.diagnosis import Diagnosis, diagnose_log
from agentctx.diagnosis.causes import CAUSES

from .healthy_sessions import WIRES, Session, make
from .mutations import CLIENT, Expected
from .server_mutations import SERVER, hinted, observed

SEEDS = 14  # sessions of each kind, API and form in the counted run
RATE = 0.99
# These break by themselves on every later turn of the mutated session.
RECURRING = frozenset({"too many markers"})
HINTS = ("", "vllm http://127.0.0.1:8000/v1/chat/completions", "llama-server http://127.0.0.1:8080 -np 1")


def mutated(kind: str, seed: int, api: str, replies: bool) -> tuple[Session, Expected] | None:
    mutate, apis = CLIENT[kind]
    if api not in apis:
        return None
    session = make(seed, next(wire for wire in WIRES if wire == api), replies=replies)
    return mutate(random.Random(f"{kind} {seed} {api}"), session)


def wrong(diagnosis: Diagnosis, expected: Expected, recurring: bool = False) -> str:
    """What is wrong with a diagnosis; empty when it names the one change, and nothing else."""
    if len(diagnosis.findings) != 1:
        return (
            f"{len(diagnosis.findings)} findings: {[(f.cause, f.turn, f.place) for f in diagnosis.findings]}"
        )
    finding = diagnosis.findings[0]
    said = (finding.turn, finding.place, finding.verdict)
    if said != (expected.turn, expected.where, expected.verdict) or finding.cause not in expected.causes:
        return f"{finding.cause} at {said}, expected {expected}: {finding.was!r} {finding.now!r}"
    if finding.count != 1 and not recurring:
        return f"counted {finding.count} times"
    if diagnosis.suspicions:
        return f"suspects {[finding.cause for finding in diagnosis.suspicions]}"
    return ""


@pytest.mark.parametrize("kind", CLIENT)
def test_rate_of_changes_named(kind: str) -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(SEEDS):
        for api in CLIENT[kind][1]:
            for replies in (True, False):
                case = mutated(kind, seed, api, replies)
                if case is not None:
                    session, expected = case
                    fault = wrong(diagnose_log(session.exchanges()), expected, kind in RECURRING)
                    outcomes[fault] += 1
    print(f"{kind}: {outcomes['']} of {outcomes.total()} named, and nothing else")
    assert outcomes.total() >= SEEDS
    assert outcomes[""] >= RATE * outcomes.total(), outcomes


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    kind=st.sampled_from(sorted(CLIENT)),
    seed=st.integers(10_000, 10**9),
    api=st.sampled_from(WIRES),
    replies=st.booleans(),
)
def test_any_change_is_named(kind: str, seed: int, api: str, replies: bool) -> None:
    case = mutated(kind, seed, api, replies)
    if case is not None:
        session, expected = case
        assert not wrong(diagnose_log(session.exchanges()), expected, kind in RECURRING)


@pytest.mark.parametrize("kind", SERVER)
def test_rate_of_server_losses_named(kind: str) -> None:
    outcomes: Counter[str] = Counter()
    for seed in range(3 * SEEDS):
        sessions, expected = SERVER[kind](random.Random(f"{kind} {seed}"), seed)
        log = sessions[0].exchanges()
        for other in sessions[1:]:
            log[expected.turn : expected.turn] = other.exchanges()
            expected = Expected(expected.turn + 1, expected.where, expected.causes, expected.verdict)
        outcomes[wrong(diagnose_log(log), expected)] += 1
    assert outcomes[""] >= RATE * outcomes.total(), outcomes


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**9), api=st.sampled_from(WIRES), replies=st.booleans(), reasoning=st.booleans())
def test_healthy_sessions_give_nothing(seed: int, api: str, replies: bool, reasoning: bool) -> None:
    wire = next(wire for wire in WIRES if wire == api)
    diagnosis = diagnose_log(make(seed, wire, replies=replies, reasoning=reasoning).exchanges())
    assert not diagnosis.findings
    assert not diagnosis.suspicions
    assert diagnosis.conversation_count == 1


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**9), api=st.sampled_from(WIRES), hint=st.sampled_from(HINTS))
def test_healthy_servers_give_nothing(seed: int, api: str, hint: str) -> None:
    session = make(seed, next(wire for wire in WIRES if wire == api))
    diagnosis = diagnose_log(observed(hinted(session, hint if api == "openai.chat" else "")).exchanges())
    assert [(finding.cause, finding.turn, finding.detail) for finding in diagnosis.findings] == []


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seeds=st.lists(st.integers(0, 10**6), min_size=2, max_size=5, unique=True),
    api=st.sampled_from(WIRES),
    order=st.randoms(),
)
def test_interleaved_sessions_are_told_apart(seeds: list[int], api: str, order: random.Random) -> None:
    """Any interleaving of several sessions: as many conversations, no finding, each request in its own."""
    wire = next(wire for wire in WIRES if wire == api)
    sessions = [make(seed, wire).exchanges() for seed in seeds]
    labels: list[int] = []
    log = []
    while any(sessions):
        number = order.choice([n for n, rest in enumerate(sessions) if rest])
        log.append(sessions[number].pop(0))
        labels.append(number)
    diagnosis = diagnose_log(log)
    assert not diagnosis.findings
    found = [next(c.id for c in diagnosis.conversations if index in c.turns) for index in range(len(log))]
    assert len(set(zip(found, labels, strict=True))) == len(seeds) == len(set(found))


def test_every_cause_of_the_client_and_the_server_is_tried() -> None:
    """What no mutation here makes has its own test: template_made (scenarios), unexplained (targets), budgets (checks)."""
    tried = {cause for kind in CLIENT for seed in range(SEEDS) for cause in _causes(kind, seed)}
    tried |= {cause for make_case in SERVER.values() for cause in make_case(random.Random(1), 1)[1].causes}
    assert set(CAUSES) - tried == {"template_made", "budget_exceeded", "unexplained"}


def _causes(kind: str, seed: int) -> frozenset[str]:
    for api in CLIENT[kind][1]:
        case = mutated(kind, seed, api, replies=True)
        if case is not None:
            return case[1].causes
    return frozenset()
