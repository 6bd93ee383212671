"""Breaks that show in little: calls of a few characters, compact clocks, a prompt too short for its reply; and defaults that are none."""

from __future__ import annotations

import copy
import json
import random
from functools import partial
from typing import Any

import pytest

from agentctx.diagnosis import Api, Diagnosis, Exchange, diagnose_log
from agentctx.diagnosis.texts import fragment_at

from .healthy_sessions import WIRES, Session, make, paragraph
from .test_openings import system_edited

Body = dict[str, Any]
MESSAGE_WIRES = [wire for wire in WIRES if wire != "llama.completion"]
WIRE = pytest.mark.parametrize("api", MESSAGE_WIRES)
SYSTEM = "You are a careful coding agent. " + paragraph(random.Random(2), 12, 14)


def said(diagnosis: Diagnosis) -> list[tuple[str, int, int]]:
    return [(finding.cause, finding.turn, finding.count) for finding in diagnosis.findings]


# -- short calls ------------------------------------------------------------------------------------------------


def short_calls(command: str, result: str, *, dropped: bool, turns: int = 6) -> list[Exchange]:
    """A loop of the Responses API: reasoning, a call, its result; ``dropped``: the reasoning isn't sent back."""
    items: list[Body] = [{"type": "message", "role": "user", "content": "Tidy up the workspace, please."}]
    log = []
    for turn in range(turns):
        thought = {
            "type": "reasoning",
            "id": f"rs_{turn}",
            "summary": [],
            "encrypted_content": f"g{turn}" * 40,
        }
        call = {"type": "function_call", "id": f"fc_{turn}", "call_id": f"call_{turn}", "name": "sh"}
        call["arguments"] = json.dumps({"cmd": command})
        body = {"model": "gpt-5.1", "instructions": SYSTEM, "input": copy.deepcopy(items), "store": False}
        log.append(Exchange("openai.responses", body, {"output": [thought, call]}, 1000.0 + turn))
        items += [call] if dropped else [thought, call]
        items.append({"type": "function_call_output", "call_id": f"call_{turn}", "output": result})
    return log


@pytest.mark.parametrize("command", ["ls", "ls -la src/ledger/rounding/tables"])
@pytest.mark.parametrize("result", ["", "ok", "a b c " * 30])
def test_reasoning_dropped_in_front_of_a_call_of_any_length(command: str, result: str) -> None:
    assert said(diagnose_log(short_calls(command, result, dropped=False))) == []
    found = said(diagnose_log(short_calls(command, result, dropped=True)))
    assert found == [("reasoning_removed", 1, 5)]


@WIRE
@pytest.mark.parametrize("replies", [True, False], ids=["replies", "bodies"])
def test_a_note_slipped_in_front_of_a_short_result(api: Api, replies: bool) -> None:
    """The newest result is all that stands behind the note, and says next to nothing but whose it is."""
    question: Body = {"role": "user", "content": "Tidy up the workspace, please."}
    note: Body = {"role": "user", "content": "Keep to the plan."}
    call, result = {
        "openai.chat": (
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "sh", "arguments": "{}"}}
                ],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        ),
        "openai.responses": (
            {"type": "function_call", "call_id": "c1", "name": "sh", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "ok"},
        ),
        "anthropic.messages": (
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "sh", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "ok"}]},
        ),
    }[api]
    key = "input" if api == "openai.responses" else "messages"
    before = [question, call, result]
    log = [
        Exchange(api, {"model": "m", key: before}),
        Exchange(api, {"model": "m", key: [question, call, note, result]}),
    ]
    assert said(diagnose_log(log)) == [("message_inserted", 1, 1)]
    other = copy.deepcopy([question, call, note, result])
    text = json.dumps(other[-1]).replace('"c1"', '"c2"')
    log[1] = Exchange(api, {"model": "m", key: [*other[:-1], json.loads(text)]})
    assert said(diagnose_log(log)) == [], "an equal result of another call"


# -- compact clocks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("20260101T100010Z", "20260101T100111Z"),
        ("20260101T100010", "20260101T100111"),
        ("20260101T1000Z", "20260101T1001Z"),
        ("20260101T100010.250Z", "20260101T100111.125Z"),
        ("20260101T100010+0100", "20260101T100111+0100"),
        ("20260101100010", "20260101100111"),
    ],
)
@pytest.mark.parametrize("api", WIRES)
def test_a_compact_clock_in_the_system_prompt(api: Api, first: str, second: str) -> None:
    session = make(5, api, turns=4)
    bodies = [
        system_edited(session, partial("{1} Clock {0} here.".format, clock)).bodies[turn]
        for turn, clock in enumerate((first, second, first, second))
    ]
    found = diagnose_log(Session(api, bodies, session.replies, session.times).exchanges()).findings
    assert [(finding.cause, finding.turn) for finding in found] == [("volatile_text", 1)]


@pytest.mark.parametrize(
    "digits",
    ["20269901T1000", "20260101T2561", "202601011", "99990101T100000", "a20260101T100010", "2026010110001"],
)
def test_digits_that_are_no_compact_clock(digits: str) -> None:
    other = digits[:-1] + ("0" if digits[-1] != "0" else "1")
    assert not fragment_at(f"at {digits} or", f"at {other} or", 2 + len(digits)).clock


# -- what a parameter means when it is left out ------------------------------------------------------------------

DEFAULTS: list[tuple[Api, str, Any]] = [
    ("openai.chat", "service_tier", "auto"),
    ("openai.chat", "response_format", {"type": "text"}),
    ("openai.chat", "verbosity", "medium"),
    ("openai.chat", "tool_choice", "auto"),
    ("openai.chat", "parallel_tool_calls", True),
    ("openai.responses", "service_tier", "auto"),
    ("openai.responses", "text", {"format": {"type": "text"}}),
    ("openai.responses", "text", {"format": {"type": "text"}, "verbosity": "medium"}),
    ("openai.responses", "text", {}),
    ("openai.responses", "tool_choice", "auto"),
    ("anthropic.messages", "tool_choice", {"type": "auto"}),
    ("anthropic.messages", "tool_choice", {"type": "auto", "disable_parallel_tool_use": False}),
    ("anthropic.messages", "thinking", {"type": "disabled"}),
    ("anthropic.messages", "service_tier", "auto"),
]
OTHERS: list[tuple[Api, str, Any, str]] = [
    ("openai.chat", "service_tier", "flex", "params.service_tier"),
    ("openai.chat", "response_format", {"type": "json_object"}, "params.response_format"),
    ("openai.chat", "verbosity", "low", "params.verbosity"),
    ("openai.responses", "text", {"format": {"type": "json_object"}}, "params.text"),
    ("openai.responses", "text", {"format": {"type": "text"}, "verbosity": "low"}, "params.text"),
    ("anthropic.messages", "tool_choice", {"type": "any"}, "params.tool_choice"),
    (
        "anthropic.messages",
        "tool_choice",
        {"type": "auto", "disable_parallel_tool_use": True},
        "params.tool_choice",
    ),
    ("anthropic.messages", "thinking", {"type": "enabled", "budget_tokens": 2000}, "params.thinking"),
]


def with_parameter(api: Api, name: str, value: Any, turns: range) -> list[Exchange]:
    session = make(11, api, turns=4)
    for turn in turns:
        session.bodies[turn][name] = value
    return session.exchanges()


@pytest.mark.parametrize(("api", "name", "value"), DEFAULTS)
@pytest.mark.parametrize("turns", [range(2), range(2, 4), range(1, 2)], ids=["first", "last", "once"])
def test_a_default_that_is_spelled_out_is_no_change(api: Api, name: str, value: Any, turns: range) -> None:
    diagnosis = diagnose_log(with_parameter(api, name, value, turns))
    assert (diagnosis.findings, diagnosis.suspicions) == ([], [])


@pytest.mark.parametrize(("api", "name", "value", "place"), OTHERS)
@pytest.mark.parametrize("turns", [range(2), range(2, 4)], ids=["first", "last"])
def test_anything_but_the_default_is_a_change(
    api: Api, name: str, value: Any, place: str, turns: range
) -> None:
    found = diagnose_log(with_parameter(api, name, value, turns)).findings
    assert [(finding.cause, finding.turn, finding.place) for finding in found] == [
        ("parameter_changed", 2, place)
    ]


# -- a prompt that is too short for its reply ---------------------------------------------------------------------


def served(prompts: list[int], cached: list[int], reply: int, *, replies: bool = True) -> list[Exchange]:
    """A chat on llama-server: reasoning is sent back as it came; the counts say what its template made of it."""
    messages: list[Body] = [{"role": "system", "content": SYSTEM}]
    log = []
    for turn, (prompt, read) in enumerate(zip(prompts, cached, strict=True)):
        messages.append({"role": "user", "content": f"And what of case {turn}?"})
        answer = {
            "role": "assistant",
            "content": f"See file {turn}.",
            "reasoning_content": "Let me think. " * 40,
        }
        timings = {"cache_n": read, "prompt_n": prompt - read, "prompt_ms": 100.0, "predicted_n": reply}
        choices = [{"index": 0, "message": answer}] if replies else []
        body = {"model": "qwen3", "messages": copy.deepcopy(messages)}
        log.append(Exchange("openai.chat", body, {"choices": choices, "timings": timings}, 1000.0 + turn))
        messages.append(answer)
    return log


def test_a_template_that_drops_old_reasoning_shows_in_the_servers_counts() -> None:
    found = diagnose_log(served([200, 260, 330], [0, 198, 255], 300)).findings
    assert [(finding.cause, finding.turn, finding.count) for finding in found] == [("template_made", 1, 2)]
    assert found[0].verdict == "broken"
    assert found[0].loss.again is not None
    assert found[0].loss.again <= (260 - 198) + (330 - 255), "no more than was computed"
    assert "200 tokens and a reply of 300 became a prompt of 260" in found[0].detail


def test_a_reply_that_is_whole_and_read_only_in_part_was_encoded_otherwise() -> None:
    found = diagnose_log(served([200, 520, 840], [0, 450, 770], 300)).findings
    assert [(finding.cause, finding.turn, finding.count) for finding in found] == [("retokenised", 1, 2)]


def test_a_reply_that_is_read_whole_is_healthy() -> None:
    assert diagnose_log(served([200, 520, 840], [0, 499, 819], 300)).clean


def test_without_the_reply_in_the_log_nobody_knows_who_left_it_out() -> None:
    found = diagnose_log(served([200, 260, 330], [0, 198, 255], 300, replies=False)).findings
    assert {finding.cause for finding in found} == {"retokenised"}
