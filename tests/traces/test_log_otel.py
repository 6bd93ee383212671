"""OpenTelemetry spans of model calls, by the conventions of several years."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentctx.traces import Skipped
from agentctx.usage import usage_from_response

from .log_helpers import (
    records,
    written,
)

PARTS_IN = [
    {"role": "user", "parts": [{"type": "text", "content": "weather?"}]},
    {"role": "assistant", "parts": [{"type": "reasoning", "content": "hm"}, {"type": "tool_call", "id": "c", "name": "w", "arguments": {"city": "Bern"}}]},
    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "sun"}]},
]  # fmt: skip
EXPECTED_IN = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "weather?"},
    {"role": "assistant", "reasoning": "hm", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {"name": "w", "arguments": '{"city":"Bern"}'}}]},
    {"role": "tool", "tool_call_id": "c", "content": "sun"},
]  # fmt: skip
TOOL = {
    "type": "function",
    "function": {"name": "w", "description": "Weather.", "parameters": {"type": "object"}},
}

MODERN: dict[str, Any] = {
    "gen_ai.request.model": "m",
    "gen_ai.request.temperature": 0.5,
    "gen_ai.conversation.id": "conv",
    "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Be brief."}]),
    "gen_ai.input.messages": json.dumps(PARTS_IN),
    "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "Sun."}], "finish_reason": "stop"}]),
    "gen_ai.tool.definitions": json.dumps([TOOL]),
    "gen_ai.usage.input_tokens": 40,
    "gen_ai.usage.output_tokens": 3,
    "gen_ai.usage.cache_read.input_tokens": 32,
}  # fmt: skip
INDEXED = {
    "gen_ai.request.model": "m",
    "gen_ai.request.temperature": 0.5,
    "session.id": "conv",
    "gen_ai.prompt.0.role": "system",
    "gen_ai.prompt.0.content": "Be brief.",
    "gen_ai.prompt.1.role": "user",
    "gen_ai.prompt.1.content": "weather?",
    "gen_ai.prompt.2.role": "assistant",
    "gen_ai.prompt.2.reasoning": "hm",
    "gen_ai.prompt.2.tool_calls.0.id": "c",
    "gen_ai.prompt.2.tool_calls.0.name": "w",
    "gen_ai.prompt.2.tool_calls.0.arguments": '{"city":"Bern"}',
    "gen_ai.prompt.3.role": "tool",
    "gen_ai.prompt.3.tool_call_id": "c",
    "gen_ai.prompt.3.content": "sun",
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.content": "Sun.",
    "gen_ai.completion.0.finish_reason": "stop",
    "llm.request.functions.0.name": "w",
    "llm.request.functions.0.description": "Weather.",
    "llm.request.functions.0.parameters": '{"type": "object"}',
    "gen_ai.usage.prompt_tokens": 40,
    "gen_ai.usage.completion_tokens": 3,
    "gen_ai.usage.cache_read_input_tokens": 32,
}
OPEN_INFERENCE = {
    "llm.model_name": "m",
    "llm.invocation_parameters": '{"temperature": 0.5}',
    "session.id": "conv",
    "llm.input_messages.0.message.role": "system",
    "llm.input_messages.0.message.content": "Be brief.",
    "llm.input_messages.1.message.role": "user",
    "llm.input_messages.1.message.contents.0.message_content.type": "text",
    "llm.input_messages.1.message.contents.0.message_content.text": "weather?",
    "llm.input_messages.2.message.role": "assistant",
    "llm.input_messages.2.message.tool_calls.0.tool_call.id": "c",
    "llm.input_messages.2.message.tool_calls.0.tool_call.function.name": "w",
    "llm.input_messages.2.message.tool_calls.0.tool_call.function.arguments": '{"city":"Bern"}',
    "llm.input_messages.3.message.role": "tool",
    "llm.input_messages.3.message.tool_call_id": "c",
    "llm.input_messages.3.message.content": "sun",
    "llm.output_messages.0.message.role": "assistant",
    "llm.output_messages.0.message.content": "Sun.",
    "llm.tools.0.tool.json_schema": json.dumps(TOOL),
    "llm.token_count.prompt": 40,
    "llm.token_count.completion": 3,
    "llm.token_count.prompt_details.cache_read": 32,
}


def any_value(value: Any) -> dict[str, Any]:
    """A value as OTLP's JSON has it."""
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list():
            return {"arrayValue": {"values": [any_value(item) for item in value]}}
        case dict():
            return {"kvlistValue": {"values": [{"key": k, "value": any_value(v)} for k, v in value.items()]}}
        case _:
            return {"stringValue": value}


def otlp(
    attributes: dict[str, Any], *others: dict[str, Any], events: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    span = {
        "traceId": "t",
        "spanId": "s",
        "name": "chat m",
        "startTimeUnixNano": "1772359200500000000",
        "attributes": [{"key": key, "value": any_value(value)} for key, value in attributes.items()],
        "events": events or [],
    }
    return {
        "resourceSpans": [
            {
                "resource": {"attributes": []},
                "scopeSpans": [{"scope": {"name": "x"}, "spans": [*others, span]}],
            }
        ]
    }


@pytest.mark.parametrize(
    "attributes", [MODERN, INDEXED, OPEN_INFERENCE], ids=["modern", "indexed", "openinference"]
)
def test_spans(tmp_path: Path, attributes: dict[str, Any]) -> None:
    value = otlp(attributes, {"traceId": "t", "spanId": "u", "name": "GET /", "attributes": []})
    skipped: list[Skipped] = []
    (record,) = records(written(tmp_path / "spans", value), on_skip=skipped.append)
    expected = [dict(message) for message in EXPECTED_IN]
    if attributes is OPEN_INFERENCE:  # it has no place for reasoning, and keeps content in parts
        del expected[2]["reasoning"]
        expected[1]["content"] = [{"type": "text", "text": "weather?"}]
    assert record.request == {"model": "m", "messages": expected, "tools": [TOOL], "temperature": 0.5}
    assert record.response is not None
    assert record.response["choices"][0]["message"] == {"role": "assistant", "content": "Sun."}
    usage = usage_from_response(record.response)
    assert usage is not None
    assert (usage.prompt, usage.cached, usage.output) == (40, 32, 3)
    assert (record.at, record.session_hint, record.container) == (1772359200.5, "conv", "otel")
    assert record.extra["span"]["name"] == "chat m"
    assert [skip.reason for skip in skipped] == ["span 'GET /' holds no messages"]


def test_attributes_may_be_structured(tmp_path: Path) -> None:
    structured = {
        **MODERN,
        **{key: json.loads(MODERN[key]) for key in MODERN if str(MODERN[key]).startswith("[")},
    }
    plain, other = records(written(tmp_path / "spans", otlp(MODERN), otlp(structured)))
    assert plain.request == other.request
    assert plain.response == other.response


def test_spans_with_events(tmp_path: Path) -> None:
    def event(name: str, **attributes: Any) -> dict[str, Any]:
        return {"name": name, "attributes": [{"key": key, "value": any_value(value)} for key, value in attributes.items()]}  # fmt: skip

    each = [
        event("gen_ai.system.message", content="Be brief."),
        event("gen_ai.user.message", content="weather?"),
        event("gen_ai.assistant.message", tool_calls=json.dumps(EXPECTED_IN[2]["tool_calls"])),
        event("gen_ai.tool.message", id="c", content="sun"),
        event("gen_ai.choice", message=json.dumps({"content": "Sun."}), finish_reason="stop"),
    ]
    at_once = [
        {"name": "gen_ai.content.prompt", "attributes": [{"key": "gen_ai.prompt", "value": any_value(json.dumps(EXPECTED_IN))}]},
    ]  # fmt: skip
    first, second = records(written(tmp_path / "spans", otlp({"gen_ai.request.model": "m"}, events=each), otlp({"gen_ai.request.model": "m"}, events=at_once)))  # fmt: skip
    assert [message["content"] for message in first.request["messages"]] == [
        "Be brief.",
        "weather?",
        None,
        "sun",
    ]
    assert first.request["messages"][2]["tool_calls"] == EXPECTED_IN[2]["tool_calls"]
    assert first.request["messages"][3]["tool_call_id"] == "c"
    assert first.response is not None
    assert first.response["choices"] == [{"index": 0, "message": {"role": "assistant", "content": "Sun."}, "finish_reason": "stop"}]  # fmt: skip
    assert second.request["messages"] == EXPECTED_IN


def test_spans_printed_one_after_another(tmp_path: Path) -> None:
    """The SDK's console exporter prints indented objects, with nothing between them."""
    span = {"name": "chat", "context": {"trace_id": "0x1", "span_id": "0x2"}, "start_time": "2026-03-01T10:00:00.500000Z", "attributes": MODERN, "events": []}  # fmt: skip
    path = tmp_path / "spans.txt"
    path.write_text((json.dumps(span, indent=4) + "\n") * 3)
    found = records(path)
    assert [record.line for record in found] == [1, 1 + len(json.dumps(span, indent=4).splitlines()), 1 + 2 * len(json.dumps(span, indent=4).splitlines())]  # fmt: skip
    assert all(record.request["messages"] == EXPECTED_IN for record in found)
