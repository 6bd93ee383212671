"""Streamed responses in logs are put together to the body that an unstreamed call gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentctx.usage import usage_from_response

from .log_helpers import (
    ANTHROPIC,
    CHAT,
    LLAMA,
    RESPONSES,
    records,
    written,
)


def sse(*events: Any, done: bool = False) -> str:
    text = "".join(f"event: {event.get('type', 'x')}\ndata: {json.dumps(event)}\n\n" for event in events)
    return text + ("data: [DONE]\n\n" if done else "")


def response_of(tmp_path: Path, body: dict[str, Any], stream: str) -> Any:
    (record,) = records(written(tmp_path / "log", {"request": body, "response": stream}))
    assert record.extra["response"] == stream
    return record.response


def test_anthropic_stream(tmp_path: Path) -> None:
    text = sse(
        {"type": "message_start", "message": {"id": "m1", "type": "message", "content": [], "usage": {"input_tokens": 5, "cache_read_input_tokens": 2, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "hm"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "abc"}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "a"}},
        {"type": "ping"},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "b"}},
        {"type": "content_block_start", "index": 2, "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {}}},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": '{"p": '}},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "input_json_delta", "partial_json": "1}"}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 9}},
        {"type": "message_stop"},
    )  # fmt: skip
    assert response_of(tmp_path, ANTHROPIC, text) == {
        "id": "m1",
        "type": "message",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "abc"},
            {"type": "text", "text": "ab"},
            {"type": "tool_use", "id": "t", "name": "f", "input": {"p": 1}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 5, "cache_read_input_tokens": 2, "output_tokens": 9},
    }


def test_chat_stream(tmp_path: Path) -> None:
    def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
        return {"id": "c", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}  # fmt: skip

    text = sse(
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning_content": "h"}),
        chunk({"reasoning_content": "m"}),
        chunk({"content": "a"}),
        chunk({"content": "b"}),
        chunk(
            {
                "tool_calls": [
                    {"index": 0, "id": "t", "type": "function", "function": {"name": "f", "arguments": ""}}
                ]
            }
        ),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"p":'}}]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}),
        chunk({"tool_calls": [{"index": 1, "id": "u", "function": {"name": "g", "arguments": "{}"}}]}),
        chunk({}, "tool_calls"),
        {
            "id": "c",
            "choices": [],
            "usage": {"prompt_tokens": 7, "prompt_tokens_details": {"cached_tokens": 3}},
        },
        done=True,
    )
    response = response_of(tmp_path, CHAT, text)
    (choice,) = response["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": "ab",
        "reasoning_content": "hm",
        "tool_calls": [
            {"index": 0, "id": "t", "type": "function", "function": {"name": "f", "arguments": '{"p":1}'}},
            {"index": 1, "id": "u", "function": {"name": "g", "arguments": "{}"}},
        ],
    }
    usage = usage_from_response(response)
    assert usage is not None
    assert (usage.prompt, usage.cached) == (7, 3)


def test_responses_stream_whole_and_cut_off(tmp_path: Path) -> None:
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ab"}]}
    start = {"type": "response.created", "response": {"id": "r", "status": "in_progress", "output": []}}
    events = [start, {"type": "response.output_text.delta", "delta": "ab"}, {"type": "response.output_item.done", "output_index": 0, "item": item}]  # fmt: skip
    end = {"type": "response.completed", "response": {"id": "r", "status": "completed", "output": [item], "usage": {"input_tokens": 4}}}  # fmt: skip
    assert response_of(tmp_path, RESPONSES, sse(*events, end)) == end["response"]
    cut = response_of(tmp_path, RESPONSES, sse(*events) + 'data: {"type": "respon')
    assert cut == {"id": "r", "status": "in_progress", "output": [item]}


def test_llama_stream(tmp_path: Path) -> None:
    text = sse(
        {"content": "a", "tokens": [1], "stop": False},
        {"content": "b", "tokens": [2], "stop": False},
        {
            "content": "",
            "tokens": [],
            "stop": True,
            "timings": {"cache_n": 5, "prompt_n": 2, "predicted_n": 2},
        },
    )
    response = response_of(tmp_path, LLAMA, text)
    assert (response["content"], response["tokens"], response["stop"]) == ("ab", [1, 2], True)
    usage = usage_from_response(response)
    assert usage is not None
    assert (usage.prompt, usage.cached, usage.output) == (7, 5, 2)


@pytest.mark.corpus
def test_recorded_streams_give_the_body(shared_dir: Path) -> None:
    log = shared_dir / "corpus" / "requests" / "llm-anthropic-tool-chain-thinking.jsonl"
    first, second = records(log)
    assert first.response is not None
    assert second.response is not None
    kinds = [block["type"] for block in first.response["content"]]
    assert kinds == ["thinking", "tool_use"]
    # What came back stands in the next request, but for a field that only responses have.
    sent = second.request["messages"][1]["content"]
    for block, again in zip(first.response["content"], sent, strict=True):
        assert {key: block[key] for key in again} == again
    assert first.response["usage"]["input_tokens"] == 598
    assert first.response["usage"]["output_tokens"] == 92
