"""Conversations told apart by content alone: forks, sub-agents, retries, side requests, resumed and compacted ones."""

from __future__ import annotations

import copy
import random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from agentctx.diagnosis import Diagnosis, Exchange, LogDiagnosis, diagnose_log
from agentctx.diagnosis.conversations import Conversations
from agentctx.diagnosis.views import texts_of, view_of

from .healthy_sessions import WIRES, Session, make, paragraph, sentence

MESSAGE_WIRES = tuple(wire for wire in WIRES if wire != "llama.completion")


def labels(diagnosis: Diagnosis) -> list[int]:
    return [
        next(c.id for c in diagnosis.conversations if index in c.turns) for index in range(diagnosis.requests)
    ]


def said(diagnosis: Diagnosis) -> list[tuple[str, int, str | None]]:
    return [(finding.cause, finding.turn, finding.place) for finding in diagnosis.findings]


def user(session: Session, text: str) -> dict[str, Any]:
    if session.api == "openai.responses":
        return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    content: Any = [{"type": "text", "text": text}] if session.api == "anthropic.messages" else text
    return {"role": "user", "content": content}


def assistant(session: Session, text: str) -> dict[str, Any]:
    if session.api == "openai.responses":
        content = [{"type": "output_text", "text": text}]
        return {"type": "message", "role": "assistant", "id": "msg_x", "content": content}
    content_ = [{"type": "text", "text": text}] if session.api == "anthropic.messages" else text
    return {"role": "assistant", "content": content_}


def extended(session: Session, body: dict[str, Any], *more: dict[str, Any]) -> dict[str, Any]:
    made = copy.deepcopy(body)
    made[session.key] += more
    return made


def call(session: Session, body: dict[str, Any], at: float) -> Exchange:
    return Exchange(session.api, body, None, at)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10**6),
    api=st.sampled_from(WIRES),
    count=st.integers(2, 6),
    order=st.randoms(),
    replies=st.booleans(),
)
def test_many_agents_on_one_system_prompt(
    seed: int, api: str, count: int, order: random.Random, replies: bool
) -> None:
    wire = next(wire for wire in WIRES if wire == api)
    rest = [make(seed * 10 + n, wire, head=seed, replies=replies).exchanges() for n in range(count)]
    log, truth = [], []
    while any(rest):
        number = order.choice([n for n, calls in enumerate(rest) if calls])
        log.append(rest[number].pop(0))
        truth.append(number)
    diagnosis = diagnose_log(log)
    assert said(diagnosis) == []
    assert len(set(zip(labels(diagnosis), truth, strict=True))) == count == diagnosis.conversation_count


@pytest.mark.parametrize("api", WIRES)
@pytest.mark.parametrize("seed", range(6))
def test_a_retry_is_no_break(api: Any, seed: int) -> None:
    session = make(seed, api)
    log = session.exchanges()
    at = 1 + seed % (len(log) - 1)
    failed = Exchange(api, log[at].request, {"error": {"type": "timeout"}}, log[at].at)
    diagnosis = diagnose_log([*log[:at], failed, *log[at:]])
    assert said(diagnosis) == []
    assert diagnosis.conversation_count == 1


@pytest.mark.parametrize("api", WIRES)
@pytest.mark.parametrize("seed", range(6))
def test_a_title_request_beside_the_conversation(api: Any, seed: int) -> None:
    session = make(seed, api)
    quoted = make(seed + 100, api, turns=1)
    talk = "\n".join(str(item) for item in session.bodies[0][session.key])
    body = copy.deepcopy(quoted.bodies[0])
    if api == "llama.completion":
        body["prompt"] = f"<|im_start|>user\nTitle for this chat:\n{session.bodies[0]['prompt']}<|im_end|>\n"
    else:
        body[session.key][-1] = user(session, f"Give a title for this conversation:\n{talk}")
    log = session.exchanges()
    diagnosis = diagnose_log([*log[:2], Exchange(api, body), *log[2:]])
    assert said(diagnosis) == []
    assert labels(diagnosis)[:2] == [1, 1]
    assert set(labels(diagnosis)[3:]) == {1}


@pytest.mark.parametrize("api", MESSAGE_WIRES)
@pytest.mark.parametrize("seed", range(6))
def test_a_side_request_that_extends_the_history(api: Any, seed: int) -> None:
    """A question is appended for a summary or a title, and the conversation goes on without it."""
    session = make(seed, api)
    log = session.exchanges()
    at = 1 + seed % (len(log) - 2)
    side = extended(
        session, session.bodies[at], assistant(session, "Well."), user(session, "Summarise so far.")
    )
    diagnosis = diagnose_log([*log[: at + 1], call(session, side, 0), *log[at + 1 :]])
    assert said(diagnosis) == []


@pytest.mark.parametrize("api", MESSAGE_WIRES)
@pytest.mark.parametrize("seed", range(8))
def test_two_branches_that_take_turns(api: Any, seed: int) -> None:
    """A conversation is forked; both branches go on, one request each, with the shared history in front."""
    rng = random.Random(seed)
    session = make(seed, api, turns=4)
    log: list[Exchange] = session.exchanges()[:3]
    branches = [copy.deepcopy(session.bodies[2]) for _ in range(2)]
    for turn in range(4):
        for body in branches:
            body[session.key] += [
                assistant(session, paragraph(rng, 2, 3)),
                user(session, sentence(rng, 9, 15)),
            ]
            log.append(call(session, copy.deepcopy(body), 100.0 + turn))
    diagnosis = diagnose_log(log)
    assert said(diagnosis) == []


@pytest.mark.parametrize("api", MESSAGE_WIRES)
@pytest.mark.parametrize("seed", range(8))
def test_a_change_in_one_of_two_branches(api: Any, seed: int) -> None:
    rng = random.Random(seed)
    session = make(seed, api, turns=4)
    log: list[Exchange] = session.exchanges()[:3]
    branches = [copy.deepcopy(session.bodies[2]) for _ in range(2)]
    start = len(branches[0][session.key])
    for turn in range(4):
        for number, body in enumerate(branches):
            body[session.key] += [
                assistant(session, paragraph(rng, 2, 3)),
                user(session, sentence(rng, 9, 15)),
            ]
            if (turn, number) == (3, 1):
                body[session.key].insert(start + 2, user(session, sentence(rng, 9, 15)))
            log.append(call(session, copy.deepcopy(body), 100.0 + turn))
    diagnosis = diagnose_log(log)
    assert said(diagnosis) == [("message_inserted", len(log) - 1, f"{session.key}[{start + 2}]")]


@pytest.mark.parametrize("api", WIRES)
@pytest.mark.parametrize("seed", range(4))
def test_resumed_after_many_others(api: Any, seed: int) -> None:
    """The second half comes after forty other conversations on the same system prompt."""
    session = make(seed, api, head=seed, turns=6)
    log = session.exchanges()
    others = [call for n in range(40) for call in make(1_000 + n, api, head=seed, turns=2).exchanges()]
    diagnosis = diagnose_log([*log[:3], *others, *log[3:]])
    assert said(diagnosis) == []
    assert diagnosis.conversation_count == 41
    assert {labels(diagnosis)[n] for n in (0, 1, 2, -1, -2, -3)} == {1}


@pytest.mark.parametrize("api", MESSAGE_WIRES)
@pytest.mark.parametrize("seed", range(6))
def test_resumed_with_a_change(api: Any, seed: int) -> None:
    rng = random.Random(seed)
    session = make(seed, api, head=seed, turns=6)
    first = 1 if api == "openai.chat" else 0
    bodies = copy.deepcopy(session.bodies)
    for body in bodies[3:]:
        body[session.key].insert(first + 1, user(session, sentence(rng, 8, 9)))
    log = session.exchanges()[:3]
    log += [call for n in range(20) for call in make(500 + n, api, head=seed, turns=2).exchanges()]
    at = len(log)
    log += [Exchange(api, body, reply) for body, reply in zip(bodies[3:], session.replies[3:], strict=True)]
    cause, turn, place = said(diagnose_log(log))[0]
    assert (cause, turn, place) == ("message_inserted", at, f"{session.key}[{first + 1}]")


@pytest.mark.parametrize("api", MESSAGE_WIRES)
def test_a_whole_history_replaced_by_a_summary(api: Any) -> None:
    """Nothing of the old messages is left; the summary says what it is and retells what was said."""
    session = make(5, api, turns=6)
    said_before = " ".join(text for item in session.bodies[4][session.key] for text in texts_of(item)).split()
    words = " ".join(random.Random(1).sample(said_before, 120))
    summary = f"This session continues from a previous conversation. Summary: {words}"
    first = 1 if api == "openai.chat" else 0
    body = copy.deepcopy(session.bodies[5])
    body[session.key] = [*body[session.key][:first], user(session, summary)]
    log = [*session.exchanges()[:5], call(session, body, 0)]
    diagnosis = diagnose_log(log)
    ((cause, turn, _),) = said(diagnosis)
    assert (cause, turn, diagnosis.conversation_count) == ("compaction", 5, 1)


@pytest.mark.parametrize("api", MESSAGE_WIRES)
@pytest.mark.parametrize("seed", range(5))
def test_a_new_task_on_the_same_agent(api: Any, seed: int) -> None:
    """Like a compaction in shape (a short history after a long one), but about something else."""
    one = make(seed, api, head=seed, turns=6).exchanges()
    two = make(seed + 50, api, head=seed, turns=4).exchanges()
    diagnosis = diagnose_log([*one, *two])
    assert said(diagnosis) == []
    assert diagnosis.conversation_count == 2


@pytest.mark.parametrize("api", MESSAGE_WIRES)
def test_going_back_and_asking_otherwise(api: Any) -> None:
    """A user drops the last exchanges and asks something else: all that is sent again is still in the cache."""
    session = make(3, api, turns=6)
    body = extended(
        session, session.bodies[2], assistant(session, "Yes."), user(session, "And the other shelf?")
    )
    diagnosis = diagnose_log([*session.exchanges()[:5], call(session, body, 0)])
    assert said(diagnosis) == []
    assert diagnosis.conversation_count == 1


def test_samples_of_one_prompt() -> None:
    """The same opening is sent four times, and each sample goes on by itself."""
    rng = random.Random(4)
    session = make(8, "openai.chat", turns=1)
    start = session.bodies[0]
    log = [call(session, start, 0.0) for _ in range(4)]
    bodies = [
        extended(session, start, assistant(session, paragraph(rng)), user(session, "Go on."))
        for _ in range(4)
    ]
    log += [call(session, body, 1.0) for body in bodies]
    bodies = [
        extended(session, body, assistant(session, paragraph(rng)), user(session, "Go on."))
        for body in bodies
    ]
    log += [call(session, body, 2.0) for body in bodies]
    assert said(diagnose_log(log)) == []


def test_responses_linked_by_id() -> None:
    """With ``previous_response_id`` only what is new is sent; the rest lies with the server."""

    def body(text: str, before: str | None) -> dict[str, Any]:
        made: dict[str, Any] = {"model": "gpt-5.1", "instructions": "Be brief.", "input": text}
        return {**made, "previous_response_id": before} if before else made

    log = [
        Exchange(
            "openai.responses",
            body(f"Question {n}", f"resp_{n - 1}" if n else None),
            {"id": f"resp_{n}", "output": []},
        )
        for n in range(4)
    ]
    diagnosis = diagnose_log(log)
    assert said(diagnosis) == []
    assert diagnosis.conversation_count == 1
    changed = Exchange("openai.responses", {**log[3].request, "instructions": "Be long."}, None)
    assert said(diagnose_log([*log[:3], changed])) == [("message_edited", 3, "instructions@3")]


# -- bounded memory -----------------------------------------------------------------------------------------------


def test_only_so_many_states_and_bodies_are_kept() -> None:
    diagnosis = LogDiagnosis()
    small = Conversations(max_states=8, max_keys=400, max_chars=20_000)
    diagnosis._conversations = small
    for seed in range(60):
        for exchange in make(seed, "openai.chat", turns=3).exchanges():
            diagnosis.feed(exchange)
            assert len(small) <= 8
            assert small.kept_keys <= 400 or len(small) == 1
            assert small.kept_chars <= 20_000 or small.kept_bodies == 1
    assert said(diagnosis.result()) == []
    assert diagnosis.result().conversation_count == 60


def test_a_conversation_without_its_body_is_still_recognised() -> None:
    """Its messages' keys remain: a continuation is found, and a changed message is named without its text."""
    session = make(1, "openai.chat", turns=6)
    log = session.exchanges()
    fresh = LogDiagnosis()
    fresh._conversations = Conversations(max_chars=1)
    for exchange in log[:4]:
        fresh.feed(exchange)
    for exchange in make(2, "openai.chat", turns=1).exchanges():
        fresh.feed(exchange)
    assert fresh._conversations.kept_bodies == 1
    fresh.feed(log[4])
    assert said(fresh.result()) == []
    assert fresh.result().conversation_count == 2
    for exchange in make(3, "openai.chat", turns=1).exchanges():
        fresh.feed(exchange)
    body = copy.deepcopy(dict(log[5].request))
    body["messages"][1]["content"] = "Something else altogether, said from the start."
    fresh.feed(Exchange("openai.chat", body))
    assert said(fresh.result()) == [("message_edited", 7, "messages[1]")]


def test_finding_a_conversation_changes_nothing() -> None:
    conversations = Conversations()
    view = view_of(make(1, "openai.chat").exchanges()[0])
    assert conversations.find(view).relation == "new"
    assert len(conversations) == 0
