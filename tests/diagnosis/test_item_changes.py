"""The first difference between two items, tool lists or system prompts: its place and kind, written by hand for each field."""

from __future__ import annotations

from typing import Any

import pytest

from agentctx.diagnosis.compare import MISSING, item_change, same_ordered, text_change, tools_change

Body = dict[str, Any]
MARK = {"cache_control": {"type": "ephemeral"}}


def call(id: str = "c1", name: str = "read", arguments: Any = '{"a":1}', **more: Any) -> Body:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def calls(*made: Any) -> Body:
    return {"role": "assistant", "content": None, "tool_calls": list(made)}


def parts(*content: Any, role: str = "user") -> Body:
    return {"role": role, "content": list(content)}


def text(value: str, **more: Any) -> Body:
    return {"type": "text", "text": value, **more}


def use(arguments: Any, id: str = "t1", name: str = "read") -> Body:
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


def said(content: Any, **more: Any) -> Body:
    return {"role": "assistant", "content": content, **more}


@pytest.mark.parametrize(
    ("old", "new", "place", "kind"),
    [
        # texts
        (said("abc"), said("abd"), "m.content@2", "text"),
        (said("abc"), {"role": "user", "content": "abc"}, "m", "role"),
        (said("abc"), said(["abc"]), "m.content", "shape"),
        (said("abc"), parts(text("abc"), role="assistant"), "m.content", "shape"),
        (said("abc"), parts(text("abd"), role="assistant"), "m.content", "part"),
        (said("abc"), said(None), "m.content", "part"),
        (said(None), said("abc"), "m.content", "part"),
        # parts
        (parts(text("a"), text("b")), parts(text("a"), text("c")), "m.content[1].text@0", "text"),
        (parts(text("a")), parts(text("a"), text("b")), "m.content[1]", "part"),
        (parts(text("a"), text("b")), parts(text("b")), "m.content[0].text@0", "text"),
        (parts(text("a")), parts({"type": "input_text", "text": "a"}), "m.content[0]", "part"),
        (parts("a"), parts("b"), "m.content[0]", "part"),
        (
            parts({"type": "thinking", "thinking": "hm", "signature": "x"}),
            parts({"type": "thinking", "thinking": "ha", "signature": "x"}),
            "m.content[0].thinking@1",
            "text",
        ),
        (
            parts({"type": "thinking", "thinking": "hm", "signature": "x"}),
            parts({"type": "thinking", "thinking": "hm", "signature": "y"}),
            "m.content[0].signature",
            "field",
        ),
        (
            parts({"type": "image_url", "image_url": {"url": "a"}}),
            parts({"type": "image_url", "image_url": {"url": "b"}}),
            "m.content[0].image_url",
            "media",
        ),
        (parts(use({"a": 1})), parts(use({"a": 2})), "m.content[0].input", "arguments"),
        (parts(use({"a": 1, "b": 2})), parts(use({"b": 2, "a": 1})), "m.content[0].input", "arguments"),
        (parts(use({"a": 1})), parts(use({"a": 1.0})), "m.content[0].input", "arguments"),
        (parts(use({}, id="t1")), parts(use({}, id="t2")), "m.content[0].id", "id"),
        (parts(use({}, name="read")), parts(use({}, name="edit")), "m.content[0].name", "name"),
        (
            parts({"type": "tool_result", "tool_use_id": "t1", "content": "x"}),
            parts({"type": "tool_result", "tool_use_id": "t2", "content": "x"}),
            "m.content[0].tool_use_id",
            "id",
        ),
        (
            parts({"type": "tool_result", "tool_use_id": "t1", "content": "x"}),
            parts({"type": "tool_result", "content": "x"}),
            "m.content[0].tool_use_id",
            "id",
        ),
        (
            parts({"type": "tool_result", "tool_use_id": "t1", "content": [text("x")]}),
            parts({"type": "tool_result", "tool_use_id": "t1", "content": [text("xy")]}),
            "m.content[0].content[0].text@1",
            "text",
        ),
        (
            parts({"type": "tool_result", "tool_use_id": "t1", "content": "x"}),
            parts({"type": "tool_result", "tool_use_id": "t1", "content": "x", "is_error": True}),
            "m.content[0].is_error",
            "field",
        ),
        # tool calls of the chat API
        (calls(call()), calls(call(id="c2")), "m.tool_calls[0].id", "id"),
        (calls(call()), calls(call(name="edit")), "m.tool_calls[0].function.name", "name"),
        (
            calls(call()),
            calls(call(arguments='{"a":2}')),
            "m.tool_calls[0].function.arguments@5",
            "arguments",
        ),
        (
            calls(call(arguments={"a": 1})),
            calls(call(arguments={"a": 2})),
            "m.tool_calls[0].function.arguments",
            "arguments",
        ),
        (calls(call()), calls(call(), call("c2")), "m.tool_calls[1]", "part"),
        (calls(call(), call("c2")), calls(call()), "m.tool_calls[1]", "part"),
        (calls(call()), said("done"), "m.content", "part"),
        (calls(call()), {"role": "assistant", "content": None}, "m.tool_calls", "part"),
        (calls("odd"), calls("other"), "m.tool_calls[0]", "part"),
        (calls({"id": "c1", "x": 1}), calls({"id": "c1", "x": 2}), "m.tool_calls[0]", "part"),
        (calls(call()), calls({"id": "c1", "function": None}), "m.tool_calls[0].function", "field"),
        (
            calls({"id": "c1", "custom": {"name": "sh", "input": "ls"}}),
            calls({"id": "c1", "custom": {"name": "sh", "input": "ls -l"}}),
            "m.tool_calls[0].custom.input@2",
            "arguments",
        ),
        (
            {"role": "tool", "tool_call_id": "c1", "content": "x"},
            {"role": "tool", "tool_call_id": "c2", "content": "x"},
            "m.tool_call_id",
            "id",
        ),
        (
            {"role": "tool", "tool_call_id": "c1", "content": "x"},
            {"role": "tool", "content": "x"},
            "m.tool_call_id",
            "id",
        ),
        (
            {"role": "tool", "name": "a", "content": "x"},
            {"role": "tool", "name": "b", "content": "x"},
            "m.name",
            "name",
        ),
        # reasoning
        (
            said("a", reasoning_content="hm"),
            said("a", reasoning_content="ha"),
            "m.reasoning_content@1",
            "text",
        ),
        (said("a", reasoning_content="hm"), said("a"), "m.reasoning_content", "reasoning"),
        (said("a"), said("a", reasoning="hm"), "m.reasoning", "reasoning"),
        (said("a", reasoning_details=[1]), said("a", reasoning_details=[2]), "m.reasoning_details", "field"),
        # items of the Responses API
        ({"type": "message", "role": "user"}, {"type": "reasoning"}, "m", "item"),
        (
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "c2", "name": "f", "arguments": "{}"},
            "m.call_id",
            "id",
        ),
        (
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a":1}'},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"b":1}'},
            "m.arguments@2",
            "arguments",
        ),
        ({"type": "reasoning", "id": "r1"}, {"type": "reasoning", "id": "r2"}, "m.id", "id"),
        (
            {"type": "function_call_output", "call_id": "c1", "output": "ab"},
            {"type": "function_call_output", "call_id": "c1", "output": "ac"},
            "m.output@1",
            "text",
        ),
        (
            {"type": "function_call_output", "call_id": "c1", "output": "ab"},
            {"type": "function_call_output", "call_id": "c1", "output": [text("ab")]},
            "m.output",
            "shape",
        ),
        (
            {"type": "function_call_output", "call_id": "c1", "output": [text("ab")]},
            {"type": "function_call_output", "call_id": "c1", "output": [text("ac")]},
            "m.output[0].text@1",
            "text",
        ),
        (
            {"type": "function_call_output", "call_id": "c1", "output": "ab"},
            {"type": "function_call_output", "call_id": "c1"},
            "m.output",
            "part",
        ),
        (
            {"type": "reasoning", "encrypted_content": "x"},
            {"type": "reasoning", "encrypted_content": "y"},
            "m.encrypted_content",
            "field",
        ),
        (
            {"type": "web_search_call", "action": {"q": "a"}},
            {"type": "web_search_call", "action": {"q": "b"}},
            "m.action",
            "field",
        ),
    ],
)
def test_the_first_difference_of_two_items(old: Body, new: Body, place: str, kind: str) -> None:
    change = item_change(old, new, "m")
    assert change is not None
    assert (change.place, change.kind) == (place, kind)
    back = item_change(new, old, "m")
    assert back is not None, "what differs one way differs the other way"
    assert repr(change.old) != repr(change.new), "the values are those that differ"
    assert MISSING not in (change.old, change.new) or (back.new, back.old) == (change.old, change.new)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (said("a"), said("a", **MARK)),
        (said("a"), said("a", status="completed", refusal=None, annotations=[])),
        (said("a"), said("a", tool_calls=[], reasoning_content="", name=None)),
        (said("a", id="msg_1"), said("a", id="msg_2")),
        (said("a", reasoning="hm"), said("a", reasoning_content="hm", reasoning="hm")),
        (parts(text("a")), parts(text("a", **MARK))),
        (parts(text("a")), parts(text("a"), {"cachePoint": {"type": "default"}})),
        (parts(text("a")), parts({"text": "a", "type": "text"})),
        (parts(use({"a": 1})), parts({**use({"a": 1}), **MARK})),
        (
            parts({"type": "tool_result", "tool_use_id": "t1", "content": "x"}),
            parts({"type": "tool_result", "tool_use_id": "t1", "content": "x", "is_error": False}),
        ),
        (calls(call()), calls(call(index=0))),
        ({"type": "message", "role": "user", "content": "a"}, {"role": "user", "content": "a"}),
        ({"type": "reasoning", "id": "r1"}, {"type": "reasoning"}),
        ({"type": "function_call", "role": "assistant"}, {"type": "function_call"}),
    ],
)
def test_what_no_prompt_shows_is_no_difference(old: Body, new: Body) -> None:
    assert item_change(old, new, "m") is None
    assert item_change(new, old, "m") is None


def test_a_change_tells_the_values_and_their_absence() -> None:
    change = item_change(calls(call(), call("c2")), calls(call()), "m")
    assert change is not None
    assert (change.old, change.new, repr(change.new)) == (call("c2"), MISSING, "(absent)")
    change = item_change(said("a"), said("a", reasoning="hm"), "m")
    assert change is not None
    assert (change.old, change.new) == (MISSING, "hm")


def test_same_ordered() -> None:
    assert same_ordered({"a": [1, {"b": 2}]}, {"a": [1, {"b": 2}]})
    assert same_ordered({"a": 1, **MARK}, {"a": 1})
    for left, right in (
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, {"a": 1.0}),
        ({"a": 1}, {"a": True}),
        ([1, 2], [1, 2, 3]),
        ([1, 2, 3], [1, 2]),
        ({"a": 1}, {"a": 1, "b": 2}),
        ("a", None),
    ):
        assert not same_ordered(left, right)
        assert not same_ordered(right, left)


def tool(name: str, description: Any = "d", **schema: Any) -> Body:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


A, B, C = tool("a"), tool("b"), tool("c")


@pytest.mark.parametrize(
    ("old", "new", "place", "kind"),
    [
        ([A, B], [B, A], "tools (order)", "order"),
        ([A, B], [A, B, C], "tools[2]", "added"),
        ([A, C], [A, B, C], "tools[1]", "added"),
        ([A, B, C], [A, C], "tools[1]", "removed"),
        ([A, B], [A], "tools[1]", "removed"),
        ([A, B], [A, C], "tools[1]", "removed"),
        ([A, B], [C, A, B], "tools[0]", "added"),
        ([A], [A, A], "tools[1]", "added"),
        ([A, A], [A], "tools[1]", "removed"),
        ([], [A], "tools[0]", "added"),
        ([A], [tool("a", "e")], "tools[0].function.description@0", "text"),
        ([A], [tool("a", None)], "tools[0].function.description", "schema"),
        ([A], [tool("a", x=1)], "tools[0].function.parameters", "schema"),
        ([tool("a", x=1, y=2)], [tool("a", y=2, x=1)], "tools[0].function.parameters", "schema"),
        ([A], [{**A, "function": {**A["function"], "strict": True}}], "tools[0].function", "schema"),
        (
            [{"name": "a", "input_schema": {"x": 1}}],
            [{"name": "a", "input_schema": {"x": 2}}],
            "tools[0].input_schema",
            "schema",
        ),
        ([{"type": "web_search"}], [{"type": "web_search", "filters": [1]}], "tools[0]", "schema"),
    ],
)
def test_the_first_difference_of_two_tool_lists(
    old: list[Body], new: list[Body], place: str, kind: str
) -> None:
    change = tools_change(old, new)
    assert change is not None
    assert (change.place, change.kind) == (place, kind)


def test_equal_tools_are_no_difference() -> None:
    assert tools_change([A, B], [A, B]) is None
    assert tools_change([A], [{**A, **MARK}]) is None
    assert tools_change([A], [{**A, "function": {**A["function"], "strict": None}}]) is None
    change = tools_change([A, B], [A, B, C])
    assert change is not None
    assert (change.old, change.new) == (MISSING, ["c"])


@pytest.mark.parametrize(
    ("old", "new", "place", "kind"),
    [
        ("abc", "abd", "system@2", "text"),
        ("abc", None, "system", "part"),
        (None, "abc", "system", "part"),
        ("", [text("a")], "system", "part"),
        ("abc", [text("abc")], "system", "shape"),
        ("abc", [text("abd")], "system", "part"),
        ([text("a"), text("b")], [text("a"), text("c")], "system[1].text@0", "text"),
    ],
)
def test_the_first_difference_of_two_system_prompts(old: Any, new: Any, place: str, kind: str) -> None:
    change = text_change(old, new, "system")
    assert change is not None
    assert (change.place, change.kind) == (place, kind)


def test_equal_system_prompts_are_no_difference() -> None:
    for old, new in (("a", "a"), (None, ""), (None, []), ([text("a")], [text("a", **MARK)])):
        assert text_change(old, new, "system") is None
