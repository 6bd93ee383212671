"""A streamed reply and the same reply whole are one Message, and later requests carry it as it came, fields without a name included."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentctx.backends.adapter import Adapter
from agentctx.backends.anthropic import AnthropicMessages
from agentctx.backends.backend import Completion, Options
from agentctx.backends.http import HttpBackend
from agentctx.backends.openai_chat import OpenAIChat
from agentctx.backends.openai_responses import OpenAIResponses
from agentctx.caches.registry import parse_cache
from agentctx.errors import UsageError
from agentctx.history import History
from agentctx.interchange import anthropic, openai_chat, openai_responses
from agentctx.messages import Message, canonical_json
from agentctx.rendering import load_renderer
from agentctx.session import Session, SessionParts, generated_ids
from agentctx.usage import Usage
from tests.backends.test_adapters_clients import TYPES
from tests.interchange.test_interchange_clients import plain as plain_value

RENDERER = load_renderer("chatml")
Json = dict[str, Any]
texts = st.text(st.characters(codec="utf-8"), min_size=1, max_size=6)
plain = st.recursive(
    st.booleans() | st.integers(-5, 5) | texts | st.none(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)


def streamed(adapter: Adapter, events: list[Json]) -> Completion:
    parser = adapter.parser()
    for event in events:
        parser.feed(str(event.get("type", "")), event)
    return parser.finish()


def cut(draw: Any, text: str) -> list[str]:
    """The text in pieces, some of them empty."""
    ends = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


# -- what later requests carry ---------------------------------------------------------------------------


def sse(events: list[Json]) -> httpx.Response:
    lines = [f"event: {event.get('type', 'message')}\ndata: {json.dumps(event)}\n\n" for event in events]
    return httpx.Response(200, text="".join(lines), headers={"content-type": "text/event-stream"})


def sent_after(make: Callable[[], Adapter], answers: list[httpx.Response], *, stream: bool) -> list[Json]:
    """The bodies of a session's requests: the first reply is the one in question, each call is answered, and so on."""
    sent: list[Json] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return answers[len(sent) - 1]

    with (
        httpx.Client(transport=httpx.MockTransport(answer)) as client,
        HttpBackend(make(), "http://server/v1", client=client) as backend,
    ):
        history = History("You are an agent.")
        session = Session(SessionParts(history, RENDERER, parse_cache("paged:16"), strict=True), backend)
        history.user("Go.")
        for _ in answers:
            if stream:
                list(session.stream(Options()))
            else:
                session.complete(Options())
            for call in history.open_calls:
                history.tool_result(call, "done")
            history.user("Go on.")
    return sent


def assert_carried(bodies: list[Json], key: str, reply: list[Json]) -> None:
    """Every request begins with the one before, and behind the first one stands the reply as it came."""
    items = [[canonical_json(item) for item in body[key]] for body in bodies]
    for before, after in pairwise(items):
        assert after[: len(before)] == before
    first = len(items[0])
    assert items[1][first : first + len(reply)] == [canonical_json(item) for item in reply]


# -- chat completions ------------------------------------------------------------------------------------

parts = st.lists(st.sampled_from(["text", "thinking"]), min_size=1, max_size=3).map(
    lambda kinds: [kind for at, kind in enumerate(kinds) if kinds[at - 1 : at] != [kind]]
)
detail = st.fixed_dictionaries(
    {"type": st.sampled_from(["reasoning.text", "reasoning.summary", "reasoning.encrypted"]), "text": texts},
    optional={"signature": texts, "id": st.none() | texts, "format": texts},
)


@st.composite
def chat_messages(draw: Any) -> Json:
    """A reply as it comes whole, its fields in any order: those that have a name here, and those that vendors add."""
    calls = [
        draw(
            st.permutations(
                [
                    ("id", f"call-{at}"),
                    ("type", "function"),
                    ("function", {"name": draw(texts), "arguments": draw(texts)}),
                    *(
                        [("extra_content", {"google": {"thought_signature": draw(texts)}})]
                        if draw(st.booleans())
                        else []
                    ),
                ]
            ).map(dict)
        )
        for at in range(draw(st.integers(0, 3)))
    ]
    fields: Json = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "reasoning_content": texts,
                "refusal": texts,
                "extra_content": st.fixed_dictionaries(
                    {"google": st.fixed_dictionaries({"thought_signature": texts})}
                ),
                "annotations": st.lists(
                    st.fixed_dictionaries({"type": st.just("url_citation"), "at": plain}), max_size=2
                ),
                "x-vendor": st.dictionaries(texts, plain, max_size=2),
            },
        )
    )
    if details := draw(st.lists(detail, max_size=3)):
        fields["reasoning_details"] = [{**one, "index": at} for at, one in enumerate(details)]
    if calls:
        fields["tool_calls"] = calls
    kinds = draw(parts)
    many = [
        {"type": kind, kind: draw(texts) if kind == "text" else [{"type": "text", "text": draw(texts)}]}
        for kind in kinds
    ]
    nothing = None if calls or "refusal" in fields else ""
    fields["content"] = draw(st.sampled_from([draw(texts), many, nothing]))
    return {"role": "assistant", **dict(draw(st.permutations(list(fields.items()))))}


def call_pieces(draw: Any, calls: list[Json]) -> list[Json]:
    """The calls in fragments by their index; or each whole under index 0, under none, or with a null index."""
    manner = draw(st.sampled_from([{"index": 0}, {}, {"index": None}, "fragments", "fragments"]))
    if manner != "fragments":
        return [{**manner, **call} for call in calls]
    found = []
    for at, call in enumerate(calls):
        first, *rest = cut(draw, call["function"]["arguments"])
        found.append({"index": at, **call, "function": {**call["function"], "arguments": first}})
        found += [{"index": at, "function": {"arguments": piece}} for piece in rest]
    return found


def detail_pieces(draw: Any, one: Json) -> list[Json]:
    """One part or detail: its text grows, the signature comes with the last piece, all else with each."""
    grows = next(key for key in ("text", "thinking") if key in one)
    text = one[grows] if isinstance(one[grows], str) else one[grows][0]["text"]
    pieces = cut(draw, text) if "encrypted" not in one["type"] else [text]
    found: list[Json] = []
    for at, piece in enumerate(pieces):
        own = {**one, grows: piece if grows == "text" else [{"type": "text", "text": piece}]}
        if "signature" in own and at < len(pieces) - 1:
            own["signature"] = None
        found.append(own)
    return found


def chat_deltas(draw: Any, message: Json) -> list[Json]:
    deltas: list[Json] = [{"role": "assistant"}] if draw(st.booleans()) else []
    for key, value in message.items():
        if key == "role":
            continue
        if key == "tool_calls":
            deltas += [{key: [piece]} for piece in call_pieces(draw, value)]
        elif isinstance(value, str):
            deltas += [{key: piece} for piece in cut(draw, value)]
        elif key in ("reasoning_details", "content") and value:
            for one in value:
                plain_text = len(value) > 1 and one["type"] == "text" and draw(st.booleans())
                deltas += [
                    {key: piece["text"] if plain_text else [piece]} for piece in detail_pieces(draw, one)
                ]
        elif key == "x-vendor" and value:
            deltas += [{key: {name: inner}} for name, inner in value.items()]
        else:
            deltas.append({key: value})
    return [
        {**delta, **draw(st.sampled_from([{}, {"tool_call_id": None}, {"role": "assistant"}]))}
        for delta in deltas
    ]


def chat_events(deltas: list[Json], finish: str = "stop") -> list[Json]:
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    return [
        {"model": "m", "choices": [choice]}
        for choice in [*choices, {"index": 0, "delta": {}, "finish_reason": finish}]
    ]


def chat_body(message: Json, finish: str = "stop") -> Json:
    return {"model": "m", "choices": [{"index": 0, "message": message, "finish_reason": finish}]}


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_chat_reply_is_the_same_streamed_and_whole(data: st.DataObject) -> None:
    message = data.draw(chat_messages())
    deltas = chat_deltas(data.draw, message)
    found = streamed(OpenAIChat(), chat_events(deltas))
    assert found == OpenAIChat().completion(chat_body(message))
    assert canonical_json(openai_chat.write_message(found.message)) == canonical_json(message)


CALL: Json = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
OTHER: Json = {"id": "b", "type": "function", "function": {"name": "g", "arguments": '{"y":2}'}}
SIGNED = {"extra_content": {"google": {"thought_signature": "SIG"}}}
CHAT: dict[str, tuple[list[Json], Json]] = {
    "parallel calls, each whole, all at index 0": (
        [{"tool_calls": [{"index": 0, **CALL}]}, {"tool_calls": [{"index": 0, **OTHER}]}],
        {"content": None, "tool_calls": [CALL, OTHER]},
    ),
    "parallel calls in one delta": (
        [{"content": None, "tool_calls": [{"index": 0, **CALL}, {"index": 0, **OTHER}]}],
        {"content": None, "tool_calls": [CALL, OTHER]},
    ),
    "calls whose index is null": (
        [{"tool_calls": [{"index": None, **CALL}]}, {"tool_calls": [{"index": None, **OTHER}]}],
        {"content": None, "tool_calls": [CALL, OTHER]},
    ),
    "fragments without an index": (
        [
            {"tool_calls": [{**CALL, "function": {"name": "f", "arguments": '{"x"'}}]},
            {"tool_calls": [{"function": {"arguments": ":1}"}}]},
        ],
        {"content": None, "tool_calls": [CALL]},
    ),
    "an id in every fragment": (
        [
            {"tool_calls": [{"index": 0, **CALL, "function": {"name": "f", "arguments": '{"x"'}}]},
            {"tool_calls": [{"index": 0, "id": "a", "function": {"name": None, "arguments": ":1}"}}]},
        ],
        {"content": None, "tool_calls": [CALL]},
    ),
    "two calls whose fragments alternate": (
        [
            {"tool_calls": [{"index": 1, **OTHER, "function": {"name": "g", "arguments": ""}}]},
            {"tool_calls": [{"index": 0, **CALL, "function": {"name": "f", "arguments": '{"x"'}}]},
            {"tool_calls": [{"index": 1, "function": {"arguments": '{"y":2}'}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": ":1}"}}]},
        ],
        {"content": None, "tool_calls": [CALL, OTHER]},
    ),
    "Gemini's thought signature on a call": (
        [{"tool_calls": [{"index": 0, **SIGNED, **CALL}]}, {"tool_calls": [{"index": 0, **OTHER}]}],
        {"content": None, "tool_calls": [{**SIGNED, **CALL}, OTHER]},
    ),
    "Gemini's thought signature on a text": (
        [{"content": "yes"}, {"content": "", **SIGNED}],
        {"content": "yes", **SIGNED},
    ),
    "a custom tool's call": (
        [
            {"tool_calls": [{"index": 0, "id": "a", "type": "custom", "custom": {"name": "patch", "input": "*** "}}]},
            {"tool_calls": [{"index": 0, "custom": {"input": "Begin"}}]},
        ],
        {"content": None, "tool_calls": [{"id": "a", "type": "custom", "custom": {"name": "patch", "input": "*** Begin"}}]},
    ),
    "a refusal": (
        [{"content": None, "refusal": None}, {"refusal": "I "}, {"refusal": "can't"}],
        {"content": None, "refusal": "I can't"},
    ),
    "OpenRouter's reasoning details": (
        [
            {"content": "", "reasoning": "h", "reasoning_details": [{"type": "reasoning.text", "text": "h", "index": 0}]},
            {"content": "", "reasoning": "m", "reasoning_details": [{"type": "reasoning.text", "text": "m", "index": 0}]},
            {"content": "", "reasoning_details": [{"type": "reasoning.text", "signature": "S", "index": 0}]},
            {"content": "", "reasoning_details": [{"type": "reasoning.encrypted", "data": "D", "index": 1}]},
            {"content": "yes"},
        ],
        {
            "content": "yes",
            "reasoning": "hm",
            "reasoning_details": [
                {"type": "reasoning.text", "text": "hm", "index": 0, "signature": "S"},
                {"type": "reasoning.encrypted", "data": "D", "index": 1},
            ],
        },
    ),
    "Mistral's thinking": (
        [
            {"content": ""},
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "h"}]}]},
            {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "m"}]}]},
            {"content": [{"type": "text", "text": ""}], "index": 0, "tool_call_id": None},
            {"content": "yes"},
            {"content": " sir"},
        ],
        {
            "content": [
                {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
                {"type": "text", "text": "yes sir"},
            ]
        },
    ),
    "DeepSeek's thinking": (
        [
            {"content": None, "reasoning_content": ""},
            {"content": None, "reasoning_content": "hm"},
            {"content": "yes", "reasoning_content": None},
        ],
        {"content": "yes", "reasoning_content": "hm"},
    ),
    "images": (
        [{"content": "", "images": [{"type": "image_url", "n": 1}]}, {"images": [{"type": "image_url", "n": 1}]}],
        {"content": "", "images": [{"type": "image_url", "n": 1}, {"type": "image_url", "n": 1}]},
    ),
    "thoughts that signatures close": (
        [
            {"content": "", "thinking_blocks": [{"type": "thinking", "thinking": "a"}]},
            {"thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "A"}]},
            {"thinking_blocks": [{"type": "thinking", "thinking": "b"}]},
            {"thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "B"}]},
        ],
        {
            "content": "",
            "thinking_blocks": [
                {"type": "thinking", "thinking": "a", "signature": "A"},
                {"type": "thinking", "thinking": "b", "signature": "B"},
            ],
        },
    ),
    "fields that come again with each delta": (
        [
            {"content": "ha", "vendor": "v", "tool_calls": [{"index": 0, **CALL, "function": {"name": "f", "arguments": "1"}}]},
            {"content": "ha", "vendor": "v", "tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "1"}}]},
        ],
        {"content": "haha", "vendor": "v", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "11"}}]},
    ),
    "nothing at all": ([{"content": ""}, {"tool_calls": []}, {"tool_calls": None}], {"content": ""}),
}  # fmt: skip


@pytest.mark.parametrize("name", list(CHAT))
def test_chat_streams_as_vendors_send_them(name: str) -> None:
    deltas, message = CHAT[name]
    message = {"role": "assistant", **message}
    deltas = [{"role": "assistant", **deltas[0]}, *deltas[1:]]
    found = streamed(OpenAIChat(), chat_events(deltas))
    assert found == OpenAIChat().completion(chat_body(message))
    assert canonical_json(openai_chat.write_message(found.message)) == canonical_json(message)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", list(CHAT))
def test_a_chat_reply_goes_out_again_as_it_came(name: str, stream: bool) -> None:
    deltas, message = CHAT[name]
    message = {"role": "assistant", **message}
    bodies = [chat_body(message), *[chat_body({"role": "assistant", "content": "ok"})] * 2]
    answers = [httpx.Response(200, json=body) for body in bodies]
    if stream:
        answers = [sse(chat_events(deltas)), *[sse(chat_events([{"content": "ok"}]))] * 2]
    assert_carried(sent_after(OpenAIChat, answers, stream=stream), "messages", [message])


# -- Anthropic Messages ----------------------------------------------------------------------------------

objects = st.dictionaries(texts, plain, max_size=2)
citations = st.lists(
    st.fixed_dictionaries({"type": st.just("char_location"), "cited_text": texts}), max_size=2
)
anthropic_block = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": texts}, optional={"citations": citations}),
    st.fixed_dictionaries({"type": st.just("thinking"), "thinking": texts, "signature": texts}),
    st.fixed_dictionaries({"type": st.just("redacted_thinking"), "data": texts}),
    st.fixed_dictionaries(
        {"type": st.just("tool_use"), "id": texts, "name": texts, "input": objects},
        optional={"caller": st.just({"type": "direct"})},
    ),
    st.fixed_dictionaries({"type": st.just("server_tool_use"), "id": texts, "name": texts, "input": objects}),
    st.fixed_dictionaries(
        {
            "type": st.just("mcp_tool_result"),
            "content": st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": texts}), max_size=2),
        }
    ),
    st.fixed_dictionaries({"type": st.just("compaction"), "content": texts, "encrypted_content": texts}),
)
_GROWING: Json = {"text": "", "thinking": "", "signature": "", "input": {}}


def block_events(draw: Any, index: int, block: Json) -> list[Json]:
    begun = {key: _GROWING.get(key, value) for key, value in block.items()}
    deltas: list[Json] = []
    match block["type"]:
        case "text":
            deltas = [{"type": "text_delta", "text": piece} for piece in cut(draw, block["text"])]
            if "citations" in block:
                begun["citations"] = draw(st.sampled_from([[], None] if block["citations"] else [[]]))
                deltas += [{"type": "citations_delta", "citation": one} for one in block["citations"]]
        case "thinking":
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in cut(draw, block["thinking"])]
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
        case "tool_use" | "server_tool_use":
            text = json.dumps(block["input"]) if block["input"] else ""
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in cut(draw, text)]
        case "compaction":
            begun |= {"content": None, "encrypted_content": None}
            deltas = [{**block, "type": "compaction_delta"}]
    return [
        {"type": "content_block_start", "index": index, "content_block": begun},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


USAGE: Json = {"input_tokens": 10, "cache_read_input_tokens": 5000, "cache_creation_input_tokens": 20}


def anthropic_body(blocks: list[Json], stop: str = "end_turn") -> Json:
    return {
        "id": "1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": blocks,
        "stop_reason": stop,
        "usage": {**USAGE, "output_tokens": 9},
    }


def anthropic_events(draw: Any, blocks: list[Json], stop: str = "end_turn", **said: Any) -> list[Json]:
    begun = {**anthropic_body([]), "stop_reason": None, "usage": {**USAGE, "output_tokens": 1}}
    return [
        {"type": "message_start", "message": begun},
        *(event for at, block in enumerate(blocks) for event in block_events(draw, at, block)),
        {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": {"output_tokens": 9, **said}},
        {"type": "message_stop"},
    ]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_an_anthropic_reply_is_the_same_streamed_and_whole(data: st.DataObject) -> None:
    blocks = data.draw(st.lists(anthropic_block, min_size=1, max_size=4))
    blocks = [data.draw(st.permutations(list(block.items())).map(dict)) for block in blocks]
    found = streamed(AnthropicMessages(), anthropic_events(data.draw, blocks))
    assert found == AnthropicMessages().completion(anthropic_body(blocks))
    [item] = anthropic.write_items([found.message])
    assert canonical_json(item) == canonical_json({"role": "assistant", "content": blocks})


def at_once(strategy: st.SearchStrategy[Any]) -> Any:
    """Stands for ``draw`` where a text need not be cut."""
    return []


@pytest.mark.parametrize(
    "said",
    [
        {},
        dict.fromkeys(USAGE),
        {**dict.fromkeys(USAGE), "cache_creation": None, "server_tool_use": None},
        {"input_tokens": None},
    ],
)
def test_a_null_in_the_last_usage_takes_nothing_back(said: Json) -> None:
    events = anthropic_events(at_once, [{"type": "text", "text": "yes"}], **said)
    assert streamed(AnthropicMessages(), events).usage == Usage(
        prompt=5030, cached=5000, written=20, output=9
    )


@pytest.mark.parametrize("arguments", ['{"path": "a", "text": "lon', '{"path": "a", "text": NaN}', "[1", "{"])
def test_arguments_that_were_cut_off_are_kept(arguments: str) -> None:
    """The reply was paid for: what the model wrote is the call's, and the API is sent an object that holds it."""
    use = {"type": "tool_use", "id": "t", "name": "write", "input": {}, "caller": {"type": "direct"}}
    events = anthropic_events(at_once, [{"type": "text", "text": "I write."}, use], "max_tokens")
    pieces = [
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "input_json_delta", "partial_json": piece},
        }
        for piece in (arguments[:4], arguments[4:])
    ]
    found = streamed(AnthropicMessages(), [*events[:-3], *pieces, *events[-3:]])
    [call] = found.message.tool_calls
    assert (found.finish_reason, call.id, call.name, call.arguments) == (
        "max_tokens",
        "t",
        "write",
        arguments,
    )
    [item] = anthropic.write_items([found.message])
    assert item["content"][1]["input"] == {"arguments": arguments}
    assert {**item["content"][1], "input": {}} == use
    history = History("You are an agent.")
    history.user("Go.")
    history.append(found.message)
    history.tool_result("t", "these arguments were cut off")
    assert anthropic.write(history.request())["messages"][1] == item


EMPTY_REPLIES: dict[str, list[Json]] = {
    "no block": [],
    "an empty text": [{"type": "text", "text": ""}],
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", list(EMPTY_REPLIES))
def test_an_empty_reply_is_not_sent_to_anthropic(name: str, stream: bool) -> None:
    """The API refuses messages without content; markers stand where the request before had them."""
    blocks = EMPTY_REPLIES[name]
    ok = [{"type": "text", "text": "ok"}]
    if stream:
        answers = [sse(anthropic_events(at_once, found)) for found in (blocks, blocks, ok)]
    else:
        answers = [httpx.Response(200, json=anthropic_body(found)) for found in (blocks, blocks, ok)]
    bodies = sent_after(AnthropicMessages, answers, stream=stream)
    marker = {"cache_control": {"type": "ephemeral"}}
    texts_sent = [[message["content"] for message in body["messages"]] for body in bodies]
    go: list[list[Json]] = [[{"type": "text", "text": text}] for text in ("Go.", "Go on.", "Go on.")]
    marked: list[list[Json]] = [[{**block, **marker} for block in content] for content in go]
    assert texts_sent == [marked[:1], marked[:2], [go[0], *marked[1:]]]


def test_messages_without_content_are_not_written_for_anthropic() -> None:
    """Wherever they come from; a body that has one is written as it came."""
    replies = [
        Message(role="assistant"),
        Message(role="assistant", content=()),
        Message(role="assistant", reasoning="hm"),
    ]
    for reply in replies:
        messages = (Message(role="user", content="a"), reply, Message(role="user", content="b"))
        items = anthropic.write_items(messages)
        assert items == [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    for content in ("", []):
        body = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": content}] * 2}
        assert anthropic.write(anthropic.read(body)) == body


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_an_anthropic_reply_goes_out_again_as_it_came(stream: bool) -> None:
    blocks: list[Json] = [
        {"type": "compaction", "content": "Before that: nothing.", "encrypted_content": "E"},
        {"type": "thinking", "thinking": "hm", "signature": "S"},
        {"type": "redacted_thinking", "data": "D"},
        {"type": "text", "text": "yes", "citations": [{"type": "char_location", "cited_text": "x"}]},
        {
            "type": "tool_use",
            "id": "t",
            "name": "f",
            "input": {"b": 1, "a": [2]},
            "caller": {"type": "direct"},
        },
    ]
    contents: list[list[Json]] = [blocks, [{"type": "text", "text": "ok"}], [{"type": "text", "text": "ok"}]]
    if stream:
        answers = [sse(anthropic_events(at_once, content)) for content in contents]
    else:
        answers = [httpx.Response(200, json=anthropic_body(content)) for content in contents]
    bodies = sent_after(lambda: AnthropicMessages(markers=False), answers, stream=stream)
    assert_carried(bodies, "messages", [{"role": "assistant", "content": blocks}])


# -- Responses -------------------------------------------------------------------------------------------

output_part = st.fixed_dictionaries(
    {"type": st.just("output_text"), "text": texts}, optional={"annotations": st.just([])}
) | st.fixed_dictionaries({"type": st.just("refusal"), "refusal": texts})
output_item = st.one_of(
    st.fixed_dictionaries(
        {
            "type": st.just("message"),
            "role": st.just("assistant"),
            "content": st.lists(output_part, max_size=3) | texts | st.none(),
        },
        optional={"phase": st.sampled_from(["commentary", "final_answer"]), "id": texts},
    ),
    st.fixed_dictionaries(
        {"type": st.just("function_call"), "call_id": texts, "name": texts, "arguments": texts},
        optional={"id": texts},
    ),
    st.fixed_dictionaries(
        {"type": st.just("custom_tool_call"), "call_id": texts, "name": texts, "input": texts}
    ),
    st.fixed_dictionaries({"type": st.just("reasoning"), "summary": st.just([]), "encrypted_content": texts}),
    st.fixed_dictionaries({"type": st.just("web_search_call"), "action": objects}),
    st.fixed_dictionaries({"type": st.just("compaction"), "encrypted_content": texts}),
)


def responses_body(output: list[Json], status: str = "completed", **more: Any) -> Json:
    usage = {"input_tokens": 5, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 2}
    return {
        "id": "r",
        "object": "response",
        "status": status,
        "model": "m",
        "output": output,
        "usage": usage,
        **more,
    }


def responses_events(body: Json, *, said_at_the_end: bool = True) -> list[Json]:
    """Items as they are done, then the whole; some servers leave the output out there."""
    done = [
        {"type": "response.output_item.done", "output_index": at, "item": item}
        for at, item in enumerate(body["output"])
    ]
    last = body if said_at_the_end else {**body, "output": []}
    return [*reversed(done), {"type": f"response.{body['status']}", "response": last}]


@settings(max_examples=150, deadline=None)
@given(st.lists(output_item, max_size=5), st.booleans())
def test_a_responses_reply_is_one_message_streamed_and_whole(output: list[Json], at_the_end: bool) -> None:
    body = responses_body(output)
    found = streamed(OpenAIResponses(), responses_events(body, said_at_the_end=at_the_end))
    assert found == OpenAIResponses().completion(body)
    assert canonical_json(openai_responses.write_items([found.message])) == canonical_json(output)


def spoken(text: str, **more: Any) -> Json:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {
        "type": "message",
        "id": "m",
        "role": "assistant",
        "status": "completed",
        "content": [part],
        **more,
    }


FUNCTION_CALL: Json = {"type": "function_call", "id": "f", "call_id": "c", "name": "f", "arguments": "{}"}
CUSTOM_CALL: Json = {
    "type": "custom_tool_call",
    "id": "t",
    "call_id": "p",
    "name": "apply_patch",
    "input": "*** Begin",
}
SEARCH: Json = {
    "type": "web_search_call",
    "id": "w",
    "status": "completed",
    "action": {"type": "search", "query": "x"},
}
OUTPUTS: dict[str, list[Json]] = {
    "commentary and an answer": [
        spoken("I look.", phase="commentary"),
        spoken("Done.", phase="final_answer"),
    ],
    "a search between two texts": [
        spoken("I look."),
        SEARCH,
        spoken("Done."),
    ],
    "a text behind a call": [FUNCTION_CALL, spoken("I call.")],
    "text, call, text, custom call": [spoken("I call."), FUNCTION_CALL, spoken("And."), CUSTOM_CALL],
    "thoughts": [{"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "E"}, spoken("Done.")],
    "a refusal": [spoken("No.", content=[{"type": "refusal", "refusal": "I can't"}])],
    "nothing": [],
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", list(OUTPUTS))
def test_a_responses_reply_goes_out_again_as_it_came(name: str, stream: bool) -> None:
    bodies = [responses_body(output) for output in (OUTPUTS[name], [spoken("ok")], [spoken("ok")])]
    if stream:
        answers = [sse(responses_events(body)) for body in bodies]
    else:
        answers = [httpx.Response(200, json=body) for body in bodies]
    sent = sent_after(OpenAIResponses, answers, stream=stream)
    assert_carried(sent, "input", OUTPUTS[name])
    results = {item["call_id"]: item["type"] for item in sent[-1]["input"] if "output" in item}
    calls = {item["call_id"]: f"{item['type']}_output" for item in OUTPUTS[name] if "call_id" in item}
    assert results == calls
    for body in sent:
        checked = plain_value(TYPES["openai-responses", False].validate_python({**body, "stream": False}))
        assert checked == {**body, "stream": False}


def test_results_of_a_body_keep_the_type_that_they_came_with() -> None:
    """Whether or not it is the one of their call."""
    for kinds in product(
        ("function_call", "custom_tool_call"), ("function_call_output", "custom_tool_call_output")
    ):
        called = {**FUNCTION_CALL, "arguments": "{}"} if kinds[0] == "function_call" else CUSTOM_CALL
        result = {"type": kinds[1], "call_id": called["call_id"], "output": "done"}
        body = {"input": [{"role": "user", "content": "x"}, called, result]}
        assert canonical_json(openai_responses.write(openai_responses.read(body))) == canonical_json(body)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_responses_reply_that_was_cut_off(stream: bool) -> None:
    """It has no end token, and nothing may be left of it."""
    for output, reply in (([spoken("one two three", status="incomplete")], 3), ([], 0)):
        body = responses_body(output, "incomplete", incomplete_details={"reason": "max_output_tokens"})
        events = responses_events(body)
        found = streamed(OpenAIResponses(), events) if stream else OpenAIResponses().completion(body)
        assert found.finish_reason == "max_output_tokens"
        prompt = RENDERER.render(History("You are an agent.").request())
        assert len(generated_ids(RENDERER, prompt, found)) == reply
    for details in (None, {}, {"reason": None}):
        body = responses_body([spoken("one")], "incomplete", incomplete_details=details)
        assert OpenAIResponses().completion(body).finish_reason == "incomplete"
    assert OpenAIResponses().completion(responses_body([spoken("one")])).finish_reason == "completed"


def test_text_of_a_stream_that_names_no_items_is_kept() -> None:
    body = responses_body([], "incomplete", incomplete_details={"reason": "max_output_tokens"})
    delta = {"type": "response.output_text.delta", "delta": "yes"}
    assert streamed(OpenAIResponses(), [delta, *responses_events(body)]).message.text == "yes"


# -- options ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [Options(stop=("x",)), Options(seed=0), Options(stop=("x",), seed=1)])
def test_what_an_api_does_not_take_is_refused(options: Options) -> None:
    prompt = RENDERER.render(History("You are an agent.").request())
    with pytest.raises(UsageError, match="takes no stop texts and no seed"):
        OpenAIResponses().call(prompt, options, stream=False)
    body = OpenAIResponses().call(prompt, Options(extra={"seed": 1}), stream=False).body
    assert body["seed"] == 1
    if options.seed is not None:
        with pytest.raises(UsageError, match="takes no seed"):
            AnthropicMessages().call(prompt, options, stream=False)


@pytest.mark.parametrize(
    ("body", "options", "sent"),
    [
        ({"max_tokens": 100}, Options(max_tokens=50), {"max_completion_tokens": 50}),
        ({"max_completion_tokens": 100}, Options(max_tokens=50), {"max_completion_tokens": 50}),
        ({"max_tokens": 100}, Options(), {"max_tokens": 100}),
        ({}, Options(max_tokens=50, extra={"max_tokens": 9}), {"max_tokens": 9}),
        ({"max_tokens": 100}, Options(extra={"max_completion_tokens": 9}), {"max_completion_tokens": 9}),
    ],
)
def test_chat_is_sent_one_length_limit(body: Json, options: Options, sent: Json) -> None:
    """The API refuses a request with both names."""
    prompt = RENDERER.render(openai_chat.read({"messages": [{"role": "user", "content": "x"}], **body}))
    found = OpenAIChat().call(prompt, options, stream=False).body
    assert {key: value for key, value in found.items() if "max" in key} == sent
