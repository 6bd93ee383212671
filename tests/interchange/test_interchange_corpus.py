"""Every request body of the shared corpus and cases goes in and out without a byte of difference."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentctx.errors import HistoryError
from agentctx.history import History
from agentctx.interchange import read_request, write_request
from agentctx.messages import canonical_json

pytestmark = pytest.mark.corpus

# kvtrace_* and mooncake_* beside these hold block hashes and lengths, no request bodies.
CORPUS = {
    "llm-anthropic-tool-chain-thinking": "anthropic.messages",
    "openhands-sdk-claude-sonnet-4": "openai.chat",
    "pydantic-ai-anthropic-compaction": "anthropic.messages",
    "pydantic-ai-openai-responses-chain": "openai.responses",
}
SCENARIOS = {"openai": "openai.chat", "anthropic": "anthropic.messages", "anthropic_cc": "anthropic.messages"}
EXPECTED = {"openai.chat": 281, "anthropic.messages": 383, "openai.responses": 39, "llama.completion": 12}


def lines(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def bodies(shared: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(place, api, body) of every request."""
    for path in sorted((shared / "cases/requests").glob("*/requests.jsonl")):
        for number, record in enumerate(lines(path), 1):
            yield f"{path.parent.name}:{number}", record["api"], record["request"]
    for folder, api in SCENARIOS.items():
        for path in sorted((shared / "cases/scenarios" / folder).glob("*.jsonl")):
            for number, body in enumerate(lines(path), 1):
                yield f"{folder}/{path.name}:{number}", api, body
    for name, api in CORPUS.items():
        for number, record in enumerate(lines(shared / f"corpus/requests/{name}.jsonl"), 1):
            yield f"{name}:{number}", api, record["body"]


def test_every_body_comes_back(shared_dir: Path) -> None:
    seen = dict.fromkeys(EXPECTED, 0)
    for place, api, body in bodies(shared_dir):
        seen[api] += 1
        assert canonical_json(write_request(api, read_request(api, body))) == canonical_json(body), place
    assert seen == EXPECTED


def test_every_body_comes_back_through_a_history(shared_dir: Path) -> None:
    """Tools, messages and parameters of a body survive the builder, its checkpoint included."""
    refused: dict[str, str] = {}
    through = 0
    for place, api, body in bodies(shared_dir):
        request = read_request(api, body)
        try:
            history = History.of(request)
            history.seal()
            again = History.resume(history.checkpoint()).request()
        except HistoryError as error:
            refused[place] = str(error)
            continue
        assert canonical_json(write_request(api, again)) == canonical_json(body), place
        through += 1
    # These three go on from a stored response and send no message of their own.
    assert refused == {
        f"pydantic-ai-openai-responses-chain:{number}": "there is no message to send; append a user message first"
        for number in (3, 5, 7)
    }
    assert through == sum(EXPECTED.values()) - 3


def test_bodies_carry_over_to_the_other_apis(shared_dir: Path) -> None:
    """Texts, calls and ids of a body are the same when it is written for another API and read back."""
    apis = ("openai.chat", "openai.responses", "anthropic.messages", "plain")
    for place, api, body in bodies(shared_dir):
        if api not in apis:
            continue
        request = read_request(api, body)
        for other in apis:
            back = read_request(other, write_request(other, request))
            assert _gist(back.messages) == _gist(request.messages), (place, other)
            assert [(t.name, t.description) for t in back.tools] == [
                (t.name, t.description) for t in request.tools
            ]


def _gist(messages: Any) -> list[Any]:
    gist: list[Any] = []
    for message in messages:
        calls = [(call.id, call.name, json.loads(call.arguments or "{}")) for call in message.tool_calls]
        item = [message.role, message.text, calls, message.tool_call_id]
        if gist and message.role == "assistant" and gist[-1][0] == "assistant" and not gist[-1][2]:
            gist[-1] = ["assistant", gist[-1][1] + message.text, calls, None]
        elif message.text or calls or message.role == "tool":
            gist.append(item)
    return gist
