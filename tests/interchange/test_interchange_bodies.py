"""Round trips of made-up bodies, what is refused by name, and what carries over between APIs."""

from __future__ import annotations

import base64
import json
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from agentctx.errors import InputError, UsageError
from agentctx.history import History, Splice, attachment
from agentctx.interchange import (
    APIS,
    anthropic,
    api,
    llama_completion,
    openai_chat,
    openai_responses,
    plain,
    read_request,
    write_request,
)
from agentctx.messages import MediaPart, Message, Params, Request, Tool, ToolCall, canonical_json

texts = st.text(st.characters(codec="utf-8"), max_size=6)
scalars = (
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False, allow_infinity=False) | texts
)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
unknown = st.dictionaries(
    st.sampled_from(["cache_control", "index", "x-note", "status", "refusal", "annotations"]),
    anything,
    max_size=2,
)


def objects(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects of these fields and some unknown ones, in any key order."""
    return st.tuples(st.fixed_dictionaries(fields), unknown).flatmap(
        lambda both: st.permutations(list({**both[1], **both[0]}.items())).map(dict)
    )


just = st.just
schema = st.dictionaries(texts, anything, max_size=3)
ids = st.sampled_from(["a", "b", "c", ""])

chat_part = (
    objects(type=just("text"), text=texts)
    | objects(type=just("image_url"), image_url=st.fixed_dictionaries({"url": texts}))
    | objects(type=just("video"), video=anything)
)
chat_content = st.none() | texts | st.lists(chat_part, max_size=3)
chat_call = objects(id=ids, type=just("function"), function=objects(name=texts, arguments=texts | schema))
chat_message = (
    objects(role=st.sampled_from(["system", "developer", "user"]), content=chat_content)
    | objects(role=just("assistant"), tool_calls=st.none() | st.lists(chat_call, max_size=3))
    | objects(
        role=just("assistant"),
        content=chat_content,
        reasoning_content=st.none() | texts,
        tool_calls=st.lists(chat_call, max_size=2),
    )
    | objects(role=just("tool"), tool_call_id=ids, content=chat_content, name=st.none() | texts)
)
chat_body = objects(
    model=texts,
    messages=st.lists(chat_message, max_size=5),
    tools=st.none()
    | st.lists(
        objects(
            type=just("function"),
            function=objects(name=st.sampled_from("fgh"), description=texts, parameters=schema),
        ),
        max_size=2,
    ),
    temperature=st.sampled_from([0, 0.0, 1, 0.5, None, True]),
    tool_choice=anything,
)

block = (
    objects(type=just("text"), text=texts)
    | objects(type=just("image"), source=st.fixed_dictionaries({"type": just("url"), "url": texts}))
    | objects(type=just("mystery"), content=anything)
)
result_block = objects(
    type=just("tool_result"), tool_use_id=ids, content=st.none() | texts | st.lists(block, max_size=2)
) | objects(type=just("tool_result"), tool_use_id=ids)
reply_block = (
    block
    | objects(type=just("tool_use"), id=ids, name=texts, input=schema)
    | objects(type=just("thinking"), thinking=texts, signature=texts)
    | objects(type=just("redacted_thinking"), data=texts)
)
anthropic_body = objects(
    model=texts,
    max_tokens=st.integers(1, 5) | st.none(),
    system=texts | st.lists(block, max_size=2),
    messages=st.lists(
        objects(role=just("user"), content=texts | st.lists(block | result_block, max_size=4))
        | objects(role=just("assistant"), content=texts | st.lists(reply_block, max_size=4))
        | objects(role=just("system"), content=texts),
        max_size=5,
    ),
    tools=st.lists(
        objects(name=st.sampled_from("fgh"), description=texts, input_schema=schema)
        | objects(type=just("web_search"), name=just("s")),
        max_size=2,
    ),
)

response_part = (
    objects(type=just("input_text"), text=texts)
    | objects(type=just("input_image"), image_url=texts)
    | objects(type=just("what"))
)
response_item = (
    objects(
        type=just("message"),
        role=st.sampled_from(["user", "system", "developer"]),
        content=texts | st.lists(response_part, max_size=2),
    )
    | objects(role=st.sampled_from(["user", "assistant"]), content=texts)
    | objects(
        type=just("message"),
        role=just("assistant"),
        content=st.lists(
            objects(type=just("output_text"), text=texts) | objects(type=just("refusal"), refusal=texts),
            max_size=2,
        ),
    )
    | objects(
        type=just("reasoning"), summary=st.lists(objects(text=texts), max_size=2), encrypted_content=texts
    )
    | objects(type=just("function_call"), call_id=ids, name=texts, arguments=texts)
    | objects(type=just("custom_tool_call"), call_id=ids, name=texts, input=texts)
    | objects(
        type=st.sampled_from(["function_call_output", "custom_tool_call_output"]),
        call_id=ids,
        output=st.none() | texts | st.lists(response_part, max_size=2),
    )
    | objects(type=just("compaction"), encrypted_content=texts)
    | objects(type=just("web_search_call"), id=texts)
)
responses_body = objects(
    model=texts,
    instructions=st.none() | texts,
    input=texts | st.lists(response_item, max_size=6),
    tools=st.lists(
        objects(type=just("function"), name=st.sampled_from("fgh"), parameters=schema)
        | objects(type=just("web_search")),
        max_size=2,
    ),
    max_output_tokens=st.none() | st.integers(1, 9),
)

llama_body = objects(
    prompt=texts | st.lists(st.integers(0, 9) | texts, max_size=3),
    n_predict=st.integers(-1, 5),
    temperature=st.floats(0, 1),
)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("openai.chat", chat_body),
        ("plain", chat_body),
        ("anthropic.messages", anthropic_body),
        ("openai.responses", responses_body),
        ("llama.completion", llama_body),
    ],
)
def test_any_body_comes_back_to_the_byte(name: str, body: st.SearchStrategy[dict[str, Any]]) -> None:
    @settings(max_examples=150, deadline=None)
    @given(body)
    def check(body: dict[str, Any]) -> None:
        before = canonical_json(body)
        assert canonical_json(write_request(name, read_request(name, body))) == before
        assert canonical_json(body) == before, "reading must not change the body"

    check()


@pytest.mark.parametrize(
    ("name", "body", "field"),
    [
        ("openai.chat", {}, "messages"),
        ("openai.chat", {"messages": [3]}, r"messages\[0\]"),
        ("openai.chat", {"messages": [{"role": "clown"}]}, r"messages\[0\]\.role"),
        ("openai.chat", {"messages": [{"role": "user", "content": 3}]}, r"messages\[0\]\.content"),
        (
            "openai.chat",
            {"messages": [{"role": "assistant", "tool_calls": [{}]}]},
            r"messages\[0\]\.tool_calls\[0\]\.id",
        ),
        (
            "openai.chat",
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "x", "function": {}}]}]},
            r"tool_calls\[0\]\.function\.name",
        ),
        ("openai.chat", {"messages": [], "tools": [{"function": {}}]}, r"tools\[0\]\.name"),
        ("openai.chat", {"messages": [], "agentctx:wire": 1}, "agentctx:wire"),
        ("anthropic.messages", {"messages": [{"role": "tool"}]}, r"messages\[0\]\.role"),
        (
            "anthropic.messages",
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            r"content\[0\]\.tool_use_id",
        ),
        (
            "anthropic.messages",
            {"messages": [{"role": "assistant", "content": ["x"]}]},
            r"messages\[0\]\.content\[0\]",
        ),
        ("anthropic.messages", {"system": 3, "messages": []}, "system"),
        ("openai.responses", {"input": 3}, "input"),
        ("openai.responses", {"input": [{"type": "function_call_output"}]}, r"input\[0\]\.call_id"),
        ("openai.responses", {"input": [{"role": "clown"}]}, r"input\[0\]\.role"),
        ("llama.completion", {}, "prompt"),
    ],
)
def test_a_wrong_body_is_refused_by_field(name: str, body: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=f"field .*{field}"):
        read_request(name, body)


def test_an_unknown_api_is_refused() -> None:
    with pytest.raises(UsageError, match=r"no API is called 'gopher'; choose from openai\.chat"):
        api("gopher")


def conversation() -> History:
    """Everything that a hand-made history can hold."""
    history = History(
        "You are an agent.",
        [Tool.of("read", "Read.", {"type": "object", "properties": {"path": {}}}), Tool.of("now", "Time.")],
    )
    history.user("Read both.")
    history.attach(b"\x89PNG\r\n\x1a\nabc")
    history.note("10:05")
    history.request()
    history.assistant(
        "On it.",
        tool_calls=[
            ToolCall(id="c1", name="read", arguments='{"path":"a"}'),
            ToolCall(id="c2", name="now", arguments=""),
        ],
    )
    history.tool_result("c1", "alpha")
    history.note("10:06")
    history.tool_result("c2", "noon")
    history.request()
    history.assistant("Done.")
    history.user("Thanks.")
    return history


def test_chat_form() -> None:
    body = openai_chat.write(conversation().request(Params(model="m", max_tokens=9)))
    assert (body["model"], body["max_tokens"]) == ("m", 9)
    assert body["messages"][1]["content"][0] == {"type": "text", "text": "Read both."}
    assert body["messages"][1]["content"][1]["image_url"]["url"].startswith("data:image/png;base64,")
    assert body["messages"][1]["content"][2] == {"type": "text", "text": "10:05"}
    assert body["messages"][2]["tool_calls"][0] == {
        "id": "c1",
        "type": "function",
        "function": {"name": "read", "arguments": '{"path":"a"}'},
    }
    assert body["messages"][4] == {"role": "tool", "content": "noon\n\n10:06", "tool_call_id": "c2"}
    assert body["tools"][0]["function"]["name"] == "now"


def test_anthropic_form() -> None:
    body = anthropic.write(conversation().request())
    assert body["system"] == "You are an agent."
    assert [item["role"] for item in body["messages"]] == ["user", "assistant", "user", "assistant", "user"]
    assert [block["type"] for block in body["messages"][1]["content"]] == ["text", "tool_use", "tool_use"]
    assert body["messages"][1]["content"][2]["input"] == {}
    assert [block["tool_use_id"] for block in body["messages"][2]["content"]] == ["c1", "c2"]
    assert body["tools"][0] == {"name": "now", "description": "Time.", "input_schema": {"type": "object"}}


def test_responses_form() -> None:
    body = openai_responses.write(conversation().request())
    assert body["instructions"] == "You are an agent."
    kinds = [item.get("type", item.get("role")) for item in body["input"]]
    assert kinds == [
        "user",
        "assistant",
        *["function_call"] * 2,
        *["function_call_output"] * 2,
        "assistant",
        "user",
    ]


@pytest.mark.parametrize("name", ["openai.chat", "openai.responses", "anthropic.messages", "plain"])
def test_an_export_is_a_strict_extension_of_the_one_before(name: str) -> None:
    """Whatever is appended between two requests, no earlier item of the body changes."""
    key = "input" if name == "openai.responses" else "messages"
    history = conversation()
    before: list[str] = []
    for step in range(6):
        if step % 3 == 2:
            history.user("more")
        else:
            history.assistant(
                "" if step % 3 else "Reading.",
                tool_calls=[
                    ToolCall(id=f"s{step}{i}", name="read", arguments="{}") for i in range(step % 3 + 1)
                ],
            )
            for call in history.open_calls:
                history.tool_result(call, "x")
        if step == 4:
            history.user("and one thing more")  # behind results that go out in the same request
        items = [canonical_json(item) for item in write_request(name, history.request())[key]]
        assert items[: len(before)] == before
        before = items
        if step == 4:
            history.user("again, after the request")
            items = [canonical_json(item) for item in write_request(name, history.request())[key]]
            assert items[: len(before)] == before
            before = items


def test_thinking_keeps_its_signature_and_place() -> None:
    item = {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "first", "signature": "s1"},
            {"type": "text", "text": "I read."},
            {"type": "tool_use", "id": "c", "name": "read", "input": {"b": 1, "a": 2}},
        ],
    }
    (message,) = anthropic.read_item(item)
    assert (message.reasoning, message.text) == ("first", "I read.")
    assert message.tool_calls[0].arguments == '{"b":1,"a":2}'
    assert anthropic.write_items([message]) == [item]
    unsigned = Message(role="assistant", content="x", reasoning="thoughts")
    assert anthropic.write_items([unsigned]) == [{"role": "assistant", "content": "x"}]
    assert openai_chat.write_message(message)["reasoning_content"] == "first"


def test_a_changed_message_is_written_anew() -> None:
    """What a policy put in the place of a content is what is sent, and calls and ids stay."""
    body = {
        "messages": [
            {"role": "user", "content": "go"},
            {
                "role": "assistant",
                "content": [
                    {"type": "tool_use", "name": "f", "id": "c1", "input": {}},
                    {"type": "tool_use", "id": "c2", "name": "f", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "tool_use_id": "c1",
                        "type": "tool_result",
                        "content": [{"type": "text", "text": "long"}],
                        "is_error": True,
                    },
                    {"type": "tool_result", "tool_use_id": "c2", "content": "short"},
                    {"type": "text", "text": "and?"},
                ],
            },
        ]
    }
    history = History.of(anthropic.read(body))
    assert anthropic.write(history.request()) == body
    cleared = history.visible[2].model_copy(update={"content": "[cleared]"})
    history.compact("cleared", [Splice(2, 3, (cleared,))])
    blocks = anthropic.write(history.request())["messages"][2]["content"]
    assert [(block["type"], block.get("content")) for block in blocks][:2] == [
        ("tool_result", "[cleared]"),
        ("tool_result", "short"),
    ]
    assert blocks[0]["is_error"] is True
    assert "and?" in canonical_json(anthropic.write(history.request()))


PIXELS = base64.b64encode(b"\x89PNG\r\n\x1a\nabc").decode()


@pytest.mark.parametrize(
    ("name", "part"),
    [
        (
            "openai.chat",
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PIXELS}", "detail": "low"}},
        ),
        (
            "anthropic.messages",
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXELS}},
        ),
        ("openai.responses", {"type": "input_image", "image_url": f"data:image/png;base64,{PIXELS}"}),
    ],
)
def test_one_image_is_one_hash_in_every_api(name: str, part: dict[str, Any]) -> None:
    key = "input" if name == "openai.responses" else "messages"
    request = read_request(name, {key: [{"role": "user", "content": [part]}]})
    (media,) = request.messages[0].content
    assert isinstance(media, MediaPart)
    ours = attachment(base64.b64decode(PIXELS))
    assert isinstance(ours, MediaPart)
    assert (media.sha256, media.media_type) == (ours.sha256, "image/png")
    for other in ("openai.chat", "anthropic.messages", "openai.responses", "plain"):
        again = read_request(other, write_request(other, request))
        (carried,) = again.messages[0].content
        assert isinstance(carried, MediaPart)
        assert carried.sha256 == media.sha256


def test_files_and_audio_carry_over_where_the_api_takes_them() -> None:
    pdf = attachment(b"%PDF-1.7 x", name="paper.pdf")
    sound = attachment(b"RIFF....WAVEfmt ")
    request = Request(messages=(Message(role="user", content=(pdf, sound)),))
    chat = openai_chat.write(request)["messages"][0]["content"]
    assert chat[0]["file"]["filename"] == "paper.pdf"
    assert chat[1]["input_audio"]["format"] == "wav"
    assert openai_responses.write(request)["input"][0]["content"][0]["type"] == "input_file"
    with pytest.raises(InputError, match="takes no audio"):
        anthropic.write(request)
    document = anthropic.write(Request(messages=(Message(role="user", content=(pdf,)),)))["messages"][0][
        "content"
    ][0]
    assert document["source"]["media_type"] == "application/pdf"
    by_id = read_request(
        "openai.responses",
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f1"}]}]},
    )
    assert openai_chat.write(by_id)["messages"][0]["content"] == [{"type": "file", "file": {"file_id": "f1"}}]
    voice = {
        "role": "user",
        "content": [{"type": "input_audio", "input_audio": {"data": "AAA", "format": "mp3"}}],
    }
    assert openai_chat.write(read_request("openai.chat", {"messages": [voice]}))["messages"] == [voice]


def test_arguments_that_are_no_object_are_wrapped_where_an_object_is_needed() -> None:
    calls = (ToolCall(id="a", name="f", arguments="not json"), ToolCall(id="b", name="f", arguments="[1]"))
    blocks = anthropic.write_items([Message(role="assistant", tool_calls=calls)])[0]["content"]
    assert [block["input"] for block in blocks] == [{"arguments": "not json"}, {"arguments": [1]}]


@pytest.mark.parametrize(
    "arguments", ["NaN", "-Infinity", "1e999", '{"x": NaN}', '{"x": [1, Infinity]}', '{"x": -1e999}']
)
def test_arguments_with_numbers_that_json_lacks_are_text(arguments: str) -> None:
    """Python reads them, and writes a body that no server takes."""
    [item] = anthropic.write_items(
        [Message(role="assistant", tool_calls=(ToolCall(id="a", name="f", arguments=arguments),))]
    )
    assert item["content"][0]["input"] == {"arguments": arguments}
    assert json.loads(canonical_json(item)) == item
    body = {"messages": [{"role": "user", "content": "x"}, item], "max_tokens": 1}
    assert anthropic.write(anthropic.read(body)) == body


def test_parameters_of_one_api_do_not_leak_into_another() -> None:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "x", "refusal": None}],
        "parallel_tool_calls": True,
        "seed": 1,
        "temperature": 0,
    }
    request = openai_chat.read(body)
    assert anthropic.write(request) == {
        "model": "m",
        "messages": [{"role": "user", "content": "x"}],
        "temperature": 0.0,
    }
    assert plain.write(request)["messages"] == [{"role": "user", "content": "x"}]


def test_unknown_fields_of_a_message_stand_in_its_extra_json() -> None:
    message = openai_chat.read_message(
        {"role": "assistant", "content": "x", "refusal": None, "audio": {"id": 3}}
    )
    extra = json.loads(message.extra_json or "{}")
    assert (extra["refusal"], extra["audio"]) == (None, {"id": 3})


def test_a_rendered_prompt_is_one_message() -> None:
    with pytest.raises(InputError, match="render it first"):
        llama_completion.write(conversation().request())


@pytest.mark.parametrize("api_name", sorted(APIS))
@pytest.mark.parametrize("block", [{}, {"text": "a"}, {"type": 7}, {"type": None, "text": "a"}])
def test_a_block_without_a_type_is_read_back_or_refused_by_name(api_name: str, block: dict[str, Any]) -> None:
    """Logs hold blocks of every shape: never an error that names no field."""
    for role in ("user", "assistant"):
        body = {
            "messages": [{"role": role, "content": [block]}],
            "input": [{"role": role, "content": [block]}],
        }
        try:
            request = read_request(api_name, body)
        except InputError as error:
            refused = error
        else:
            assert write_request(api_name, request) == body
            continue
        assert refused.field
