"""Conversations that open alike: an equal first message is sent by helpers, to other models, on other days, by other users."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from agentctx.diagnosis import Api, Diagnosis, Exchange, diagnose_log

from .healthy_sessions import WIRES, Session, make, paragraph
from .mutations import changed, prepared

Body = dict[str, Any]
REPLIES = pytest.mark.parametrize("replies", [True, False], ids=["replies", "bodies"])
WIRE = pytest.mark.parametrize("api", WIRES)
MESSAGE_WIRE = pytest.mark.parametrize("api", [wire for wire in WIRES if wire != "llama.completion"])
HELPER = "You judge messages. Answer with one word, SAFE or UNSAFE, and say nothing else."


def runs(api: Api, count: int, replies: bool, seed: int = 7) -> list[Session]:
    """Sessions of one agent on one task: equal tools, system prompt and first message, and then each its own way."""
    made = [make(seed + n, api, head=seed, replies=replies, turns=4) for n in range(count)]
    first = made[0].bodies[0][made[0].key]
    for session in made[1:]:
        own = session.bodies[0][session.key]
        for body in session.bodies:
            body[session.key] = first + body[session.key][len(own) :]
    return [replace(session, bodies=copy.deepcopy(session.bodies)) for session in made]


def system_edited(session: Session, edit: Callable[[str], str]) -> Session:
    """A copy with another text before all messages."""

    def change(body: Body) -> None:
        if session.api == "openai.chat":
            body["messages"][0]["content"] = edit(body["messages"][0]["content"])
        elif session.api == "openai.responses":
            body["instructions"] = edit(body["instructions"])
        elif session.api == "anthropic.messages":
            body["system"][0]["text"] = edit(body["system"][0]["text"])
        else:
            head, end, rest = body["prompt"].partition("<|im_end|>")
            start, system = head.split("\n", 1)
            body["prompt"] = f"{start}\n{edit(system)}{end}{rest}"

    return prepared(session, change)


def with_model(session: Session, model: str) -> Session:
    return prepared(session, lambda body: body.update(model=model))


def named(session: Session, name: str) -> list[Exchange]:
    return [replace(call, session_hint=name) for call in session.exchanges()]


def one_by_one(logs: Sequence[Sequence[Exchange]]) -> list[Exchange]:
    return [call for log in logs for call in log]


def in_turns(logs: Sequence[Sequence[Exchange]]) -> list[Exchange]:
    return [call for calls in zip(*logs, strict=True) for call in calls]


def shuffled(seed: int) -> Callable[[Sequence[Sequence[Exchange]]], list[Exchange]]:
    def order(logs: Sequence[Sequence[Exchange]]) -> list[Exchange]:
        rest, rng, log = [list(calls) for calls in logs], random.Random(seed), []
        while any(rest):
            log.append(rng.choice([calls for calls in rest if calls]).pop(0))
        return log

    return order


ORDER = pytest.mark.parametrize(
    "order",
    [one_by_one, in_turns, shuffled(1), shuffled(2), shuffled(3)],
    ids=["after", "turns", "a", "b", "c"],
)


def said(diagnosis: Diagnosis) -> list[tuple[str, int]]:
    return [(finding.cause, finding.turn) for finding in (*diagnosis.findings, *diagnosis.suspicions)]


@WIRE
@REPLIES
@ORDER
@pytest.mark.parametrize(
    "edit",
    [
        lambda n, text: f"Today's date: 2026-01-0{n + 1}\n{text}",
        lambda n, text: f"{text}\nToday's date: 2026-01-0{n + 1}",
        lambda n, text: (
            f"{text}\nThe user's name is {('Ada', 'Grace', 'Linus')[n]}, on the plan {n * 'plus '}pro."
        ),
        lambda n, text: f"{text}\nSession: {random.Random(n).getrandbits(128):032x}",
        lambda n, text: f"{text}\nFrom version {n} on, link the run book." * (n + 1),
        lambda n, text: (text, HELPER, text[: len(text) // 2])[n],
    ],
    ids=["day first", "day last", "user", "session", "release", "role"],
)
def test_another_system_prompt_is_another_conversation(
    api: Api, replies: bool, order: Any, edit: Callable[[int, str], str]
) -> None:
    sessions = [system_edited(session, partial(edit, n)) for n, session in enumerate(runs(api, 3, replies))]
    diagnosis = diagnose_log(order([session.exchanges() for session in sessions]))
    assert said(diagnosis) == []
    assert diagnosis.conversation_count == 3


@MESSAGE_WIRE
@REPLIES
@ORDER
def test_another_model_is_another_conversation(api: Api, replies: bool, order: Any) -> None:
    sessions = [with_model(session, f"model-{n}") for n, session in enumerate(runs(api, 3, replies))]
    diagnosis = diagnose_log(order([session.exchanges() for session in sessions]))
    assert said(diagnosis) == []
    assert diagnosis.conversation_count == 3


@WIRE
@REPLIES
@ORDER
def test_samples_of_one_task(api: Api, replies: bool, order: Any) -> None:
    """All of it is one tree: no sample takes anything from the others."""
    diagnosis = diagnose_log(order([session.exchanges() for session in runs(api, 4, replies)]))
    assert said(diagnosis) == []


@MESSAGE_WIRE
@REPLIES
@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("helper_model", [None, "small"])
def test_a_helper_gets_the_same_first_message(
    api: Api, replies: bool, at: int, helper_model: str | None
) -> None:
    """A guard or a title request: no tools, its own system prompt, before, between and behind the agent's requests."""
    (session,) = runs(api, 1, replies)
    helper = make(99, api, turns=1, replies=replies)
    helper.bodies[0][helper.key] = copy.deepcopy(session.bodies[0][session.key])
    helper = system_edited(helper, lambda text: HELPER)
    helper.bodies[0].pop("tools")
    if helper_model:
        helper = with_model(helper, helper_model)
    log = session.exchanges()
    diagnosis = diagnose_log([*log[:at], *helper.exchanges(), *log[at:]])
    assert said(diagnosis) == []
    assert diagnosis.conversation_count == 2


@MESSAGE_WIRE
@ORDER
def test_many_users_who_say_the_same(api: Api, order: Any) -> None:
    """More of them at once than the newest states that are looked at first."""
    sessions = [
        system_edited(session, partial("{1} The user is number {0}.".format, n))
        for n, session in enumerate(runs(api, 40, True))
    ]
    diagnosis = diagnose_log(order([session.exchanges() for session in sessions]))
    assert said(diagnosis) == []
    assert diagnosis.conversation_count == 40


@MESSAGE_WIRE
@REPLIES
@ORDER
def test_sessions_that_the_log_names(api: Api, replies: bool, order: Any) -> None:
    """Under one system prompt: with a name for each of them they are told apart from the first request on."""
    sessions = runs(api, 3, replies)
    diagnosis = diagnose_log(order([named(session, f"s{n}") for n, session in enumerate(sessions)]))
    assert said(diagnosis) == []
    assert diagnosis.conversation_count == 3


@MESSAGE_WIRE
@REPLIES
def test_a_name_for_every_request_is_no_conversation(api: Api, replies: bool) -> None:
    """A gateway's trace id: what shares an answer is one conversation all the same, and its breaks are found."""
    (session,) = runs(api, 1, replies)
    session = system_edited(session, lambda text: f"{text} Time: 10:05.")
    late = system_edited(session, lambda text: text.replace("10:05", "10:06"))
    session = replace(session, bodies=[*session.bodies[:3], *late.bodies[3:]])
    log = [replace(call, session_hint=f"trace {n}") for n, call in enumerate(session.exchanges())]
    assert said(diagnose_log(log)) == [("volatile_text", 3)]


@WIRE
@REPLIES
@pytest.mark.parametrize("other", [False, True], ids=["alone", "beside another"])
def test_a_clock_in_the_system_prompt_is_found_from_the_second_request_on(
    api: Api, replies: bool, other: bool
) -> None:
    """Then only the opening is the same; the reply, or a system prompt that is much the same, shows what goes on."""
    one, two = runs(api, 2, replies)
    session = system_edited(one, lambda text: f"{text} Time: 10:05.")
    late = system_edited(one, lambda text: f"{text} Time: 10:06.")
    log = replace(session, bodies=[session.bodies[0], *late.bodies[1:]]).exchanges()
    if other:
        beside = system_edited(two, lambda text: f"{HELPER} {text}").exchanges()
        log = in_turns([log, beside])
    assert said(diagnose_log(log)) == [("volatile_text", 2 if other else 1)]


@MESSAGE_WIRE
@REPLIES
def test_another_model_in_the_middle_is_found(api: Api, replies: bool) -> None:
    (session,) = runs(api, 1, replies)
    session = changed(session, 1, lambda body: body.update(model="another"))
    assert said(diagnose_log(session.exchanges())) == [("model_changed", 1)]


# -- the same request twice -------------------------------------------------------------------------------------


def hedged(session: Session, turn: int, rng: random.Random, *, first: bool) -> list[Exchange]:
    """A log in which one request went out twice; the session goes on with the first answer, or with the second."""
    log = session.exchanges()
    other = make(rng.randrange(1_000), session.api, turns=2).replies[0]
    twin = replace(log[turn], response=other)
    return [*log[: turn + first], twin, *log[turn + first :]]


@WIRE
@pytest.mark.parametrize("first", [True, False], ids=["first", "second"])
@pytest.mark.parametrize("turn", range(3))
def test_either_answer_may_be_gone_on_with(api: Api, first: bool, turn: int) -> None:
    (session,) = runs(api, 1, True)
    diagnosis = diagnose_log(hedged(session, turn, random.Random(turn), first=first))
    assert said(diagnosis) == []
    assert diagnosis.conversation_count == 1


@MESSAGE_WIRE
@pytest.mark.parametrize("first", [True, False], ids=["first", "second"])
@pytest.mark.parametrize("turn", range(3))
def test_an_answer_that_comes_back_otherwise_is_found_beside_another(
    api: Api, first: bool, turn: int
) -> None:
    (session,) = runs(api, 1, True, seed=19)
    place = len(session.bodies[turn][session.key])

    def edit(body: Body) -> None:
        item = body[session.key][place]
        if session.api == "openai.responses":
            item["encrypted_content"] = "another"
        elif session.api == "anthropic.messages":
            item["content"][0]["thinking"] = "Something else."
        else:
            item["content"] = f"{item.get('content') or ''} And more."

    session = changed(session, turn + 1, edit)
    found = diagnose_log(hedged(session, turn, random.Random(turn), first=first)).findings
    assert [(finding.turn, finding.returned) for finding in found] == [(turn + 2, True)]


@MESSAGE_WIRE
def test_a_request_that_was_sent_twice_hides_no_later_break(api: Api) -> None:
    """It is kept for its other answer; what changed behind it counts against what came after it."""
    (session,) = runs(api, 1, True)
    rng = random.Random(5)
    place = len(session.bodies[1][session.key])

    def edit(body: Body) -> None:
        item = {"role": "user", "content": paragraph(rng)}
        body[session.key].insert(place, item)

    session = changed(session, 3, edit)
    found = diagnose_log(hedged(session, 1, rng, first=True)).findings
    assert [(finding.cause, finding.turn) for finding in found] == [("message_inserted", 4)]
