"""Adapters beside the real openai and anthropic clients: what one sends the other would, what one reads the other does too.

A loopback server checks each request against the clients' own parameter types and answers in the API's own form.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import anthropic as anthropic_sdk
import httpx
import openai as openai_sdk
import pytest
from anthropic.types import message_create_params
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.chat import completion_create_params
from openai.types.responses import response_create_params
from pydantic import TypeAdapter

from agentctx.backends.adapter import Adapter
from agentctx.backends.affinity import OPENAI
from agentctx.backends.anthropic import AnthropicMessages
from agentctx.backends.backend import BackendError, Completion, Options
from agentctx.backends.http import HttpBackend
from agentctx.backends.llama_server import LlamaCompletion
from agentctx.backends.openai_chat import OpenAIChat
from agentctx.backends.openai_responses import OpenAIResponses
from agentctx.history import History
from agentctx.messages import Message, Params, Tool, ToolCall
from agentctx.rendering import Prompt, load_renderer
from agentctx.usage import Usage
from tests.interchange.test_interchange_clients import plain

from .faulty_server import APIS, Api, Connection, FaultyServer

RENDERER = load_renderer("chatml")
TYPES: dict[tuple[str, bool], TypeAdapter[Any]] = {
    ("openai-chat", False): TypeAdapter(completion_create_params.CompletionCreateParamsNonStreaming),
    ("openai-chat", True): TypeAdapter(completion_create_params.CompletionCreateParamsStreaming),
    ("openai-responses", False): TypeAdapter(response_create_params.ResponseCreateParamsNonStreaming),
    ("openai-responses", True): TypeAdapter(response_create_params.ResponseCreateParamsStreaming),
    ("anthropic", False): TypeAdapter(message_create_params.MessageCreateParamsNonStreaming),
    ("anthropic", True): TypeAdapter(message_create_params.MessageCreateParamsStreaming),
}
ADAPTERS: dict[str, Callable[[], Adapter]] = {
    "openai-chat": OpenAIChat,
    "openai-responses": OpenAIResponses,
    "anthropic": AnthropicMessages,
}
OPTIONS = Options(max_tokens=32, temperature=0.5, conversation="conversation-7")
ANSWER = {
    "openai-chat": Usage(prompt=40, cached=16, output=2),
    "openai-responses": Usage(prompt=40, cached=16, output=2, reasoning=0),
    "anthropic": Usage(prompt=40, cached=16, written=4, output=2, written_5m=3, written_1h=1),
}


def validating(api: Api) -> Callable[[Connection], None]:
    """The API's answer, or 400 with the reason when the client's own types don't take the request."""

    def answer(connection: Connection) -> None:
        body = connection.body
        try:
            checked = plain(TYPES[api.name, bool(body.get("stream"))].validate_python(body))
            if checked != body:
                raise ValueError(f"unknown fields: {body} became {checked}")
        except ValueError as error:
            connection.whole(json.dumps({"error": {"message": str(error)}}).encode(), "400 Bad Request")
            return
        api.healthy(connection)

    return answer


def prompt() -> Prompt:
    """A conversation with tools, parallel calls, a note and a picture."""
    history = History(
        "You are an agent.",
        [Tool.of("read", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}})],
        params=Params(model="m"),
    )
    history.user("What is in a and b, and in the picture?")
    history.attach(b"\x89PNG\r\n\x1a\nabc", name="shot.png")
    history.note("It is 10:05.")
    history.request()
    calls = tuple(ToolCall(id=f"c{i}", name="read", arguments='{"path": "a"}') for i in range(2))
    history.append(Message(role="assistant", content="Reading.", tool_calls=calls))
    history.tool_result("c0", "text of a")
    history.tool_result("c1", "text of b")
    return RENDERER.render(history.request())


def by_client(name: str, url: str, body: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The vendor's client sends the body; its typed answer, or its typed events, as dictionaries."""
    create: Any
    if name == "anthropic":
        create = anthropic_sdk.Anthropic(base_url=url, api_key="k", max_retries=0).messages.create
    else:
        client = openai_sdk.OpenAI(base_url=url, api_key="k", max_retries=0)
        create = client.chat.completions.create if name == "openai-chat" else client.responses.create
    answer = create(**body)
    items = list(answer) if body.get("stream") else [answer]
    return [
        (getattr(item, "type", ""), item.model_dump(exclude_unset=True, warnings=False)) for item in items
    ]


def read(adapter: Adapter, items: list[tuple[str, dict[str, Any]]], *, stream: bool) -> Completion:
    if not stream:
        return adapter.completion(items[0][1])
    parser = adapter.parser()
    for event, data in items:
        parser.feed(event, data)
    return parser.finish()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", list(ADAPTERS))
def test_the_clients_own_types_take_the_request_and_read_the_same(
    server: FaultyServer, name: str, stream: bool
) -> None:
    adapter, api = ADAPTERS[name](), APIS[name]
    # Anthropic's newer models take no temperature, and its client's types name none.
    options = replace(OPTIONS, temperature=None) if name == "anthropic" else OPTIONS
    call = adapter.call(prompt(), options, stream=stream)
    server.script = [validating(api), validating(api)]
    theirs = read(adapter, by_client(name, server.url, call.body), stream=stream)
    with HttpBackend(adapter, server.url) as backend:
        if stream:
            ours = list(backend.stream(prompt(), options))[-1].completion
        else:
            ours = backend.complete(prompt(), options)
    assert ours is not None
    assert server.requests == [call.body, call.body]
    assert replace(theirs, message=ours.message, seconds=None, first_token_seconds=None) == replace(
        ours, seconds=None, first_token_seconds=None
    )
    assert (theirs.message.text, theirs.message.tool_calls) == (ours.message.text, ours.message.tool_calls)
    assert ours.message.text == "yes sir"
    assert ours.usage == ANSWER[name]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", list(ADAPTERS))
def test_the_check_itself_refuses(server: FaultyServer, name: str, stream: bool) -> None:
    server.script = [validating(APIS[name])] * 2
    for nonsense in ({"model": 3}, {"nonsense": 1}):
        call = ADAPTERS[name]().call(prompt(), Options(max_tokens=9, extra=nonsense), stream=stream)
        assert httpx.post(server.url, json=call.body).status_code == 400


class TestRequests:
    def test_a_conversation_is_named_to_openai(self) -> None:
        for adapter in (OpenAIChat(affinity=OPENAI), OpenAIResponses(affinity=OPENAI)):
            assert adapter.call(prompt(), OPTIONS, stream=False).body["prompt_cache_key"] == "conversation-7"
            assert "prompt_cache_key" not in adapter.call(prompt(), Options(), stream=False).body

    def test_streams_ask_for_usage(self) -> None:
        call = OpenAIChat().call(prompt(), Options(), stream=True)
        assert call.body["stream_options"] == {"include_usage": True}

    def test_anthropic_needs_a_limit_and_a_version(self) -> None:
        call = AnthropicMessages().call(prompt(), Options(), stream=False)
        assert call.body["max_tokens"] > 0
        assert call.headers["anthropic-version"] == "2023-06-01"


CHAT = {"choices": [{"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}]}
# What servers are documented to send, and what it says about cached tokens. None is "not said", never 0.
REPORTS: list[tuple[str, dict[str, Any], int | None]] = [
    ("vLLM without --enable-prompt-tokens-details", {"prompt_tokens": 9, "total_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": None}, None),
    ("vLLM with it, nothing reused", {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 0}}, 0),
    ("vLLM with it", {"prompt_tokens": 90, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 64, "created_cache_tokens": 16}}, 64),
    ("SGLang without --enable-cache-report", {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": None, "reasoning_tokens": 0}, None),
    ("SGLang with it", {"prompt_tokens": 90, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 89}}, 89),
    ("a null count", {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": None}}, None),
    ("no details", {"prompt_tokens": 9, "completion_tokens": 3}, None),
    ("DeepSeek", {"prompt_tokens": 200, "completion_tokens": 3, "prompt_cache_hit_tokens": 128, "prompt_cache_miss_tokens": 72}, 128),
    ("Moonshot", {"prompt_tokens": 200, "completion_tokens": 3, "cached_tokens": 100}, 100),
]  # fmt: skip


@pytest.mark.parametrize(("server_name", "usage", "cached"), REPORTS, ids=[row[0] for row in REPORTS])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_what_is_not_said_is_none(
    server_name: str, usage: dict[str, Any], cached: int | None, stream: bool
) -> None:
    adapter = OpenAIChat()
    if stream:
        parser = adapter.parser()
        parser.feed("", {"choices": [{"index": 0, "delta": {"content": "yes"}, "finish_reason": "stop"}]})
        parser.feed("", {"choices": [], "usage": usage})
        found = parser.finish().usage
    else:
        found = adapter.completion({**CHAT, "usage": usage}).usage
    assert (found.prompt, found.cached, found.output) == (usage["prompt_tokens"], cached, 3)


def test_null_counts_of_the_other_apis_are_none() -> None:
    usage: dict[str, Any] = {"input_tokens": 9, "output_tokens": 3, "input_tokens_details": None}
    body = {**APIS["openai-responses"].body, "usage": usage}
    assert OpenAIResponses().completion(body).usage == Usage(prompt=9, output=3)
    usage = {"input_tokens": 9, "output_tokens": 3, "cache_read_input_tokens": None}
    body = {**APIS["anthropic"].body, "usage": usage}
    assert AnthropicMessages().completion(body).usage == Usage(prompt=9, output=3)
    body = {"content": "yes", "tokens": [], "stop_type": "eos", "tokens_evaluated": 9, "tokens_predicted": 3}
    assert LlamaCompletion().completion(body).usage == Usage(prompt=9, output=3)
    for adapter, api in ((OpenAIChat(), "openai-chat"), (OpenAIResponses(), "openai-responses")):
        bare = {key: value for key, value in APIS[api].body.items() if key != "usage"}
        assert adapter.completion(bare).usage == Usage()


@pytest.mark.parametrize(("tokens", "generated"), [([5, 6, 7], 3), ([7], 3), ([], 3), ([7], None)])
def test_ids_of_a_reply_are_all_of_them_or_none(tokens: list[int], generated: int | None) -> None:
    """A stream of llama-server leaves out the tokens that end inside a character."""
    parser = LlamaCompletion().parser()
    parser.feed("", {"content": "語", "tokens": tokens, "stop": False})
    last = {"content": "", "tokens": [], "stop": True, "stop_type": "eos"}
    parser.feed("", last if generated is None else {**last, "tokens_predicted": generated})
    found = parser.finish().reply_ids
    whole = tokens if generated in (None, len(tokens)) else None
    assert (None if found is None else found.tolist()) == whole


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)


def mutated(value: Any, draw: Any) -> Any:
    """The value with something in it replaced by any JSON."""
    if isinstance(value, dict) and value and draw(st.booleans()):
        key = draw(st.sampled_from(sorted(value)))
        return {**value, key: mutated(value[key], draw)}
    if isinstance(value, list) and value and draw(st.booleans()):
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], mutated(value[at], draw), *value[at + 1 :]]
    return draw(JSON)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.parametrize("name", list(APIS))
@given(data=st.data())
def test_an_answer_of_any_shape_is_read_or_refused(name: str, data: st.DataObject) -> None:
    """Whatever JSON comes, whole or streamed: a completion, or an error of ours."""
    api = APIS[name]
    adapter = {**ADAPTERS, "llama-server": LlamaCompletion}[name]()

    def answer(request: httpx.Request) -> httpx.Response:
        if not json.loads(request.content).get("stream"):
            return httpx.Response(200, json=mutated(api.body, data.draw))
        events = [
            (event, mutated(item, data.draw) if isinstance(item, dict) and data.draw(st.booleans()) else item)
            for event, item in api.events
        ]
        text = "".join(
            f"event: {event or 'message'}\ndata: {item if isinstance(item, str) else json.dumps(item)}\n\n"
            for event, item in events
        )
        return httpx.Response(200, text=text, headers={"content-type": "text/event-stream"})

    with (
        httpx.Client(transport=httpx.MockTransport(answer)) as client,
        HttpBackend(adapter, "http://server", client=client) as backend,
    ):
        for ask in (backend.complete, lambda *arguments: list(backend.stream(*arguments))):
            with suppress(BackendError):
                ask(PROMPT, Options())  # type: ignore[operator]


PROMPT = prompt()
