"""Bodies of any shape: a value of the wrong type, anywhere, never ends a diagnosis with a traceback."""

from __future__ import annotations

import contextlib
import copy
import json
import random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from agentctx.diagnosis import Exchange, detect_api, diagnose_log, exchange_of, parse_target
from agentctx.diagnosis.report import text_lines, to_json
from agentctx.errors import InputError
from agentctx.interchange.times import seconds

from .healthy_sessions import WIRES, make
from .server_mutations import hinted, observed

ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    2**70,
    "",
    "x",
    [],
    {},
    [None],
    [[]],
    {"type": 1},
    {"": None},
    ["\ud800"],
    [1, "a", {}],
)
CHATML = parse_target("chatml")


def spoiled(rng: random.Random, value: Any) -> Any:
    """The value with one node, anywhere, replaced, removed or doubled."""
    value = copy.deepcopy(value)
    holder: Any = value
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        if not keys:
            return value
        key = rng.choice(keys)
        inner = holder[key]
        if isinstance(inner, (dict, list)) and inner and rng.random() < 0.8:
            holder = inner
            continue
        form = rng.random()
        if form < 0.7:
            holder[key] = copy.deepcopy(rng.choice(ODD))
        elif form < 0.85:
            del holder[key]
        elif isinstance(holder, list):
            holder.insert(key, copy.deepcopy(inner))
        return value


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**9), api=st.sampled_from(WIRES), counted=st.booleans())
def test_spoiled_sessions(seed: int, api: str, counted: bool) -> None:
    rng = random.Random(seed)
    session = make(seed, next(wire for wire in WIRES if wire == api), turns=4)
    session = observed(
        hinted(session, rng.choice(("", "vllm block_size 32", "llama-server -np 2", "gateway")))
    )
    log = []
    for call in session.exchanges():
        request, response = dict(call.request), dict(call.response or {})
        for _ in range(rng.randrange(3)):
            if rng.random() < 0.6:
                request = spoiled(rng, request)
            elif response:
                response = spoiled(rng, response)
        log.append(Exchange(call.api, request, response or None, call.at, call.endpoint_hint, call.line))
    diagnosis = diagnose_log(log, CHATML if counted else None)
    assert diagnosis.requests == len(log)
    json.dumps(to_json(diagnosis))
    assert list(text_lines(diagnosis))


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                (
                    "role",
                    "content",
                    "type",
                    "text",
                    "tool_calls",
                    "function",
                    "messages",
                    "tools",
                    "id",
                    "input",
                    "usage",
                )
            )
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@settings(max_examples=250, deadline=None)
@given(
    bodies=st.lists(
        st.dictionaries(
            st.sampled_from(
                ("messages", "input", "prompt", "tools", "system", "model", "instructions", "tool_choice")
            ),
            anything,
        ),
        max_size=4,
    ),
    api=st.sampled_from(WIRES),
    response=st.none()
    | st.dictionaries(
        st.sampled_from(("choices", "content", "output", "usage", "timings", "error", "id")), anything
    ),
)
def test_bodies_of_any_json(bodies: list[Any], api: str, response: Any) -> None:
    wire = next(wire for wire in WIRES if wire == api)
    diagnosis = diagnose_log([Exchange(wire, body, response) for body in bodies])
    assert diagnosis.requests == len(bodies)


@settings(max_examples=200, deadline=None)
@given(
    record=st.dictionaries(
        st.sampled_from(("request", "response", "at", "api", "endpoint_hint", "messages", "input", "prompt")),
        anything,
    )
)
def test_records_of_any_json(record: dict[str, Any]) -> None:
    """A record either becomes a call or is refused by name, with its line."""
    with contextlib.suppress(InputError):
        exchange_of(record)
    try:
        call = exchange_of(record, line=7, file="log.jsonl")
    except InputError as error:
        refused = error
    else:
        diagnose_log([call])
        return
    assert refused.line == 7
    assert str(refused).startswith("log.jsonl:7: ")


@pytest.mark.parametrize(
    ("body", "api"),
    [
        ({"messages": []}, "openai.chat"),
        ({"messages": [], "system": "x"}, "anthropic.messages"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "anthropic.messages"),
        ({"messages": [], "model": "claude-sonnet-4-5", "max_tokens": 5}, "anthropic.messages"),
        ({"messages": [], "tools": [{"name": "a", "input_schema": {}}]}, "anthropic.messages"),
        ({"messages": [], "tools": [{"type": "bash_20250124", "name": "bash"}]}, "anthropic.messages"),
        ({"messages": [], "tools": [{"type": "function", "function": {}}]}, "openai.chat"),
        ({"input": "x"}, "openai.responses"),
        ({"previous_response_id": "resp_1"}, "openai.responses"),
        ({"prompt": "x"}, "llama.completion"),
    ],
)
def test_the_api_of_a_body(body: dict[str, Any], api: str) -> None:
    assert detect_api(body) == api


def test_the_url_decides_where_the_body_leaves_it_open() -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    assert detect_api(body, "https://gateway.example/v1/messages") == "anthropic.messages"
    assert detect_api(body, "https://gateway.example/v1/chat/completions") == "openai.chat"


def test_times() -> None:
    assert seconds("2026-03-01T10:00:05Z") == seconds("2026-03-01T10:00:05+00:00") == 1772359205.0
    assert seconds("2026-03-01T10:00:05") == 1772359205.0
    assert seconds(1772359205) == seconds(1772359205000) == 1772359205.0
    assert seconds("yesterday") is None
    assert seconds(True) is None
