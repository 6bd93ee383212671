"""Values that an exporter cut: whatever the format and the length, a log that isn't whole says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentctx.checks.log import LogReport, LogRules, check_log, report_lines, reports_json
from agentctx.diagnosis import parse_target

from .log_helpers import written
from .test_log_otel import any_value, otlp

RULES = LogRules(parse_target("as-sent"))
SYSTEM = "You are a careful coding agent. Read before writing, run the tests, touch nothing else."
TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "Why does the nightly job fail on the first of the month?"},
    {"role": "assistant", "content": "I look at the file.", "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"path":"jobs/nightly.py"}'}},
    ]},
    {"role": "tool", "tool_call_id": "call_1", "content": "def first_day(month):\n    return month - 1  # of the last month, and 0 in January\n"},
    {"role": "assistant", "content": "In January the month before is 0, which is no month; it has to be 12 of the last year."},
    {"role": "user", "content": "Good. Mend it, and write a test that would have found it."},
    {"role": "assistant", "content": "Both are done."},
]  # fmt: skip
TOOL = {
    "type": "function",
    "function": {"name": "read", "description": "Reads.", "parameters": {"type": "object", "properties": {}}},
}
HEAD = [{"role": "system", "content": SYSTEM}]
ENDS = (1, 3, 5)


def parts(message: dict[str, Any]) -> dict[str, Any]:
    """The message as the GenAI conventions have it."""
    if message["role"] == "tool":
        found = [
            {"type": "tool_call_response", "id": message["tool_call_id"], "response": message["content"]}
        ]
        return {"role": "tool", "parts": found}
    found = [{"type": "text", "content": message["content"]}]
    found += [
        {"type": "tool_call", "id": call["id"], "name": call["function"]["name"], "arguments": call["function"]["arguments"]}
        for call in message.get("tool_calls", ())
    ]  # fmt: skip
    return {"role": message["role"], "parts": found}


def modern(end: int) -> dict[str, Any]:
    return {
        "attributes": {
            "gen_ai.request.model": "m",
            "gen_ai.system_instructions": json.dumps([{"type": "text", "content": SYSTEM}]),
            "gen_ai.input.messages": json.dumps([parts(each) for each in TALK[:end]]),
            "gen_ai.output.messages": json.dumps([parts(TALK[end])]),
            "gen_ai.tool.definitions": json.dumps([TOOL]),
        }
    }


def structured(end: int) -> dict[str, Any]:
    attributes = modern(end)["attributes"]
    return {
        "attributes": {
            name: json.loads(value) if value[0] == "[" else value for name, value in attributes.items()
        }
    }


def indexed(end: int) -> dict[str, Any]:
    attributes = {"gen_ai.request.model": "m"}
    for prefix, messages in (("gen_ai.prompt", [*HEAD, *TALK[:end]]), ("gen_ai.completion", [TALK[end]])):
        for index, message in enumerate(messages):
            here = f"{prefix}.{index}"
            attributes |= {
                f"{here}.{name}": message[name]
                for name in ("role", "content", "tool_call_id")
                if name in message
            }
            for number, call in enumerate(message.get("tool_calls", ())):
                attributes[f"{here}.tool_calls.{number}.id"] = call["id"]
                attributes |= {
                    f"{here}.tool_calls.{number}.{name}": value for name, value in call["function"].items()
                }
    attributes["llm.request.functions.0.name"] = "read"
    attributes["llm.request.functions.0.parameters"] = json.dumps(TOOL["function"]["parameters"])  # type: ignore[index]
    return {"attributes": attributes}


def open_inference(end: int) -> dict[str, Any]:
    sent = [*HEAD, *TALK[:end]]
    attributes = {
        "llm.model_name": "m",
        "llm.invocation_parameters": json.dumps({"temperature": 0.5}),
        "llm.tools.0.tool.json_schema": json.dumps(TOOL),
        "input.mime_type": "application/json",
        "input.value": json.dumps({"model": "m", "messages": sent, "tools": [TOOL]}),
    }
    for prefix, messages in (("llm.input_messages", sent), ("llm.output_messages", [TALK[end]])):
        for index, message in enumerate(messages):
            here = f"{prefix}.{index}.message"
            attributes |= {
                f"{here}.{name}": message[name]
                for name in ("role", "content", "tool_call_id")
                if name in message
            }
            for number, call in enumerate(message.get("tool_calls", ())):
                at = f"{here}.tool_calls.{number}.tool_call"
                attributes[f"{at}.id"] = call["id"]
                attributes |= {f"{at}.function.{name}": value for name, value in call["function"].items()}
    return {"attributes": attributes}


def each_an_event(end: int) -> dict[str, Any]:
    events = []
    for message in [*HEAD, *TALK[:end]]:
        values = {name: message[name] for name in ("content",) if name in message}
        if "tool_calls" in message:
            values["tool_calls"] = json.dumps(message["tool_calls"])
        if "tool_call_id" in message:
            values["id"] = message["tool_call_id"]
        events.append((f"gen_ai.{message['role']}.message", values))
    choice = {key: value for key, value in TALK[end].items() if key != "role"}
    events.append(("gen_ai.choice", {"message": json.dumps(choice), "finish_reason": "stop"}))
    return {"attributes": {"gen_ai.request.model": "m"}, "events": events}


def one_event(end: int) -> dict[str, Any]:
    events = [
        ("gen_ai.content.prompt", {"gen_ai.prompt": json.dumps([*HEAD, *TALK[:end]])}),
        ("gen_ai.content.completion", {"gen_ai.completion": json.dumps([TALK[end]])}),
    ]
    return {"attributes": {"gen_ai.request.model": "m"}, "events": events}


def details(end: int) -> dict[str, Any]:
    name = "gen_ai.client.inference.operation.details"
    return {"attributes": {"gen_ai.request.model": "m"}, "events": [(name, modern(end)["attributes"])]}


SPANS: dict[str, Callable[[int], dict[str, Any]]] = {
    "modern": modern, "structured": structured, "indexed": indexed, "openinference": open_inference,
    "events": each_an_event, "one event": one_event, "details": details,
}  # fmt: skip


def litellm(end: int) -> dict[str, Any]:
    return {
        "messages": [*HEAD, *TALK[:end]],
        "model_parameters": {"tools": [TOOL]},
        "response": {"choices": [{"index": 0, "message": TALK[end], "finish_reason": "stop"}]},
    }


def litellm_texts(end: int) -> dict[str, Any]:
    """As a table of the proxy's database holds it."""
    whole = litellm(end)
    return {**whole, **{name: json.dumps(whole[name]) for name in ("model_parameters", "response")}}


PAYLOADS = {"litellm": litellm, "litellm texts": litellm_texts}


def cut(value: Any, limit: int) -> Any:
    """As OpenTelemetry's SDKs do it: every text, also in lists."""
    if isinstance(value, str):
        return value[:limit]
    if isinstance(value, dict):
        return {name: cut(each, limit) for name, each in value.items()}
    return [cut(each, limit) for each in value] if isinstance(value, list) else value


def span_of(call: dict[str, Any]) -> dict[str, Any]:
    events = [
        {
            "name": name,
            "attributes": [{"key": key, "value": any_value(value)} for key, value in values.items()],
        }
        for name, values in call.get("events", ())
    ]
    return otlp(call["attributes"], events=events)


def log_of(kind: str, limit: int | None = None) -> list[Any]:
    make = SPANS.get(kind) or PAYLOADS[kind]
    calls = [make(end) for end in ENDS]
    if limit is not None:
        calls = [
            {**cut({k: v for k, v in call.items() if k != "events"}, limit),
             "events": [(name, cut(values, limit)) for name, values in call.get("events", ())]}
            for call in calls
        ]  # fmt: skip
    if kind in SPANS:
        return [span_of(call) for call in calls]
    return [{"call_type": "acompletion", "model": "m", **call} for call in calls]


def checked(path: Path, values: list[Any]) -> LogReport:
    return check_log(str(written(path, *values)), RULES)


def texts(value: Any) -> set[str]:
    if isinstance(value, str):
        return {value}
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return {text for each in inner for text in texts(each)}


@pytest.mark.parametrize("kind", [*SPANS, *PAYLOADS])
def test_a_whole_log_is_clean(tmp_path: Path, kind: str) -> None:
    report = checked(tmp_path / "log", log_of(kind))
    assert (report.exit_code, report.error, report.doubts) == (0, None, [])
    assert (report.diagnosis.requests, report.diagnosis.conversation_count) == (3, 1)


@pytest.mark.parametrize("kind", [*SPANS, *PAYLOADS])
def test_no_length_is_cut_in_silence(tmp_path: Path, kind: str) -> None:
    make = SPANS.get(kind) or PAYLOADS[kind]
    calls = [make(end) for end in ENDS]
    for call in calls:  # what nothing is read from
        call.get("attributes", {}).pop("input.value", None)
    longest = max(len(text) for call in calls for text in texts(call))
    for limit in range(longest):
        report = checked(tmp_path / "log", log_of(kind, limit))
        assert report.exit_code == 3 or report.doubts, limit
        if report.exit_code == 0:
            assert any("text" in line for line in report_lines(report) if line.startswith("note: "))
            assert reports_json([report])["logs"][0]["doubts"]
    assert not checked(tmp_path / "log", log_of(kind, longest)).doubts


def test_such_records_can_be_passed_over(tmp_path: Path) -> None:
    path = written(tmp_path / "log", log_of("modern")[0], log_of("modern", 400)[2])
    report = check_log(str(path), LogRules(RULES.target, skip_others=True))
    assert (report.exit_code, report.diagnosis.requests) == (0, 1)
    (skipped,) = report.skipped
    assert (skipped.line, skipped.reason) == (
        2,
        "only a part of the request was logged: gen_ai.input.messages is no whole JSON after 400 characters",
    )
    error = check_log(str(path), RULES).error
    assert "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT" in str(error)
    assert f"{path}:2: " in str(error)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda span: span.update(droppedAttributesCount=2), "2 of its attributes were dropped"),
        (lambda span: span.update(dropped_events_count=1), "1 of its events were dropped"),
        (
            lambda span: span.update(
                attributes=[each for each in span["attributes"] if ".prompt.0" not in each["key"]]
            ),
            "gen_ai.prompt.0 is missing",
        ),
        (lambda span: span.update(attributes=span["attributes"][:1], droppedAttributesCount=9), "9 of its"),
    ],
)
def test_messages_that_were_left_out_are_missed(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], says: str
) -> None:
    value = log_of("indexed")[0]
    span = value["resourceSpans"][0]["scopeSpans"][0]["spans"][0]
    change(span)
    report = checked(tmp_path / "log", [value])
    assert report.exit_code == 3
    assert says in str(report.error)


def test_the_calls_own_json_tells_where_its_texts_were_cut(tmp_path: Path) -> None:
    long = {"role": "user", "content": "w" * 999}
    attributes = open_inference(1)["attributes"] | {"llm.input_messages.1.message.content": long["content"]}
    attributes["input.value"] = json.dumps({"messages": [*HEAD, long]})
    assert checked(tmp_path / "log", [otlp(attributes)]).exit_code == 0
    assert (
        checked(
            tmp_path / "log", [otlp({**attributes, "input.value": attributes["input.value"][:900]})]
        ).exit_code
        == 0
    )
    report = checked(tmp_path / "log", [otlp(cut(attributes, 777))])
    assert "input.value and a message are cut after 777 characters" in str(report.error)


@pytest.mark.parametrize(("limit", "told"), [(1000, True), (1024, True), (4095, True), (777, False)])
def test_one_text_alone_is_doubted_at_a_usual_limit(tmp_path: Path, limit: int, told: bool) -> None:
    """At any other length it is a text like others: nothing shows that more stood behind it."""
    attributes = indexed(1)["attributes"] | {"gen_ai.prompt.1.content": "w" * 9000}
    report = checked(tmp_path / "log", [otlp(cut(attributes, limit))])
    assert (report.exit_code, bool(report.doubts)) == (0, told)


@pytest.mark.parametrize("field", ["messages", "model_parameters", "response"])
def test_what_litellm_shortened(tmp_path: Path, field: str) -> None:
    (payload, *_) = log_of("litellm")
    mark = "Read before... (litellm_truncated 12982 chars)"
    if field == "messages":
        payload["messages"][0] = {"role": "system", "content": mark}
    elif field == "response":
        payload["response"]["choices"][0]["message"] = {"role": "assistant", "content": mark}
    else:
        payload["model_parameters"] = {"tools": [{**TOOL, "description": mark}]}
    report = checked(tmp_path / "log", [payload])
    assert report.exit_code == 3
    assert "a text was shortened: litellm_truncated 12982 chars" in str(report.error)
    payload[field] = json.dumps(payload[field])[:30]
    assert checked(tmp_path / "log", [payload]).exit_code == 3


@pytest.mark.parametrize(
    "attributes",
    [
        {"message": '{"half": ', "tool_calls": "[{"},  # of a span that is about something else
        {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "read"},
    ],
)
def test_other_spans_are_other_traffic(tmp_path: Path, attributes: dict[str, Any]) -> None:
    assert checked(tmp_path / "log", [otlp(attributes), log_of("modern")[0]]).exit_code == 0


@pytest.mark.parametrize("text", ["[INST] Be brief. [/INST]", "{name} is the user", "", "Be brief."])
def test_plain_instructions_are_no_cut_json(tmp_path: Path, text: str) -> None:
    attributes = modern(1)["attributes"] | {"gen_ai.system_instructions": text, "gen_ai.output.messages": ""}
    assert checked(tmp_path / "log", [otlp(attributes)]).exit_code == 0
