"""Adapters on recorded exchanges of real clients with real providers: each answer is read, its usage as the provider said it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import TypeAdapter

from agentctx.backends.adapter import Adapter
from agentctx.backends.anthropic import AnthropicMessages as _AnthropicMessages
from agentctx.backends.backend import Completion, Options
from agentctx.backends.http import HttpBackend
from agentctx.backends.openai_chat import OpenAIChat
from agentctx.backends.openai_responses import OpenAIResponses
from agentctx.interchange import read_request
from agentctx.messages import canonical_json
from agentctx.rendering import load_renderer
from agentctx.usage import Usage, usage_from_response
from tests.backends.test_adapters_clients import TYPES
from tests.interchange.test_interchange_clients import plain

pytestmark = pytest.mark.corpus

RENDERER = load_renderer("chatml")
AnthropicMessages = partial(
    _AnthropicMessages, markers=False
)  # what was sent had the client's own markers, or none
FILES: dict[str, tuple[Callable[[], Adapter], str, str]] = {
    "llm-anthropic-tool-chain-thinking": (AnthropicMessages, "anthropic", "anthropic.messages"),
    "openhands-sdk-claude-sonnet-4": (OpenAIChat, "openai-chat", "openai.chat"),
    "pydantic-ai-anthropic-compaction": (AnthropicMessages, "anthropic", "anthropic.messages"),
    "pydantic-ai-openai-responses-chain": (OpenAIResponses, "openai-responses", "openai.responses"),
}
EXCHANGES = dict(zip(FILES, (2, 6, 2, 5), strict=True))


def records(shared: Path, name: str) -> list[dict[str, Any]]:
    """The exchanges that are model calls; ``/compact`` of Responses is another endpoint."""
    text = (shared / f"corpus/requests/{name}.jsonl").read_text(encoding="utf-8")
    found = [json.loads(line) for line in text.splitlines()]
    return [record for record in found if not record.get("url", "").endswith("/compact")]


def replayed(record: dict[str, Any], adapter: Adapter, api: str) -> tuple[Completion, dict[str, Any]]:
    """The adapter asks what was asked and gets what was answered; with the completion, the body that it sent."""
    sent: list[dict[str, Any]] = []
    recorded = record["response"]

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        if isinstance(recorded, str):
            return httpx.Response(200, text=recorded, headers={"content-type": "text/event-stream"})
        return httpx.Response(200, json=recorded)

    prompt = RENDERER.render(read_request(api, record["body"]))
    with (
        httpx.Client(transport=httpx.MockTransport(answer)) as client,
        HttpBackend(adapter, "http://recorded", client=client) as backend,
    ):
        if isinstance(recorded, str):
            *deltas, last = backend.stream(prompt, Options())
            assert last.completion is not None
            assert "".join(delta.text for delta in deltas) == last.completion.message.text
            return last.completion, sent[0]
        return backend.complete(prompt, Options()), sent[0]


def said(record: dict[str, Any]) -> dict[str, Any]:
    """The provider's usage, in its own words."""
    recorded = record["response"]
    if not isinstance(recorded, str):
        usage: dict[str, Any] = recorded["usage"]
        return usage
    found: dict[str, Any] = {}
    for line in recorded.splitlines():
        if line.startswith("data: "):
            data = json.loads(line[6:])
            found |= data.get("message", {}).get("usage") or data.get("usage") or {}
    return found


@pytest.mark.parametrize("name", list(FILES))
def test_recorded_exchanges(shared_dir: Path, name: str) -> None:
    make, kind, api = FILES[name]
    found = records(shared_dir, name)
    assert len(found) == EXCHANGES[name]
    for record in found:
        completion, body = replayed(record, make(), api)
        # What is sent is what the client had sent, to the byte, and what the vendor's types take.
        assert canonical_json(body) == canonical_json({**record["body"]})
        if kind != "openai-chat" and "context_management" not in body:
            types: TypeAdapter[Any] = TYPES[kind, bool(body.get("stream"))]
            assert plain(types.validate_python(body)).keys() <= body.keys()
        usage, raw = completion.usage, said(record)
        if kind == "anthropic":
            parts = [raw["input_tokens"], raw["cache_read_input_tokens"], raw["cache_creation_input_tokens"]]
            assert (usage.prompt, usage.cached, usage.written) == (sum(parts), parts[1], parts[2])
            assert (usage.written_5m, usage.written_1h) == (0, 0)
        elif kind == "openai-chat":
            assert (usage.prompt, usage.cached) == (raw["prompt_tokens"], 0)
        else:
            assert (usage.prompt, usage.cached) == (raw["input_tokens"], 0)
        assert usage.output == raw.get("output_tokens", raw.get("completion_tokens"))
        assert completion.message.role == "assistant"
        assert completion.message.text or completion.message.tool_calls
        assert completion.finish_reason is not None


def test_a_reply_reads_back_as_the_next_request_carries_it(shared_dir: Path) -> None:
    """The streamed reply with its thinking and its signature is what the client put into its next request."""
    first, second = records(shared_dir, "llm-anthropic-tool-chain-thinking")
    completion, _ = replayed(first, AnthropicMessages(), "anthropic.messages")
    carried = read_request("anthropic.messages", second["body"]).messages[1]
    (call,), (same,) = completion.message.tool_calls, carried.tool_calls
    assert (call.id, call.name, call.arguments) == (same.id, same.name, same.arguments)
    assert completion.message.reasoning == carried.reasoning
    assert completion.usage.reasoning == 53


def test_usage_of_the_cases(shared_dir: Path) -> None:
    """Usage of every response in the shared cases: where no cached count was given, none is made up."""
    seen = unknown = 0
    for path in sorted((shared_dir / "cases/requests").glob("*/requests.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            response = json.loads(line).get("response") or {}
            raw = response.get("usage")
            if not raw:
                continue
            seen += 1
            usage = usage_from_response(response) or Usage()
            text = json.dumps([raw, response.get("timings")])
            if not any(word in text for word in ("cached", "cache_read", "cache_n", "cache_hit")):
                unknown += 1
                assert usage.cached is None, path
            else:
                assert usage.cached is not None or "null" in text, path
    assert seen >= 40
    print(f"{seen} responses with usage, {unknown} of them without a cached count")
