"""The real openai and anthropic clients send what is exported; the server checks it against the clients' own types.

The server answers each request with one fixed reply of its API, so what is tested is the request: pydantic validates the
body against the SDK's parameter types, and a field that the type doesn't know is missing from what comes out.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import anthropic as anthropic_sdk
import openai as openai_sdk
import pytest
from anthropic.types import message_create_params
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params
from pydantic import TypeAdapter

from agentctx.history import History
from agentctx.interchange import anthropic, openai_chat, openai_responses
from agentctx.interchange.cache_control import with_markers
from agentctx.messages import Message, Params, Request, Tool, ToolCall

TYPES: dict[str, TypeAdapter[Any]] = {
    "/v1/chat/completions": TypeAdapter(completion_create_params.CompletionCreateParamsNonStreaming),
    "/v1/responses": TypeAdapter(response_create_params.ResponseCreateParamsNonStreaming),
    "/v1/messages": TypeAdapter(message_create_params.MessageCreateParamsNonStreaming),
}
USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
REPLIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": None,
                    "refusal": None,
                    "tool_calls": [
                        {
                            "id": "r1",
                            "type": "function",
                            "function": {"name": "read", "arguments": '{"path": "c"}'},
                        }
                    ],
                },
            }
        ],
        "usage": USAGE,
    },
    "/v1/responses": {
        "id": "resp-1",
        "object": "response",
        "created_at": 1,
        "model": "m",
        "status": "completed",
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "output": [
            {"type": "reasoning", "id": "rs-1", "summary": [{"type": "summary_text", "text": "think"}]},
            {
                "type": "function_call",
                "id": "fc-1",
                "call_id": "r1",
                "name": "read",
                "arguments": '{"path": "c"}',
                "status": "completed",
            },
        ],
    },
    "/v1/messages": {
        "id": "msg-1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "content": [
            {"type": "thinking", "thinking": "think", "signature": "c2ln"},
            {"type": "tool_use", "id": "r1", "name": "read", "input": {"path": "c"}},
        ],
        "usage": {"input_tokens": 9, "output_tokens": 3},
    },
}


def plain(value: Any) -> Any:
    """A validated value with its lazily checked iterables walked to their ends."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, str | bytes) or not hasattr(value, "__iter__"):
        return value
    return [plain(item) for item in value]


class Handler(BaseHTTPRequestHandler):
    """Validates a request's body and keeps it; 400 with the reason when the SDK's types refuse it."""

    bodies: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.bodies.append(body)
        status, reply = 200, REPLIES[self.path]
        try:
            checked = plain(TYPES[self.path].validate_python(body))
            if checked != body:
                raise ValueError(f"unknown fields: {body} became {checked}")
        except ValueError as error:
            status, reply = (
                400,
                {"type": "error", "error": {"type": "invalid_request_error", "message": str(error)}},
            )
        data = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: object) -> None:
        """Keep the test's output quiet."""


@pytest.fixture
def server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    bodies: list[dict[str, Any]] = []
    handler = type("Bound", (Handler,), {"bodies": bodies})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{http.server_address[1]}", bodies
        http.shutdown()
        thread.join()


def conversation(assistant: Message) -> History:
    """Images, notes, parallel calls, and an answer of the API's own kind."""
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    history = History(
        "You are an agent.",
        [
            Tool.of("read", "Read a file.", schema),
            Tool.of("list", "List files.", {"type": "object", "properties": {}}),
        ],
        ["Project rules."],
        params=Params(model="m", max_tokens=64),
    )
    history.user("What is in this picture, and in a and b?")
    history.attach(b"\x89PNG\r\n\x1a\nabc", name="shot.png")
    history.note("It is 10:05.")
    history.request()
    history.append(assistant)
    for call in reversed(history.open_calls):
        history.tool_result(call, f"result of {call}")
    return history


CALLS = tuple(ToolCall(id=f"c{i}", name="read", arguments=f'{{"path": "{i}"}}') for i in range(3))


def test_openai_chat(server: tuple[str, list[dict[str, Any]]]) -> None:
    url, bodies = server
    client = openai_sdk.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
    history = conversation(Message(role="assistant", content="Reading.", tool_calls=CALLS))
    first = openai_chat.write(history.request())
    reply = client.chat.completions.create(**first)
    history.append(openai_chat.read_message(reply.choices[0].message.model_dump(exclude_unset=True)))
    history.tool_result("r1", "c is here")
    second = openai_chat.write(history.request())
    client.chat.completions.create(**second)
    assert bodies == [first, second]
    assert [call["id"] for call in first["messages"][3]["tool_calls"]] == ["c0", "c1", "c2"]
    assert second["messages"][: len(first["messages"])] == first["messages"]
    assert second["messages"][-2]["tool_calls"][0]["function"]["arguments"] == '{"path": "c"}'


def test_openai_responses(server: tuple[str, list[dict[str, Any]]]) -> None:
    url, bodies = server
    client = openai_sdk.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
    history = conversation(Message(role="assistant", content="Reading.", tool_calls=CALLS))
    first = openai_responses.write(history.request())
    reply = client.responses.create(**first)
    output = [item.model_dump(exclude_unset=True) for item in reply.output]
    history.extend(openai_responses.read_items(output))
    assert history[-1].reasoning == "think"
    history.tool_result("r1", "c is here")
    second = openai_responses.write(history.request())
    client.responses.create(**second)
    assert bodies == [first, second]
    assert second["input"][len(first["input"]) : -1] == output
    assert second["input"][: len(first["input"])] == first["input"]


def test_anthropic(server: tuple[str, list[dict[str, Any]]]) -> None:
    url, bodies = server
    client = anthropic_sdk.Anthropic(base_url=url, api_key="k", max_retries=0)
    thoughtful = anthropic.read_item(
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "I should read.", "signature": "c2ln"},
                {"type": "redacted_thinking", "data": "eA=="},
                {"type": "text", "text": "Reading."},
                *(
                    {"type": "tool_use", "id": f"c{i}", "name": "read", "input": {"path": str(i)}}
                    for i in range(3)
                ),
            ],
        }
    )
    history = conversation(thoughtful[0])
    first = with_markers(anthropic.write(history.request()))
    reply = client.messages.create(**first)
    history.extend(
        anthropic.read_item(
            {
                "role": "assistant",
                "content": [block.model_dump(exclude_unset=True) for block in reply.content],
            }
        )
    )
    assert history[-1].reasoning == "think"
    history.tool_result("r1", "c is here")
    second = with_markers(anthropic.write(history.request()))
    client.messages.create(**second)
    assert bodies == [first, second]
    kinds = [block["type"] for block in second["messages"][2]["content"]]
    assert kinds == ["thinking", "redacted_thinking", "text", "tool_use", "tool_use", "tool_use"]
    assert [block["tool_use_id"] for block in second["messages"][3]["content"]] == ["c0", "c1", "c2"]
    assert second["messages"][4]["content"] == REPLIES["/v1/messages"]["content"]


@pytest.mark.parametrize("path", list(TYPES))
def test_the_server_refuses_what_the_types_refuse(
    server: tuple[str, list[dict[str, Any]]], path: str
) -> None:
    """The check itself: a wrong type, and a field that the SDK doesn't know."""
    url, _ = server
    request = Request(messages=(Message(role="user", content="x"),), params=Params(model="m", max_tokens=9))
    openai_client = openai_sdk.OpenAI(base_url=f"{url}/v1", api_key="k", max_retries=0)
    anthropic_client = anthropic_sdk.Anthropic(base_url=url, api_key="k", max_retries=0)
    create, body = {
        "/v1/chat/completions": (openai_client.chat.completions.create, openai_chat.write(request)),
        "/v1/responses": (openai_client.responses.create, openai_responses.write(request)),
        "/v1/messages": (anthropic_client.messages.create, anthropic.write(request)),
    }[path]
    create(**body)  # type: ignore[operator]
    for wrong in ({"model": 3}, {"extra_body": {"nonsense": 1}}):
        with pytest.raises((openai_sdk.BadRequestError, anthropic_sdk.BadRequestError)):
            create(**{**body, **wrong})  # type: ignore[operator]
