"""What a break costs without a tokenizer, against the tokens that the chatml target counts of the same log.

An estimate is within a third of the count and 64 tokens (templates write words of their own, and characters of schemas and of
prose are not equally many to a token): enough to hold a budget that is about thousands.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, assume, given, settings

from agentctx.diagnosis import Api, Exchange, LogDiagnosis, Target, diagnose_log
from agentctx.diagnosis.findings import Loss
from agentctx.diagnosis.report import price_of
from agentctx.interchange import read_request
from agentctx.rendering.chatml import ChatMLRenderer

from .healthy_sessions import WIRES, make, paragraph, sentence, tools
from .mutations import CLIENT

Body = dict[str, Any]
RENDERER = ChatMLRenderer()
CHATML = Target("chatml", RENDERER)
SHARE, TOKENS = 1 / 3, 64
MESSAGE_WIRES: tuple[Api, ...] = tuple(wire for wire in WIRES if wire != "llama.completion")
WIRE = pytest.mark.parametrize("api", MESSAGE_WIRES)


def told(api: Api, log: list[tuple[Body, Body]]) -> list[Exchange]:
    """The log with the prompt's tokens as the target counts them, and nothing about reuse."""
    made = []
    for turn, (body, reply) in enumerate(log):
        tokens = len(RENDERER.render(read_request(api, body)).token_ids)
        name = "prompt_tokens" if api == "openai.chat" else "input_tokens"
        made.append(Exchange(api, body, {**reply, "usage": {name: tokens}}, 1000.0 + turn, line=turn + 1))
    return made


def compared(log: list[Exchange]) -> list[tuple[Loss, Loss]]:
    """The losses of a log as sent and as counted, finding by finding."""
    sent, counted = diagnose_log(log).findings, diagnose_log(log, CHATML).findings
    assume([(f.cause, f.turn, f.count) for f in sent] == [(f.cause, f.turn, f.count) for f in counted])
    return [(left.loss, right.loss) for left, right in zip(sent, counted, strict=True)]


def assert_near(estimates: list[tuple[Loss, Loss]]) -> None:
    for sent, counted in estimates:
        for left, right in ((sent.again, counted.again), (sent.lost, counted.lost)):
            if left is None or right is None:
                assert left is right, "a finding that has no size has none under any target"
                continue
            assert abs(left - right) <= SHARE * max(left, right) + TOKENS, (sent, counted)


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**6), kind=st.sampled_from(sorted(CLIENT)), api=st.sampled_from(MESSAGE_WIRES))
def test_an_estimate_of_any_change_is_near_the_count(seed: int, kind: str, api: Api) -> None:
    mutate, apis = CLIENT[kind]
    assume(api in apis)
    case = mutate(random.Random(seed), make(seed, api))
    assume(case is not None)
    assert case is not None
    bodies = zip(case[0].bodies, case[0].replies, strict=True)
    assert_near(compared(told(api, [(body, reply or {}) for body, reply in bodies])))


# -- parts of all sizes -----------------------------------------------------------------------------------------


def text_part(api: Api, text: str, role: str = "user") -> Body:
    kind = "text" if api != "openai.responses" else "output_text" if role == "assistant" else "input_text"
    return {"type": kind, "text": text}


def response(api: Api, text: str) -> Body:
    content = [text_part(api, text, "assistant")]
    if api == "openai.chat":
        return {"choices": [{"index": 0, "message": {"role": "assistant", "content": text}}]}
    if api == "openai.responses":
        return {"output": [{"type": "message", "role": "assistant", "id": "m1", "content": content}]}
    return {"type": "message", "role": "assistant", "content": content, "stop_reason": "end_turn"}


def reply_item(api: Api, text: str) -> Body:
    if api == "openai.responses":
        content = [text_part(api, text, "assistant")]
        return {"type": "message", "role": "assistant", "id": "m1", "content": content}
    return {
        "role": "assistant",
        "content": text if api == "openai.chat" else [text_part(api, text, "assistant")],
    }


class Uneven:
    """A conversation whose pieces are of all sizes, some words or thousands, and the clock that stands in one of them."""

    def __init__(self, api: Api, rng: random.Random) -> None:
        self.api = api
        self.rng = rng
        self.tools = tools(rng, api)
        self.system = [self.piece() for _ in range(rng.randint(1, 4))]
        self.first = [self.piece() for _ in range(rng.randint(1, 4))]
        self.place = 0
        self.rest: list[tuple[str, str]] = [(self.piece(), self.piece()) for _ in range(2)]

    def piece(self) -> str:
        return paragraph(self.rng, *self.rng.choice([(1, 1), (3, 9), (40, 60), (150, 200)]))

    def body(self, turns: int, *, note: str = "") -> Body:
        """The request of a turn; ``note``: a message at its end that isn't kept."""
        items = [{"role": "user", "content": [text_part(self.api, text) for text in self.first]}]
        for answer, question in self.rest[:turns]:
            items += [
                reply_item(self.api, answer),
                {"role": "user", "content": [text_part(self.api, question)]},
            ]
        if note:
            items.append({"role": "user", "content": [text_part(self.api, note)]})
        made: Body = {"model": "m", "tools": copy.deepcopy(self.tools)}
        system = [text_part(self.api, text) for text in self.system]
        if self.api == "openai.chat":
            return {**made, "messages": [{"role": "system", "content": system}, *items]}
        if self.api == "openai.responses":
            return {**made, "instructions": "\n".join(self.system), "input": items}
        return {**made, "max_tokens": 9, "system": system, "messages": items}

    def log(self, change: Callable[[Uneven, int], Body]) -> list[Exchange]:
        pairs = [(change(self, turn), response(self.api, self.rest[turn][0])) for turn in range(2)]
        return told(self.api, pairs)


def clock_in_system(uneven: Uneven, turn: int) -> Body:
    place = uneven.rng.randrange(len(uneven.system)) if turn == 0 else uneven.place
    return _with_clock(uneven, uneven.system, place, turn)


def clock_in_message(uneven: Uneven, turn: int) -> Body:
    place = uneven.rng.randrange(len(uneven.first)) if turn == 0 else uneven.place
    return _with_clock(uneven, uneven.first, place, turn)


def _with_clock(uneven: Uneven, pieces: list[str], place: int, turn: int) -> Body:
    uneven.place = place
    kept = pieces[place]
    pieces[place] = f"{kept[: len(kept) // 2]} Time: 10:0{turn}. {kept[len(kept) // 2 :]}"
    body = uneven.body(turn)
    pieces[place] = kept
    return body


def changed_tool(uneven: Uneven, turn: int) -> Body:
    if turn == 0:
        uneven.place = uneven.rng.randrange(len(uneven.tools))
        for tool in uneven.tools:
            (tool.get("function") or tool)["description"] += f" {uneven.piece()}"
    body = uneven.body(turn)
    declared = body["tools"][uneven.place]
    (declared.get("function") or declared)["description"] += f" As of 10:0{turn}."
    return body


def wandering_note(uneven: Uneven, turn: int) -> Body:
    """What follows it, the reply and the next question, was never behind anything else; the reply was paid for."""
    return uneven.body(turn, note=f"Reminder {turn}: {sentence(uneven.rng)}")


def removed_part(uneven: Uneven, turn: int) -> Body:
    if turn == 0:
        uneven.first.append(uneven.piece())
        return uneven.body(turn)
    uneven.first.pop(uneven.rng.randrange(len(uneven.first)))
    return uneven.body(turn)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    seed=st.integers(0, 10**6),
    api=st.sampled_from(MESSAGE_WIRES),
    change=st.sampled_from([clock_in_system, clock_in_message, changed_tool, wandering_note, removed_part]),
)
def test_an_estimate_knows_where_in_a_prompt_a_break_is(
    seed: int, api: Api, change: Callable[[Uneven, int], Body]
) -> None:
    estimates = compared(Uneven(api, random.Random(seed)).log(change))
    assert len(estimates) == 1
    assert_near(estimates)


# -- where the server says how much it computed -----------------------------------------------------------------


def reported(log: list[Exchange], turn: int, prompt: int, cached: int) -> Exchange:
    usage = {"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": cached}}
    reply = {**(log[turn].response or {}), "usage": usage}
    return replace(log[turn], response=reply)


def test_a_parameter_costs_the_whole_prompt() -> None:
    uneven = Uneven("openai.chat", random.Random(1))
    log = uneven.log(lambda self, turn: {**self.body(turn), "reasoning_effort": ("low", "high")[turn]})
    (finding,) = diagnose_log([reported(log, 0, 50_000, 49_000), reported(log, 1, 50_400, 0)]).findings
    assert (finding.cause, finding.loss.lost) == ("parameter_changed", 50_000)
    assert finding.loss.again is not None
    assert 50_000 <= finding.loss.again <= 50_400


@pytest.mark.parametrize("computed", [50_400, 20_000, 137, 0])
def test_no_more_is_paid_again_than_the_server_computed(computed: int) -> None:
    uneven = Uneven("openai.chat", random.Random(2))
    log = uneven.log(clock_in_system)
    log = [reported(log, 0, 50_000, 0), reported(log, 1, 50_400, 50_400 - computed)]
    found = diagnose_log(log).findings
    if computed == 0:
        assert found == [], "the server minds no clock there"
    for finding in found:
        assert finding.loss.again is not None
        assert finding.loss.again <= computed


def test_what_could_have_been_reused_is_named_where_it_is_more() -> None:
    assert price_of(Loss(lost=66, again=95)) == "about 95 tokens paid again (estimated)"
    assert price_of(Loss(lost=95, again=95)) == "about 95 tokens paid again (estimated)"
    assert (
        price_of(Loss(lost=195, again=95))
        == "about 95 tokens paid again of 195 that could have been reused (estimated)"
    )


@pytest.mark.parametrize(("place", "fails"), [(0, True), (3, False)])
def test_a_budget_holds_a_clock_to_the_block_that_it_stands_in(place: int, fails: bool) -> None:
    """The same clock in front of long rules, and behind them: four blocks of a system prompt."""
    uneven = Uneven("anthropic.messages", random.Random(3))
    uneven.tools = []
    uneven.system = ["You keep the books.", *(paragraph(uneven.rng, 60, 80) for _ in range(2)), "Be brief."]
    uneven.first = ["What is due this week?"]
    uneven.rest = [("Two invoices.", "And next week?")] * 2

    def change(self: Uneven, turn: int) -> Body:
        return _with_clock(self, self.system, place, turn)

    log = LogDiagnosis()
    for exchange in uneven.log(change):
        log.feed(exchange)
    assert log.turn is not None
    assert log.turn.paid_again is not None
    assert (log.turn.paid_again > 500) is fails
    assert log.turn.stable is not None
    assert (log.turn.stable < 500) is fails
