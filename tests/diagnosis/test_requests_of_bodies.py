"""Bodies as requests: what one message of a model is, where each message came from, and a turn read behind the last one."""

from __future__ import annotations

from typing import Any

import pytest

from agentctx.diagnosis.exchange import Exchange
from agentctx.diagnosis.views import View, view_of
from agentctx.diagnosis.wire import place_of, reply_message, request_of
from agentctx.errors import InputError
from agentctx.interchange.body_api import Api

from .healthy_sessions import make

Body = dict[str, Any]
RESPONSES: list[Body] = [
    {"role": "user", "content": "go"},
    {"type": "reasoning", "id": "r1", "summary": [{"type": "summary_text", "text": "hm"}]},
    {"type": "function_call", "call_id": "c1", "name": "read", "arguments": '{"a":1}'},
    {"type": "function_call", "call_id": "c2", "name": "read", "arguments": '{"a":2}'},
    {"type": "function_call_output", "call_id": "c1", "output": "one"},
    {"type": "function_call_output", "call_id": "c2", "output": "two"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Both."}]},
    {"role": "user", "content": "thanks"},
]
CHAT: list[Body] = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "go"},
    {"role": "assistant", "content": "one"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "on"},
]


def view(api: Api, **body: Any) -> View:
    return view_of(Exchange(api, {"model": "m", **body}))


def test_what_a_model_made_in_a_row_is_one_message_of_the_responses_api() -> None:
    mapped = request_of(view("openai.responses", instructions="s", input=RESPONSES))
    messages = mapped.request.messages
    assert [message.role for message in messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
        "user",
    ]
    assert [call.id for call in messages[2].tool_calls] == ["c1", "c2"]
    assert messages[2].reasoning == "hm"
    assert mapped.origins == (-1, 0, 1, 4, 5, 6, 7)
    assert place_of(mapped, 2, "tool_calls") == "input[1].tool_calls"
    assert place_of(mapped, 6, "content") == place_of(mapped, 6, "note") == "input[7].content"
    assert place_of(mapped, 2, "reasoning") == "input[1].reasoning_content"
    assert place_of(mapped, 0, "content") == place_of(mapped, 99, "content") == "instructions"


def test_messages_of_the_chat_api_stay_as_they_are() -> None:
    mapped = request_of(view("openai.chat", messages=CHAT))
    assert [message.text for message in mapped.request.messages] == ["s", "go", "one", "two", "on"]
    assert mapped.origins == (0, 1, 2, 3, 4)


@pytest.mark.parametrize("api", ["openai.chat", "openai.responses", "anthropic.messages"])
@pytest.mark.parametrize("seed", [3, 4])
def test_a_turn_read_behind_the_last_one_is_the_turn_read_alone(api: Api, seed: int) -> None:
    previous = None
    seen = 0
    for body in make(seed, api, turns=6).bodies:
        now = view_of(Exchange(api, body))
        alone = request_of(now)
        for shared in {seen, seen // 2, max(0, seen - 1)} if previous is not None else ():
            behind = request_of(now, previous, shared)
            assert (behind.request, behind.origins) == (alone.request, alone.origins)
        if previous is not None and seen:
            kept = request_of(now, previous, seen).request.messages
            same = sum(any(old is new for old in previous.request.messages) for new in kept)
            assert same >= len(previous.request.messages) - 4, "what is known is taken over, not read again"
        previous, seen = alone, len(now.items)


def test_a_reply_is_one_message_or_none() -> None:
    chat = view("openai.chat", messages=CHAT)
    reply = reply_message(
        chat, [[{"role": "assistant", "content": "x"}], [{"role": "assistant", "content": "y"}]]
    )
    assert reply is not None
    assert reply.text == "x"
    assert reply_message(chat, []) is None
    assert reply_message(chat, [CHAT[2:4]]) is None
    responses = reply_message(view("openai.responses", input="go"), [RESPONSES[1:4]])
    assert responses is not None
    assert [call.id for call in responses.tool_calls] == ["c1", "c2"]


def test_a_body_of_no_api_is_refused_by_name() -> None:
    with pytest.raises(InputError):
        request_of(view("openai.chat", messages=[{"role": "user", "content": 5}]))
