"""What usual clients do and no server minds: logs that must stay silent, and beside each the break that looks like it."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest

from agentctx.diagnosis import Api, Diagnosis, Exchange, diagnose, diagnose_log

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


# -- another newest message -------------------------------------------------------------------------------------


def asked(
    api: Api, shots: int, questions: list[list[str]], replies: bool, rng: random.Random
) -> list[Exchange]:
    """One request for each question (its parts), all behind the same examples."""
    examples: list[Body] = []
    for _ in range(shots):
        examples.append({"role": "user", "content": [part(api, sentence(rng, 12, 20))]})
        examples.append({"role": "assistant", "content": [part(api, sentence(rng, 1, 2), "assistant")]})
    log = []
    for turn, question in enumerate(questions):
        newest = {"role": "user", "content": [part(api, text) for text in question]}
        reply = response(api, sentence(rng, 1, 2)) if replies else None
        log.append(Exchange(api, request(api, [*examples, newest]), reply, 1000.0 + 60 * turn, line=turn + 1))
    return log


REPLIES = pytest.mark.parametrize("replies", [True, False], ids=["replies", "bodies"])


@WIRE
@REPLIES
@pytest.mark.parametrize("shots", [0, 1, 3])
def test_a_batch_behind_the_same_examples(api: Api, replies: bool, shots: int) -> None:
    rng = random.Random(shots)
    ask = "Is this review of the library positive or negative? Answer with one word."
    questions = [[f"{ask} {sentence(rng, 2, 20)}"] for _ in range(6)]
    assert said(diagnose_log(asked(api, shots, questions, replies, rng))) == []


@WIRE
@REPLIES
@pytest.mark.parametrize("shots", [1, 3])
def test_the_same_examples_under_another_system_prompt(api: Api, replies: bool, shots: int) -> None:
    """Answers that were given with the first request were generated nowhere: they tie no requests together."""
    rng = random.Random(shots)
    log = asked(api, shots, [[sentence(rng, 12, 20)] for _ in range(4)], replies, rng)
    for day, exchange in enumerate(log, start=1):
        text = f"Today is 2026-01-0{day}. {SYSTEM}"
        body: Any = exchange.request
        if api == "openai.chat":
            body["messages"][0]["content"] = text
        elif api == "openai.responses":
            body["instructions"] = text
        else:
            body["system"][0]["text"] = text
    diagnosis = diagnose_log(log)
    assert (said(diagnosis), diagnosis.conversation_count) == ([], 4)


@WIRE
@REPLIES
@pytest.mark.parametrize("shots", [1, 3])
def test_the_clock_in_the_newest_message_of_a_retry(api: Api, replies: bool, shots: int) -> None:
    """Volatile data belongs to the newest message: a request that is made again has a new one."""
    rng = random.Random(shots)
    questions = [[f"Which books are due? Time: 10:0{n}:00"] for n in range(4)]
    assert said(diagnose_log(asked(api, shots, questions, replies, rng))) == []


@WIRE
def test_text_added_to_a_message_that_was_never_answered(api: Api) -> None:
    """After an error the user goes on writing in the same message; from there the conversation goes on."""
    rng = random.Random(3)
    first, second = [sentence(rng, 20, 30)], [sentence(rng, 20, 30), "Are you still there? Please go on."]
    failed, again = asked(api, 2, [first, [first[0], second[1]]], False, rng)
    items = again.request[KEY.get(api, "messages")]
    answer = paragraph(rng)
    later = [
        *[item for item in items if item["role"] != "system"],
        {"role": "assistant", "content": [part(api, answer, "assistant")]},
        {"role": "user", "content": [part(api, "Thank you. And the others?")]},
    ]
    log = [
        Exchange(api, failed.request, {"error": {"type": "overloaded"}}, 1000.0),
        Exchange(api, again.request, response(api, answer), 1060.0),
        Exchange(api, request(api, later), response(api, "They are due next week."), 1090.0),
    ]
    diagnosis = diagnose_log(log)
    assert said(diagnosis) == []
    assert diagnosis.conversation_count == 1


@WIRE
@REPLIES
def test_a_message_that_is_edited_once_it_was_answered_is_a_break(api: Api, replies: bool) -> None:
    """The same clock, and the conversation goes on behind it: now all of that is paid again."""
    rng = random.Random(4)
    answer = paragraph(rng)
    question = [f"Which books are due this week, and who has them? Time: 10:0{n}:00" for n in range(2)]
    (first,) = asked(api, 2, [[question[0]]], replies, random.Random(5))
    (second,) = asked(api, 2, [[question[1]]], replies, random.Random(5))
    items = [
        *[item for item in second.request[KEY.get(api, "messages")] if item["role"] != "system"],
        {"role": "assistant", "content": [part(api, answer, "assistant")]},
        {"role": "user", "content": [part(api, "Thank you. And the others?")]},
    ]
    log = [
        Exchange(api, first.request, response(api, answer) if replies else None, 1000.0),
        Exchange(api, request(api, items), None, 1060.0),
    ]
    found = said(diagnose_log(log))
    assert found == [("volatile_text", 1)]


def test_two_requests_that_are_known_to_follow_each_other() -> None:
    """Asked what is different, the answer is the newest message: only a log may tell a batch from a conversation."""
    log = asked(
        "openai.chat", 2, [["Time: 10:05:00. Go on."], ["Time: 10:06:00. Go on."]], False, random.Random(6)
    )
    (finding,) = diagnose(log[0], log[1]).findings
    assert finding.place == "messages[5].content[0].text@10"


@REPLIES
@pytest.mark.parametrize("shots", [0, 1, 3])
def test_a_batch_of_finished_prompts(replies: bool, shots: int) -> None:
    rng = random.Random(shots)

    def message(role: str, text: str) -> str:
        return f"<|im_start|>{role}\n{text}<|im_end|>\n"

    head = message("system", SYSTEM)
    for _ in range(shots):
        head += message("user", sentence(rng, 12, 20)) + message("assistant", sentence(rng, 1, 2))
    ask = "Is this review of the library positive or negative? Answer with one word."
    log = [
        Exchange(
            "llama.completion",
            {"prompt": head + message("user", f"{ask} {sentence(rng, 2, 20)}") + "<|im_start|>assistant\n"},
            {"content": "Positive."} if replies else None,
            1000.0 + turn,
        )
        for turn in range(6)
    ]
    assert said(diagnose_log(log)) == []
