"""What usual clients do and no server minds: logs that must stay silent, and beside each the break that looks like it."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest

from agentctx.diagnosis import Api, Diagnosis, Exchange, diagnose_log

from .healthy_sessions import WIRES, paragraph, sentence

Body = dict[str, Any]
MESSAGE_WIRES = [wire for wire in WIRES if wire != "llama.completion"]
WIRE = pytest.mark.parametrize("api", MESSAGE_WIRES)
SYSTEM = "You are a careful assistant of a library. " + paragraph(random.Random(1), 6, 8)
KEY = {"openai.responses": "input"}


def part(api: Api, text: str, role: str = "user") -> Body:
    kind = "text" if api != "openai.responses" else "output_text" if role == "assistant" else "input_text"
    return {"type": kind, "text": text}


def request(api: Api, items: list[Body], **more: Any) -> Body:
    """A request of its API with the system prompt in its place."""
    items = copy.deepcopy(items)
    if api == "openai.chat":
        return {"model": "m", "messages": [{"role": "system", "content": SYSTEM}, *items], **more}
    if api == "openai.responses":
        return {"model": "m", "instructions": SYSTEM, "input": items, **more}
    system = [{"type": "text", "text": SYSTEM}]
    return {"model": "m", "max_tokens": 9, "system": system, "messages": items, **more}


def response(api: Api, text: str) -> Body:
    """A reply as the API sends it; chat with parts, as some servers do."""
    content = [part(api, text, "assistant")]
    if api == "openai.chat":
        return {"choices": [{"index": 0, "message": {"role": "assistant", "content": content}}]}
    if api == "openai.responses":
        return {"output": [{"type": "message", "role": "assistant", "id": "m1", "content": content}]}
    return {"type": "message", "role": "assistant", "content": content, "stop_reason": "end_turn"}


def said(diagnosis: Diagnosis) -> list[tuple[str, int]]:
    return [(finding.cause, finding.turn) for finding in diagnosis.findings]


# -- replies given back as plain text ---------------------------------------------------------------------------


def chat(api: Api, given_back: Callable[[str], Any], turns: int = 5, seed: int = 1) -> list[Exchange]:
    """Questions and answers; ``given_back`` makes the content with which an answer stands in the next request."""
    rng = random.Random(seed)
    items: list[Body] = []
    log = []
    for turn in range(turns):
        items.append({"role": "user", "content": sentence(rng, 12, 20)})
        answer = paragraph(rng)
        log.append(Exchange(api, request(api, items), response(api, answer), 1000.0 + turn, line=turn + 1))
        items.append({"role": "assistant", "content": given_back(answer)})
    return log


@WIRE
@pytest.mark.parametrize("seed", range(4))
def test_a_reply_given_back_as_plain_text(api: Api, seed: int) -> None:
    """``messages.append({"role": "assistant", "content": response.output_text})``: the text is what was generated."""
    diagnosis = diagnose_log(chat(api, lambda text: text, seed=seed))
    assert said(diagnosis) == []
    assert {suspicion.cause for suspicion in diagnosis.suspicions} == {"content_shape"}
    assert all(suspicion.returned for suspicion in diagnosis.suspicions)


@WIRE
def test_a_reply_given_back_in_its_own_shape(api: Api) -> None:
    diagnosis = diagnose_log(chat(api, lambda text: [part(api, text, "assistant")]))
    assert (diagnosis.findings, diagnosis.suspicions) == ([], [])


@WIRE
def test_a_reply_given_back_as_text_that_is_another(api: Api) -> None:
    diagnosis = diagnose_log(chat(api, lambda text: f"{text} And so on."))
    assert [(finding.turn, finding.returned) for finding in diagnosis.findings] == [(1, True)]
    assert diagnosis.findings[0].count == 4


@WIRE
def test_a_request_of_ones_own_that_changes_its_shape_is_proven(api: Api) -> None:
    """Here a list was sent and then a string: templates print both, and not always alike."""
    log = chat(api, lambda text: text)
    for number, exchange in enumerate(log):
        items = exchange.request[KEY.get(api, "messages")]
        users = [item for item in items if item["role"] == "user"]
        if number == 1:
            users[0]["content"] = [part(api, users[0]["content"])]
    found = diagnose_log(log[1:]).findings
    assert [(finding.cause, finding.turn, finding.returned) for finding in found] == [
        ("content_shape", 1, False)
    ]
