"""Logs of requests: bare and wrapped bodies, HAR, LiteLLM, every layout and compression."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentctx.errors import InputError
from agentctx.traces import LogRecord, Skipped, record_reply
from agentctx.usage import usage_from_response

from .log_helpers import (
    ANTHROPIC,
    BODIES,
    CHAT,
    CHAT_REPLY,
    LLAMA,
    RESPONSES,
    leaves,
    records,
    whole,
    written,
)


@pytest.mark.parametrize("api", BODIES)
def test_bare_bodies_are_told_apart(tmp_path: Path, api: str) -> None:
    (record,) = records(written(tmp_path / "log", BODIES[api]))
    assert (record.api, record.request, record.response, record.container) == (api, BODIES[api], None, "body")
    assert (record.line, record.index, record.raw) == (1, 0, json.dumps(BODIES[api]).encode())


@pytest.mark.parametrize(
    "extra",
    [
        {"tools": [{"name": "f", "input_schema": {}}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "b"}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]}]},
    ],
)  # fmt: skip
def test_anthropic_bodies_without_system_are_told_by_their_blocks(
    tmp_path: Path, extra: dict[str, Any]
) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}]} | extra
    assert records(written(tmp_path / "log", body))[0].api == "anthropic.messages"


@pytest.mark.corpus
def test_the_body_alone_tells_the_api_on_every_shared_case(shared_dir: Path, tmp_path: Path) -> None:
    seen = 0
    for log in sorted((shared_dir / "cases" / "requests").glob("*/requests.jsonl")):
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        bodies = records(written(tmp_path / "log", *(line["request"] for line in lines)))
        assert [record.api for record in bodies] == [line["api"] for line in lines], log.parent.name
        for record, line in zip(records(log), lines, strict=True):
            assert record.request == line["request"]
            assert record.response == line["response"]
            assert record.endpoint_hint == line.get("endpoint_hint")
            assert record.at is not None
            seen += 1
    assert seen == 217


@pytest.mark.parametrize(
    "line",
    [
        {"request": CHAT, "response": CHAT_REPLY},
        {"body": CHAT, "response": CHAT_REPLY, "url": "https://a.example/v1/chat/completions"},
        {"request": {"method": "POST", "url": "https://a.example/v1/chat/completions", "body": CHAT}, "response": {"status": 200, "body": CHAT_REPLY}},
        {"request": {"body": json.dumps(CHAT)}, "response": {"status": 200, "body": json.dumps(CHAT_REPLY)}},
        {"request_body": json.dumps(CHAT), "response_body": json.dumps(CHAT_REPLY)},
        {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": CHAT, "response": CHAT_REPLY},
    ],
)  # fmt: skip
def test_wrapped_bodies_are_found_and_the_rest_is_kept(tmp_path: Path, line: dict[str, Any]) -> None:
    line = {"ts": "2026-03-01T10:00:00Z", "note": {"a": [1, None]}, **line}
    (record,) = records(written(tmp_path / "log", line))
    assert (record.api, record.request, record.response) == ("openai.chat", CHAT, CHAT_REPLY)
    assert record.at == 1772359200.0
    assert record.extra["note"] == {"a": [1, None]}
    assert leaves(line) <= leaves(whole(record))


REPLIES: dict[str, dict[str, Any]] = {
    "openai.chat": {**CHAT_REPLY, "usage": {"prompt_tokens": 20, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 16}}},
    "anthropic.messages": {"type": "message", "role": "assistant", "content": [{"type": "text", "text": "ho"}], "usage": {"input_tokens": 4, "output_tokens": 2, "cache_read_input_tokens": 16}},
    "openai.responses": {"object": "response", "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ho"}]}], "usage": {"input_tokens": 20, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 16}}},
    "llama.completion": {"content": "ho", "timings": {"cache_n": 16, "prompt_n": 4, "predicted_n": 2}},
}  # fmt: skip


def as_stream(reply: dict[str, Any]) -> list[dict[str, Any]]:
    """A reply of chat completions in one event."""
    chunk = {key: value for key, value in reply.items() if key not in ("choices", "object")}
    choices = [{"index": 0, "delta": reply["choices"][0]["message"]}]
    return [{**chunk, "object": "chat.completion.chunk", "choices": choices}]


HOLDERS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "response": lambda reply: {"response": reply},
    "text": lambda reply: {"response": json.dumps(reply)},
    "body": lambda reply: {"response": {"status": 200, "body": reply}},
    "body text": lambda reply: {"response": {"status": 200, "body": json.dumps(reply)}},
    "data": lambda reply: {"response": {"status": 200, "headers": {"a": "b"}, "data": reply}},
    "json": lambda reply: {"response": {"status": 200, "json": reply}},
    "response_body": lambda reply: {"response_body": reply},
    "res": lambda reply: {"res": {"status": 200, "body": json.dumps(reply)}},
    "reply": lambda reply: {"reply": reply},
}
TIMES = {"at": 1772359200.0, "timestamp": "2026-03-01T10:00:00Z", "time": 1772359200, "t": 1772359200.0, "ts": 1772359200000, "start_time": "2026-03-01T10:00:00+00:00", "created_at": "2026-03-01T11:00:00+01:00", "startTime": "2026-03-01T10:00:00Z", "request_created_at": "2026-03-01T10:00:00Z", "created": 1772359200}  # fmt: skip


def usage_of(record: LogRecord) -> tuple[int | None, int | None, int | None] | None:
    usage = usage_from_response(record.response) if record.response is not None else None
    return None if usage is None else (usage.prompt, usage.cached, usage.output)


@pytest.mark.parametrize("time", TIMES)
@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("api", BODIES)
@pytest.mark.parametrize("bare", [True, False], ids=["bare", "wrapped"])
def test_what_stands_beside_a_body_is_read(
    tmp_path: Path, bare: bool, api: str, holder: str, time: str
) -> None:
    beside = {**HOLDERS[holder](REPLIES[api]), time: TIMES[time], "url": "https://a.example/x"}
    line = {**BODIES[api], **beside} if bare else {"request": BODIES[api], **beside}
    (record,) = records(written(tmp_path / "log", line))
    assert (record.api, record.request, record.response) == (api, BODIES[api], REPLIES[api])
    assert (record.at, record.endpoint_hint) == (1772359200.0, "https://a.example/x")
    assert usage_of(record) == (20, 16, 2)
    assert record_reply(record) is not None
    assert leaves(line) <= leaves(whole(record))


@pytest.mark.parametrize("bare", [True, False], ids=["bare", "wrapped"])
@pytest.mark.parametrize("api", BODIES)
def test_counts_beside_a_body_are_those_of_its_reply(tmp_path: Path, api: str, bare: bool) -> None:
    (name,) = {"usage", "timings"} & REPLIES[api].keys()
    reply = {key: value for key, value in REPLIES[api].items() if key != name}
    body = BODIES[api] if bare else {"request": BODIES[api]}
    lines = [{**body, name: REPLIES[api][name]}, {**body, name: REPLIES[api][name], "response": reply}]
    for record, line in zip(records(written(tmp_path / "log", *lines)), lines, strict=True):
        assert record.request == BODIES[api]
        assert usage_of(record) == (20, 16, 2)
        assert leaves(line) <= leaves(whole(record))
        assert (record_reply(record) is None) == ("response" not in line)


@pytest.mark.parametrize("api", BODIES)
def test_body_and_reply_in_one_object(tmp_path: Path, api: str) -> None:
    merged = {**BODIES[api], **{k: v for k, v in REPLIES[api].items() if k not in ("object", "type", "role")}}
    (record,) = records(written(tmp_path / "log", merged))
    assert (record.api, record.request) == (api, BODIES[api])
    assert usage_of(record) == (20, 16, 2)
    assert record_reply(record) is not None
    assert leaves(merged) <= leaves(whole(record))


@pytest.mark.parametrize(
    "events", [list, lambda found: "".join(f"data: {json.dumps(each)}\n\n" for each in found)]
)
def test_a_stream_beside_a_bare_body(tmp_path: Path, events: Callable[[Any], Any]) -> None:
    reply = REPLIES["openai.chat"]
    line = {**CHAT, "response": events(as_stream(reply)), "ts": 1772359200}
    (record,) = records(written(tmp_path / "log", line))
    assert (record.request, record.response) == (CHAT, reply)
    assert record.extra == {"response": line["response"], "ts": 1772359200}


def test_what_only_looks_like_a_log_stays_in_the_body(tmp_path: Path) -> None:
    """A wish for usage is a field of the request; a reply's plain text is kept beside it, since it may be half of the reply."""
    wish = {**CHAT, "usage": {"include": True}, "metadata": {"time": 5}}
    text = {**CHAT, "response": "ho"}
    first, second = records(written(tmp_path / "log", wish, text))
    assert (first.request, first.response, first.extra) == (wish, None, {})
    assert (second.request, second.response, second.extra) == (CHAT, None, {"response": "ho"})


# --- HAR ---------------------------------------------------------------------------------------------------


def har_entry(body: Any, reply: str, encoding: str | None = None) -> dict[str, Any]:
    content: dict[str, Any] = {"mimeType": "application/json", "text": reply}
    if encoding:
        content["encoding"] = encoding
    return {
        "startedDateTime": "2026-03-01T10:00:00.500Z",
        "time": 12.5,
        "request": {
            "method": "POST",
            "url": "https://api.anthropic.com/v1/messages?beta=true",
            "headers": [{"name": "x", "value": "y"}],
            "postData": {"mimeType": "application/json", "text": json.dumps(body)},
        },
        "response": {"status": 200, "content": content},
    }


PICTURE = {
    "startedDateTime": "2026-03-01T10:00:00Z",
    "request": {"method": "GET", "url": "https://a/b.png"},
    "response": {},
}


@pytest.mark.parametrize("indent", [None, 2])
def test_har(tmp_path: Path, indent: int | None) -> None:
    reply = {"type": "message", "content": [{"type": "text", "text": "ho"}], "usage": {"input_tokens": 3}}
    entries = [
        PICTURE,
        har_entry(ANTHROPIC, json.dumps(reply)),
        har_entry(ANTHROPIC, base64.b64encode(json.dumps(reply).encode()).decode(), "base64"),
    ]
    path = tmp_path / "traffic.har"
    har = {"log": {"version": "1.2", "creator": {"name": "x"}, "pages": [], "entries": entries}}
    path.write_text(json.dumps(har, indent=indent))
    skipped: list[Skipped] = []
    first, second = records(path, on_skip=skipped.append)
    assert first.request == second.request == ANTHROPIC
    assert first.response == second.response == reply
    assert (first.api, first.at, first.container) == ("anthropic.messages", 1772359200.5, "har")
    assert first.endpoint_hint == "https://api.anthropic.com/v1/messages?beta=true"
    for record, entry in zip((first, second), entries[1:], strict=True):
        assert leaves(entry) <= leaves(whole(record))
        assert record.extra["log"] == {"version": "1.2", "creator": {"name": "x"}, "pages": []}
    assert len(skipped) == 1
    if indent:
        assert path.read_text().splitlines()[first.line - 1] == "      {"
        assert first.line < second.line
    assert [record.request for record in records(path)] == [ANTHROPIC, ANTHROPIC]


def test_a_har_without_a_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "traffic.har"
    path.write_text(json.dumps({"log": {"entries": [PICTURE]}}))
    with pytest.raises(InputError, match="no request to a model in this file"):
        records(path)


# --- LiteLLM -----------------------------------------------------------------------------------------------


def test_litellm_payloads(tmp_path: Path) -> None:
    payload = {
        "id": "c1",
        "trace_id": "t1",
        "call_type": "acompletion",
        "startTime": 1772359200.5,
        "model": "gpt-x",
        "api_base": "https://a.example",
        "messages": CHAT["messages"],
        "model_parameters": {"temperature": 0.5, "tools": [{"type": "function", "function": {"name": "f"}}]},
        "response": CHAT_REPLY,
        "metadata": {"user_api_key_hash": "x"},
    }
    sent = {
        "litellm_call_id": "c2",
        "messages": "redacted",
        "additional_args": {"complete_input_dict": ANTHROPIC},
    }
    claude = {"call_type": "anthropic_messages", "messages": ANTHROPIC["messages"], "model": "m", "model_parameters": {"system": "x"}}  # fmt: skip
    path = written(tmp_path / "log", payload, sent, claude)
    first, second, third = records(path)
    assert first.request == {"model": "gpt-x", "messages": CHAT["messages"], **payload["model_parameters"]}  # type: ignore[dict-item]
    assert (first.api, first.response, first.at) == ("openai.chat", CHAT_REPLY, 1772359200.5)
    assert (first.session_hint, first.endpoint_hint, first.container) == (
        "t1",
        "https://a.example",
        "litellm",
    )
    assert (second.api, second.request) == ("anthropic.messages", ANTHROPIC)
    assert (third.api, third.request["system"]) == ("anthropic.messages", "x")
    for record, value in zip((first, second, third), (payload, sent, claude), strict=True):
        assert leaves(value) <= leaves(whole(record))


# --- layouts and compression -------------------------------------------------------------------------------


def pack(data: bytes, how: str) -> bytes:
    if how == "gzip":
        return gzip.compress(data)
    if how == "zstd":
        zstandard = pytest.importorskip("zstandard")
        # Two frames: appended logs are compressed piece by piece.
        packer = zstandard.ZstdCompressor()
        return bytes(packer.compress(data[: len(data) // 2]) + packer.compress(data[len(data) // 2 :]))
    return data


@pytest.mark.parametrize("how", ["plain", "gzip", "zstd"])
@pytest.mark.parametrize("layout", ["lines", "array", "indented array", "values", "one value"])
def test_layouts_and_compression(tmp_path: Path, layout: str, how: str) -> None:
    values = [CHAT, {"request": ANTHROPIC}, RESPONSES, LLAMA]
    if layout == "one value":
        values = values[:1]
    text = {
        "lines": "".join(json.dumps(value) + "\n" for value in values),
        "array": json.dumps(values),
        "indented array": json.dumps(values, indent=2),
        "values": "\n".join(json.dumps(value, indent=1) for value in values),
        "one value": json.dumps(values[0], indent=3) + "\n",
    }[layout]
    path = tmp_path / "log"
    path.write_bytes(pack(text.encode(), how))
    found = records(path)
    assert [record.request for record in found] == [value.get("request", value) for value in values]
    assert [record.index for record in found] == list(range(len(values)))
    assert all(json.loads(record.raw) == value for record, value in zip(found, values, strict=True))


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("[\n{},\n", 2, "no request to a model"),
        ("[\n" + json.dumps(CHAT) + ",\n{", 3, "broken JSON"),
        ("[\n" + json.dumps(CHAT) + "\n", 3, "the file ends"),
        ("[\n" + json.dumps(CHAT) + ";\n]", 2, "expected ','"),
        ("[" + json.dumps(CHAT) + "]\n\nx", 3, "behind the array"),
        ('{\n "model": "m",\n "messages": [\n}\n', 4, "broken JSON"),
        ('{"log": {"version": "1"}}', 1, "without entries"),
        ('{"log": {"entries": [\n{"request": }]}}', 2, "broken JSON"),
        (json.dumps(CHAT) + "\n" + '{"agentctx": "request", "version": 9}\n', 2, "version"),
        (json.dumps({"agentctx": "request", "version": 1, "api": "x"}) + "\n", 1, "unknown API"),
        (json.dumps({"agentctx": "request", "version": 1, "api": "text"}) + "\n", 1, "expected an object"),
        ('{"url": "https://a/v1/embeddings", "body": {"model": "e", "input": "x"}}\n', 1, "no request to a model"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_line(tmp_path: Path, text: str, line: int, says: str) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    with pytest.raises(InputError, match=says) as caught:
        records(path)
    assert (caught.value.file, caught.value.line) == (str(path), line)
    assert caught.value.remedy


def test_other_records_can_be_passed_over(tmp_path: Path) -> None:
    path = written(
        tmp_path / "log", {"event": "start"}, CHAT, {"url": "https://a/v1/embeddings", "body": {"input": "x"}}
    )
    skipped: list[Skipped] = []
    assert [record.line for record in records(path, on_skip=skipped.append)] == [2]
    assert [skip.line for skip in skipped] == [1, 3]
