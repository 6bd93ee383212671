"""From a difference to its cause, rule by rule; and the views, markers and shares that the rules stand on."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from agentctx.common_ends import common_start
from agentctx.diagnosis import LogDiagnosis, diagnose, diagnose_log, parse_target
from agentctx.diagnosis.align import Move
from agentctx.diagnosis.breakpoints import markers_of, misplaced, position_of
from agentctx.diagnosis.breaks import Break, Reference
from agentctx.diagnosis.classify import (
    Setting,
    edit_cause,
    move_cause,
    schema_cause,
    system_cause,
    text_cause,
    was_cleared,
)
from agentctx.diagnosis.compare import Change, item_change, text_change, tools_change
from agentctx.diagnosis.conversations import Conversations, Match, State, keys_of
from agentctx.diagnosis.costs import again_share, observed_rate, share_before, tokens_of
from agentctx.diagnosis.excerpt import excerpt
from agentctx.diagnosis.exchange import Exchange
from agentctx.diagnosis.findings import Finding
from agentctx.diagnosis.report import finding_lines
from agentctx.diagnosis.turn_tokens import TurnTokens
from agentctx.diagnosis.turns import follow, keys_and_sizes
from agentctx.diagnosis.views import (
    View,
    answered_ids,
    call_ids,
    calls_of,
    key_of,
    reply_items,
    reply_text,
    role_of,
    text_of,
    view_of,
)
from agentctx.errors import InputError
from agentctx.interchange.body_api import Api
from agentctx.usage import Usage

Body = dict[str, Any]
HEAD, BODY, RESULT = Setting(head=True, elapsed=60), Setting(elapsed=60), Setting(result=True, elapsed=60)
LONG = "loaves 212, rolls 840, complaints 3: rye too dark, rye too small. " * 8


def say(text: Any, role: str = "user", **more: Any) -> Body:
    return {"role": role, "content": text, **more}


# -- texts -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "setting", "word"),
    [
        ("a b", "a  b", BODY, "whitespace"),
        ('{"a":1,"b":2}', '{"b":2,"a":1}', BODY, "json_key_order"),
        ('{"a":1}', '{"a": 1}', BODY, "whitespace"),
        ('{"a":1}', '{"a":1.0}', BODY, "argument_serialisation"),
        ("<think>hm</think>\nYes.", "Yes.", BODY, "reasoning_removed"),
        (LONG, "[old result cleared]", RESULT, "compaction"),
        (LONG, "[old result cleared]", BODY, "compaction"),
        (LONG, "[old result cleared]", HEAD, "message_edited"),
        ("You help.", "You help. Today you sell rolls.", HEAD, "system_moved"),
        ("You help.", "You help a lot.", HEAD, "message_edited"),
        ("run 9f86d081", "run 3c4f2a9b", BODY, "random_value"),
        ("at 10:05", "at 10:06", BODY, "volatile_text"),
        ("at 10:05", "at 14:06", BODY, "message_edited"),
        ("at 10:05", "at 14:06", HEAD, "volatile_text"),
        ("step 3", "step 4", HEAD, "volatile_text"),
        ("step 3", "step 4", BODY, "message_edited"),
        ("Branch: main", "Branch: fix", HEAD, "volatile_text"),
        ("Branch: main", "Branch: fix", BODY, "message_edited"),
        ("the cat", "the dog", HEAD, "message_edited"),
    ],
)
def test_the_cause_of_a_changed_text(old: str, new: str, setting: Setting, word: str) -> None:
    assert text_cause(old, new, common_start(old, new), setting) == word


@pytest.mark.parametrize(
    ("old", "new", "result", "cleared"),
    [
        (LONG, "[cleared]", False, True),
        ("short", "[content removed]", False, False),
        ("short", "[content removed]", True, True),
        ("it was removed before", "[content removed]", True, False),
        (LONG, LONG[: len(LONG) // 4], True, True),
        (LONG, LONG[: len(LONG) // 4], False, False),
        (LONG, LONG[: len(LONG) // 2], True, False),
        (LONG, LONG[: len(LONG) // 2] + "… (truncated)", True, True),
        (LONG, LONG[: len(LONG) * 9 // 10] + "… (truncated)", True, False),
        ("x" * 199, "x", True, False),
    ],
)
def test_what_was_cleared_to_save_room(old: str, new: str, result: bool, cleared: bool) -> None:
    assert was_cleared(old, new, result) is cleared


# -- items -----------------------------------------------------------------------------------------------------------------


def call(arguments: Any, id: str = "c1") -> Body:
    return say(
        None, "assistant", tool_calls=[{"id": id, "function": {"name": "read", "arguments": arguments}}]
    )


def blocks(*content: Any, role: str = "user") -> Body:
    return {"role": role, "content": list(content)}


def text(value: str) -> Body:
    return {"type": "text", "text": value}


IMAGE = {"type": "image_url", "image_url": {"url": "a"}}
THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "x"}


def result(content: Any) -> Body:
    return blocks({"type": "tool_result", "tool_use_id": "t1", "content": content})


@pytest.mark.parametrize(
    ("old", "new", "setting", "word"),
    [
        (call("{}"), call("{}", id="c2"), BODY, "id_regenerated"),
        (say("a", "assistant", reasoning="hm"), say("a", "assistant"), BODY, "reasoning_removed"),
        (say("a", "assistant"), say("a", "assistant", reasoning="hm"), BODY, "message_edited"),
        (say("a"), blocks(text("a")), BODY, "content_shape"),
        (blocks(text("ab")), blocks(text("a"), text("b")), BODY, "content_shape"),
        (blocks(IMAGE), blocks({**IMAGE, "image_url": {"url": "b"}}), BODY, "image_changed"),
        (blocks(text("a"), IMAGE), blocks(text("a")), BODY, "image_changed"),
        (
            blocks(THOUGHT, text("a"), role="assistant"),
            blocks(text("a"), role="assistant"),
            BODY,
            "reasoning_removed",
        ),
        (call('{"a":1,"b":2}'), call('{"b":2,"a":1}'), BODY, "json_key_order"),
        (call('{"a":1}'), call('{"a": 1}'), BODY, "argument_serialisation"),
        (call('{"a":1}'), call('{"a":2}'), BODY, "message_edited"),
        (call({"a": 1, "b": 2}), call({"b": 2, "a": 1}), BODY, "json_key_order"),
        (call({"a": [1]}), call({"a": [1.0]}), BODY, "argument_serialisation"),
        (call({"a": 1}), call({"a": 2}), BODY, "message_edited"),
        (call('{"a":1}'), call({"a": 1}), BODY, "argument_serialisation"),
        (call("ls -l"), call("ls  -l"), BODY, "argument_serialisation"),
        (call(LONG), call("[cleared]"), BODY, "compaction"),
        (say("Be brief.", "system"), say("Be brief.", "user"), BODY, "system_moved"),
        (say("Be brief.", "system"), say("Be terse.", "user"), BODY, "message_edited"),
        (say("Be brief.", "assistant"), say("Be brief.", "user"), BODY, "message_edited"),
        (result([text(LONG)]), result([]), BODY, "compaction"),
        (result([text("a"), text("b")]), result([text("a")]), BODY, "compaction"),
        (blocks(text("a"), text("b")), blocks(text("a")), BODY, "message_edited"),
        (result([text(LONG)]), result("[cleared]"), RESULT, "compaction"),
        (blocks("a b"), blocks("a  b"), BODY, "whitespace"),
        (say("the cat"), say("the dog"), BODY, "message_edited"),
    ],
)
def test_the_cause_of_a_changed_item(old: Body, new: Body, setting: Setting, word: str) -> None:
    change = item_change(old, new, "m")
    assert change is not None
    assert edit_cause(change, old, new, setting) == word


SYSTEM = say("You keep the books.", "system")
ASK, REPLY, MORE, AGAIN = say("first?"), say("answer", "assistant"), say("second?"), say("yes", "assistant")
SUMMARY = say("Summary of the conversation so far: the books are kept.")


@pytest.mark.parametrize(
    ("move", "before", "after", "lead", "word"),
    [
        (Move("inserted", 1, come=1), [SYSTEM, ASK], [SYSTEM, SYSTEM, ASK], 1, "system_moved"),
        (
            Move("inserted", 2, come=1),
            [SYSTEM, ASK, REPLY],
            [SYSTEM, ASK, SYSTEM, REPLY],
            1,
            "message_inserted",
        ),
        (Move("inserted", 1, come=1), [SYSTEM, ASK], [SYSTEM, MORE, ASK], 1, "message_inserted"),
        (Move("removed", 0, gone=1), [SYSTEM, ASK], [ASK], 1, "system_moved"),
        (Move("removed", 1, gone=2), [SYSTEM, ASK, REPLY, MORE], [SYSTEM, MORE], 1, "history_trimmed"),
        (Move("removed", 1, gone=1), [SYSTEM, ASK, MORE], [SYSTEM, MORE], 1, "message_removed"),
        (Move("removed", 1, gone=1), [SYSTEM, ASK, REPLY], [SYSTEM, REPLY], 1, "history_trimmed"),
        (
            Move("removed", 2, gone=2),
            [SYSTEM, ASK, REPLY, MORE, AGAIN],
            [SYSTEM, ASK, AGAIN],
            1,
            "history_trimmed",
        ),
        (
            Move("removed", 3, gone=2),
            [SYSTEM, ASK, REPLY, MORE, AGAIN],
            [SYSTEM, ASK, REPLY],
            1,
            "message_removed",
        ),
        (
            Move("removed", 1, gone=1),
            [ASK, {"type": "reasoning", "summary": []}, REPLY],
            [ASK, REPLY],
            0,
            "reasoning_removed",
        ),
        (Move("replaced", 1, 3, 1), [SYSTEM, ASK, REPLY, MORE], [SYSTEM, SUMMARY], 1, "compaction"),
        (Move("replaced", 1, 2, 1), [SYSTEM, ASK, REPLY], [SYSTEM, MORE], 1, "compaction"),
        (Move("replaced", 1, 1, 1), [SYSTEM, ASK], [SYSTEM, REPLY], 1, "message_edited"),
        (
            Move("replaced", 1, 2, 1),
            [SYSTEM, ASK, REPLY],
            [SYSTEM, say("[12 messages were removed]")],
            1,
            "history_trimmed",
        ),
        (
            Move("replaced", 0, 2, 1),
            [SYSTEM, ASK],
            [say("You keep the books.\n\nfirst?")],
            1,
            "system_moved",
        ),
        (
            Move("replaced", 1, 2, 1),
            [SYSTEM, ASK, REPLY],
            [SYSTEM, {"type": "compaction", "encrypted_content": "x"}],
            1,
            "compaction",
        ),
    ],
)
def test_the_cause_of_items_that_came_or_went(
    move: Move, before: list[Body], after: list[Body], lead: int, word: str
) -> None:
    assert move_cause(move, before, after, lead) == word


def tool(name: str, description: str = "Sells.", **schema: Any) -> Body:
    return {"name": name, "description": description, "input_schema": schema}


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ([tool("a"), tool("b")], [tool("b"), tool("a")], "tool_order"),
        ([tool("a")], [tool("a"), tool("b")], "tool_added"),
        ([tool("a"), tool("b")], [tool("a")], "tool_removed"),
        ([tool("a", "Sells. It is 10:05.")], [tool("a", "Sells. It is 10:06.")], "volatile_text"),
        ([tool("a", "Sells rolls.")], [tool("a", "Sells  rolls.")], "whitespace"),
        ([tool("a", "Sells rolls.")], [tool("a", "Buys rolls.")], "tool_schema_changed"),
        ([tool("a", x=1, y=2)], [tool("a", y=2, x=1)], "json_key_order"),
        ([tool("a", required=["x", "y"])], [tool("a", required=["y", "x"])], "json_key_order"),
        ([tool("a", enum=["x", "y"])], [tool("a", enum=["y", "x"])], "tool_schema_changed"),
        (
            [tool("a", p=[{"required": ["x", "y"]}])],
            [tool("a", p=[{"required": ["y", "x"]}])],
            "json_key_order",
        ),
    ],
)
def test_the_cause_of_changed_tools(old: list[Body], new: list[Body], word: str) -> None:
    change = tools_change(old, new)
    assert change is not None
    assert schema_cause(change, HEAD) == word


@pytest.mark.parametrize(
    ("old", "new", "elsewhere", "word"),
    [
        ("It is 10:05.", "It is 10:06.", [], "volatile_text"),
        ("a", [text("a")], [], "content_shape"),
        ([text("a b")], [text("a"), text("more")], [], "message_edited"),
        (["a b"], ["a  b"], [], "whitespace"),
        ([text("a")], [text("a"), text("b")], [], "system_moved"),
        ([text("a"), text("b")], [text("a")], [say("now b stands here")], "system_moved"),
        ([text("a"), text("b")], [text("a")], [say("nothing of it")], "message_edited"),
        ([IMAGE], [{**IMAGE, "image_url": {"url": "b"}}], [], "image_changed"),
    ],
)
def test_the_cause_of_a_changed_system_prompt(old: Any, new: Any, elsewhere: list[Body], word: str) -> None:
    change = text_change(old, new, "system")
    assert change is not None
    assert system_cause(change, HEAD, elsewhere) == word


# -- views -----------------------------------------------------------------------------------------------------------------------


def view(api: Api, body: Mapping[str, Any]) -> View:
    return view_of(Exchange(api, body))


def test_a_view_names_the_parts_as_each_api_does() -> None:
    chat = view(
        "openai.chat",
        {"model": "m", "messages": [SYSTEM, say("x", "developer"), ASK], "functions": [tool("f")]},
    )
    assert (chat.path, chat.lead, list(chat.talk), chat.system) == ("messages", 2, [ASK], None)
    assert [declared["name"] for declared in chat.tools] == ["f"]
    claude = view("anthropic.messages", {"system": "s", "messages": [ASK], "tools": [tool("t")]})
    assert (claude.path, claude.system_path, claude.system, claude.lead) == ("messages", "system", "s", 0)
    responses = view("openai.responses", {"instructions": "s", "input": "hello"})
    assert (responses.path, responses.system_path) == ("input", "instructions")
    assert list(responses.items) == [say("hello")]
    listed = view("openai.responses", {"input": [ASK, 5, REPLY]})
    assert list(listed.items) == [ASK, {}, REPLY]
    prompt = view("llama.completion", {"prompt": [1, 2, 3]})
    assert (prompt.path, prompt.prompt) == ("prompt", [1, 2, 3])
    assert view("text", {"input": "words"}).prompt == "words"
    assert view("llama.completion", {"prompt": 5}).prompt == ""
    odd = view("openai.chat", {"model": 5, "messages": "no list"})
    assert (odd.model, list(odd.items)) == (None, [])


@pytest.mark.parametrize(
    ("api", "response", "items"),
    [
        ("openai.chat", {"choices": [{"message": REPLY}, {"message": AGAIN}]}, ((REPLY,), (AGAIN,))),
        (
            "openai.chat",
            {"choices": [{"message": {"content": "x"}}, 5]},
            (({"role": "assistant", "content": "x"},),),
        ),
        ("openai.chat", {"choices": 5}, ()),
        ("openai.chat", {"error": {"message": "no"}, "choices": [{"message": REPLY}]}, ()),
        ("openai.chat", None, ()),
        ("anthropic.messages", {"content": [text("x")]}, ((say([text("x")], "assistant"),),)),
        ("anthropic.messages", {"content": []}, ()),
        ("openai.responses", {"output": [REPLY, AGAIN]}, ((REPLY, AGAIN),)),
        ("openai.responses", {"output": []}, ()),
    ],
)
def test_the_reply_as_items(api: Api, response: Body | None, items: tuple[Any, ...]) -> None:
    assert reply_items(Exchange(api, {}, response)) == items


@pytest.mark.parametrize(
    ("request_body", "response", "reply"),
    [
        ({"prompt": "x"}, {"content": "said"}, "said"),
        ({"prompt": "x"}, {"choices": [{"text": "said"}]}, "said"),
        ({"prompt": "x"}, {"choices": [{"text": 5}]}, ""),
        ({"prompt": "x"}, {"choices": []}, ""),
        ({"prompt": "x"}, {"error": "no", "content": "said"}, ""),
        ({"prompt": "x"}, None, ""),
        ({"prompt": [1]}, {"content": "said", "tokens": [7, 8]}, [7, 8]),
        ({"prompt": [1]}, {"content": "said"}, []),
    ],
)
def test_the_reply_behind_a_finished_prompt(request_body: Body, response: Body | None, reply: Any) -> None:
    assert reply_text(Exchange("llama.completion", request_body, response)) == reply


USE = {"type": "tool_use", "id": "t1", "name": "read", "input": {"a": 1}}
FUNCTION = {"type": "function_call", "call_id": "f1", "name": "read", "arguments": '{"a":1}'}
CUSTOM = {"type": "custom_tool_call", "call_id": "u1", "name": "sh", "input": "ls"}


def test_calls_and_results_of_each_api() -> None:
    chat, claude = call('{"a":1}'), blocks(text("I read."), USE, role="assistant")
    assert list(calls_of(chat)) == list(calls_of(FUNCTION)) == [("read", '{"a":1}')]
    assert list(calls_of(claude)) == [("read", {"a": 1})]
    assert list(calls_of(CUSTOM)) == [("sh", "ls")]
    assert list(calls_of(say("x", tool_calls=5))) == []
    assert [call_ids(item) for item in (chat, claude, FUNCTION, CUSTOM)] == [["c1"], ["t1"], ["f1"], ["u1"]]
    assert call_ids(say("x", tool_calls=[5, {"id": None}])) == []
    answers = (
        say("x", "tool", tool_call_id="c1"),
        result("x"),
        {"type": "function_call_output", "call_id": "f1", "output": "x"},
    )
    assert [answered_ids(item) for item in answers] == [["c1"], ["t1"], ["f1"]]
    assert answered_ids(FUNCTION) == [], "a call answers nothing"
    assert [role_of(item) for item in (FUNCTION, CUSTOM, *answers[::2], {"type": "reasoning"}, {"type": "new"}, {})] == [
        "assistant", "assistant", "tool", "tool", "assistant", "new", "",
    ]  # fmt: skip
    assert (
        text_of(say("b", "assistant", reasoning="a", tool_calls=chat["tool_calls"])) == 'a\nb\nread\n{"a":1}'
    )


def test_keys_leave_out_what_changes_nothing() -> None:
    assert key_of(say("a")) == key_of(say(" a\n")) == key_of(blocks(text("a"))) == key_of(say("a", id="m1"))
    assert key_of(call("{}")) == key_of(call("{}", id="c2"))
    for other in (say("b"), say("a", "assistant"), blocks(text("a"), text("b")), call("{}")):
        assert key_of(say("a")) != key_of(other)
    assert key_of(call("{}")) != key_of(call("[]"))
    assert key_of({"type": "reasoning", "encrypted_content": "x"}) != key_of(
        {"type": "reasoning", "encrypted_content": "y"}
    )


# -- markers -----------------------------------------------------------------------------------------------------------------------

MARK = {"cache_control": {"type": "ephemeral"}}
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}


def test_markers_are_counted_in_blocks() -> None:
    body = {
        "tools": [tool("a"), {**tool("b"), **HOUR}],
        "system": [text("s"), {**text("t"), **MARK}],
        "messages": [say("plain"), blocks(text("x"), {**text("y"), **MARK})],
    }
    found = markers_of(view("anthropic.messages", body))
    assert [(one.path, one.position, one.block, one.life) for one in found] == [
        ("tools[1].cache_control", (0, 1, 0), 2, "1h"),
        ("system[1].cache_control", (1, 1, 0), 4, None),
        ("messages[1].content[1].cache_control", (2, 1, 1), 7, None),
    ]
    automatic = markers_of(view("anthropic.messages", {"system": "s", "messages": [ASK], **HOUR}))
    assert [(one.path, one.position, one.block, one.life) for one in automatic] == [
        ("cache_control", (2, 1, 0), 2, "1h")
    ]
    assert markers_of(view("openai.responses", {"input": [{**ASK, **MARK}]})) == []


@pytest.mark.parametrize(
    ("place", "position"),
    [
        ("tools[3].description@7", (0, 3, 0)),
        ("tools (order)", (0, 0, 0)),
        ("system[1]@4", (1, 1, 0)),
        ("system@4", (1, 0, 0)),
        ("instructions", (1, 0, 0)),
        ("messages[2].content[5].text@1", (2, 2, 5)),
        ("messages[2].tool_calls[1].id", (2, 2, 0)),
        ("params.tool_choice", None),
    ],
)
def test_places_are_ordered_as_the_model_reads_them(place: str, position: Any) -> None:
    assert position_of(place) == position


def test_a_marker_on_a_block_that_changes_is_misplaced_when_static_text_stands_before_it() -> None:
    def body(clock: str, system: str | None = "s", at: int = 0) -> View:
        content = [text("static"), {**text(clock), **MARK}] if at else [{**text(clock), **MARK}]
        messages = [blocks(*content)]
        return view("anthropic.messages", {"messages": messages} | ({"system": system} if system else {}))

    place = "messages[0].content[{}].text@0"
    found = misplaced(body("10:05"), body("10:06"), place.format(0))
    assert found is not None
    assert found.path == "messages[0].content[0].cache_control"
    assert misplaced(body("10:05", None), body("10:06", None), place.format(0)) is None, "nothing before it"
    assert misplaced(body("10:05", None, 1), body("10:06", None, 1), place.format(1)) is not None
    assert misplaced(body("10:05"), body("10:06", at=1), place.format(0)) is None, "the marker moved"
    assert misplaced(body("10:05", at=1), body("10:06", at=1), "messages[0].content[0].text@0") is not None
    assert misplaced(body("10:05"), body("10:06"), "params.tool_choice") is None
    assert misplaced(body("10:05"), body("10:06"), "tools[0].description@0") is None
    assert misplaced(body("10:05"), body("10:06"), "system@0") is None, "another block"


# -- shares ----------------------------------------------------------------------------------------------------------------------


def state(head: int, *sizes: int, lead: int = 0) -> State:
    return State(1, 1, 0, None, "", None, array("q", range(len(sizes))), array("q", sizes), head, lead=lead)


def at(zone: str, **more: Any) -> Break:
    return Break("message_edited", "here", zone, **more)


def test_the_share_before_a_break_in_characters() -> None:
    earlier = state(100, 50, 150, 100)
    assert share_before(earlier, None) == share_before(earlier, at("params")) == 1.0
    assert share_before(earlier, at("tools")) == share_before(earlier, at("model")) == 0.0
    assert share_before(earlier, at("messages", item=1)) == 150 / 400
    assert share_before(earlier, at("messages", item=1, at=50)) == 150 / 400
    assert share_before(earlier, at("messages", item=1, at=50, text_edit=True)) == 200 / 400
    assert share_before(earlier, at("messages", item=9)) == 1.0
    assert share_before(earlier, at("system", was="x" * 40, at=10)) == 70 / 400
    assert share_before(earlier, at("system", was="x" * 400, at=10)) == 0.0
    assert share_before(state(0, 100, 100, lead=1), at("system", item=0, at=50, text_edit=True)) == 0.25
    assert share_before(state(200), at("messages", at=50)) == 0.25, "a finished prompt"
    assert share_before(state(200), at("messages", at=500)) == 1.0
    assert share_before(state(0), at("messages", at=5)) == 1.0


def test_the_share_that_is_sent_again() -> None:
    texts = ["a" * 50, "b" * 150, "c" * 100]
    old = [{"role": "user", "content": value} for value in texts]
    earlier = state(100, 50, 150, 100)
    earlier.keys = keys_of(old)

    def again(*items: dict[str, Any], zone: str = "messages", item: int = 1, **more: Any) -> float:
        later = view("openai.chat", {"messages": list(items), "tools": [{"x": "y" * 91}]})
        return again_share(earlier, at(zone, item=item, **more), later) * 400

    note, other = {"role": "user", "content": "n" * 30}, {"role": "user", "content": "e" * 200}
    assert again(old[0], note, *old[1:]) == 250, "inserted"
    assert again(old[0], old[2]) == 100, "removed"
    assert again(old[0], other) == 0, "another end"
    assert again(old[0], other, old[2]) == 300, (
        "edited: what stands in its place is counted as it stands there"
    )
    assert again(old[0], other, old[2], at=60, text_edit=True) == 240
    assert again(*old, zone="params") == again(*old, zone="model") == again(*old, zone="tools") == 400
    assert again(note, *old[1:], zone="params") == 380
    reply = {"role": "assistant", "content": "r" * 500}
    earlier.reply_keys = tuple(keys_of([reply]))
    assert again(old[0], old[2], reply, note) == 600, "the reply was paid for, too"
    assert again(old[0], note, *old[1:], reply, *old[1:]) == 750, "what comes a second time is new"


def test_tokens_are_the_servers_or_a_quarter_of_the_characters() -> None:
    earlier = state(100, 301)
    assert tokens_of(earlier) == 100
    assert tokens_of(state(0)) is None
    earlier.usage = Usage(output=3)
    assert tokens_of(earlier) == 100
    earlier.usage = Usage(prompt=0)
    assert tokens_of(earlier) == 0


@pytest.mark.parametrize(
    ("timings", "rate"),
    [
        ({"prompt_n": 640, "prompt_ms": 320.0}, 2000.0),
        ({"prompt_n": 64, "prompt_ms": 64}, 1000.0),
        ({"prompt_n": 63, "prompt_ms": 63}, None),
        ({"prompt_n": 640, "prompt_ms": 0}, None),
        ({"prompt_n": 640}, None),
        (5, None),
    ],
)
def test_a_rate_is_told_by_enough_tokens(timings: Any, rate: float | None) -> None:
    assert observed_rate({"timings": timings}) == rate
    assert observed_rate(None) is observed_rate({}) is None


def test_a_record_of_no_request_names_file_line_and_field() -> None:
    from agentctx.diagnosis import exchange_of

    for record, problem in (
        ({"request": 5}, "not an object"),
        ({"request": {"x": 1}}, "no messages, input or prompt"),
    ):
        with pytest.raises(InputError, match=problem) as error:
            exchange_of(record, line=3, file="log.jsonl")
        assert (error.value.file, error.value.line, error.value.field) == ("log.jsonl", 3, "request")


def test_a_change_knows_its_place() -> None:
    assert Change("m", "text", "a", "b", 0).place == "m@0"
    assert Change("m", "part", "a", "b").place == "m"


def test_the_keys_of_argument_objects_have_an_order_in_every_api() -> None:
    """Equal as values, written in another order: the prompt is another one."""
    results = {"chat": say("x", "tool", tool_call_id="c1"), "claude": result("x")}
    for api, results_item, made in (
        ("openai.chat", results["chat"], lambda arguments: call(arguments)),
        ("anthropic.messages", results["claude"], lambda a: blocks({**USE, "input": a}, role="assistant")),
    ):
        bodies = [
            {"model": "m", "messages": [ASK, made(arguments), results_item, *more]}
            for arguments, more in (({"a": 1, "b": 2}, []), ({"b": 2, "a": 1}, [AGAIN, MORE]))
        ]
        log = [Exchange(api, body) for body in bodies]  # type: ignore[arg-type]
        assert [finding.cause for finding in diagnose_log(log).findings] == ["json_key_order"]
        assert not diagnose_log([log[0], log[0]]).findings


def test_a_turn_is_named_by_file_and_line_or_by_its_number() -> None:
    turn = TurnTokens(4, 5, 1, None, None, 10, 5, 0, 5, True)
    assert turn.place == "request:5"
    assert replace(turn, file="log.jsonl").place == "log.jsonl:5"
    assert replace(turn, file="log.jsonl", line=9).place == "log.jsonl:9"


def test_a_request_that_is_known_to_follow_extends_what_it_repeats_whole() -> None:
    old = view("openai.chat", {"messages": [SYSTEM, ASK, REPLY, MORE]})
    earlier = state(0)
    earlier.reference = Reference(old)

    def relation(*messages: Body) -> tuple[str, int]:
        match = follow(earlier, view("openai.chat", {"messages": [SYSTEM, *messages]}))
        return match.relation, match.shared

    assert relation(ASK, REPLY, MORE, AGAIN) == ("extends", 3)
    assert relation(ASK, REPLY, MORE) == ("extends", 3)
    assert relation(ASK, REPLY) == ("changed", 2)
    assert relation(ASK, AGAIN, MORE) == ("changed", 1)
    earlier.reference = None
    assert relation(ASK, REPLY, MORE) == ("changed", 0)


@pytest.mark.parametrize(
    ("file", "line", "count", "where"),
    [
        (None, None, 1, "request 5, conversation 2"),
        (None, 9, 1, "line 9, conversation 2"),
        ("log.jsonl", 9, 1, "log.jsonl:9, conversation 2"),
        ("log.jsonl", None, 1, "log.jsonl:5, conversation 2"),
        ("log.jsonl", 9, 3, "log.jsonl:9 and 2 more, conversation 2"),
    ],
)
def test_a_finding_says_where_it_is(file: str | None, line: int | None, count: int, where: str) -> None:
    finding = Finding("whitespace", "broken", 2, 4, "m", "messages", file=file, line=line, count=count)
    assert next(finding_lines(finding)).endswith(f"  {where}  m")
    if count > 1:
        finding.recurs = True
        assert " and 2 more, every turn since, conversation 2" in next(finding_lines(finding))


def test_a_finished_prompt_whose_text_changes_at_one_spot_again_and_again() -> None:
    """The words say nothing of a time; that they change at every turn does."""
    talk, log = "<|im_start|>user\nfirst?<|im_end|>\n<|im_start|>assistant\n", []
    for mood in ("quiet", "noisy", "windy", "rainy"):
        prompt = f"<|im_start|>system\nYou keep the books of a bakery. It is {mood} outside, they say. {LONG}<|im_end|>\n{talk}"
        log.append(Exchange("llama.completion", {"prompt": prompt}, {"content": "Yes."}))
        talk += f"Yes.<|im_end|>\n<|im_start|>user\nand {mood}?<|im_end|>\n<|im_start|>assistant\n"
    diagnosis = diagnose_log(log)
    assert [(finding.cause, finding.count) for finding in diagnosis.findings] == [("volatile_text", 3)]


def test_prompts_are_kept_within_a_bound_the_newest_longest() -> None:
    conversations = Conversations()
    states = []
    for number in range(4):
        one = state(2_000_000)
        one.id, one.conversation = conversations.new_id(), number
        conversations.put(one, None, None)
        conversations.keep_tokens(one, f"tokens {number}")
        states.append(one)
    assert [one.tokens for one in states] == [None, None, "tokens 2", "tokens 3"]
    conversations.keep_tokens(states[2], "again")
    conversations.keep_tokens(states[0], "made again")
    assert [one.tokens for one in states] == ["made again", None, "again", None]


def test_keys_and_sizes_are_those_of_the_view_whatever_it_continues() -> None:
    old = view("openai.chat", {"messages": [SYSTEM, ASK, REPLY]})
    earlier = State(1, 1, 0, None, "", Reference(old), *keys_and_sizes(Match("new"), old), 0, lead=1)
    for messages, relation in (
        ([SYSTEM, ASK, REPLY, MORE], "extends"),
        ([SYSTEM, ASK, REPLY], "repeats"),
        ([SYSTEM, ASK, AGAIN, MORE], "changed"),
        ([SYSTEM, ASK], "changed"),
    ):
        now = view("openai.chat", {"messages": messages})
        alone = keys_and_sizes(Match("new"), now)
        assert alone == (keys_of(messages), array("q", (len(text_of(item)) for item in messages)))
        shared = Match(relation, earlier)  # type: ignore[arg-type]
        assert keys_and_sizes(shared, now) == alone
        assert keys_and_sizes(replace(shared, keys=keys_of(messages[1:])), now) == alone


def test_what_was_taken_out_is_shown_from_its_start() -> None:
    gone = say("Every word of this long message is gone from the later request, and it began with these.")
    log = [
        Exchange("openai.chat", {"model": "m", "messages": [SYSTEM, gone, say(LONG), *more]})
        for more in ([], [REPLY, MORE])
    ]
    log[1] = replace(log[1], request={"model": "m", "messages": [SYSTEM, say(LONG), REPLY, MORE]})
    [finding] = diagnose(log[0], log[1]).findings
    assert (finding.cause, finding.was, finding.now) == ("message_removed", excerpt(gone["content"], 0), "")


def test_states_and_keys_are_kept_within_their_bounds() -> None:
    conversations = Conversations(max_states=3, max_keys=7)
    for number, items in enumerate((2, 2, 2, 2, 5, 9)):
        one = state(10, *([1] * items))
        one.id, one.conversation = conversations.new_id(), number
        conversations.put(one, None, None)
        assert (len(conversations), conversations.kept_keys) == [
            (1, 2),
            (2, 4),
            (3, 6),
            (3, 6),
            (2, 7),
            (1, 9),
        ][number]


def test_a_conversation_that_was_retold_shares_no_message() -> None:
    old = view("openai.chat", {"messages": [SYSTEM, say(LONG), say(LONG.upper(), "assistant"), ASK]})
    conversations = Conversations()
    keys, sizes = keys_and_sizes(Match("new"), old)
    one = State(
        conversations.new_id(), 1, 0, None, "", Reference(old), keys, sizes, 0, lead=1, api="openai.chat"
    )
    conversations.put(one, None, None)
    later = [say(LONG + " And more."), say(LONG.upper() + " AND MORE.", "assistant"), say("other?"), AGAIN]
    match = conversations.find(view("openai.chat", {"messages": [SYSTEM, *later]}))
    assert (match.relation, match.state, match.shared) == ("changed", one, 0)
    assert conversations.find(view("openai.chat", {"messages": [SYSTEM, MORE, AGAIN]})).relation == "new"


def test_an_edited_opening_without_an_answer_is_the_same_conversation() -> None:
    conversations = Conversations()
    old = view("openai.chat", {"messages": [SYSTEM, say(LONG)]})
    keys, sizes = keys_and_sizes(Match("new"), old)
    one = State(
        conversations.new_id(), 1, 0, None, "", Reference(old), keys, sizes, 0, lead=1, api="openai.chat"
    )
    conversations.put(one, None, None)
    match = conversations.find(
        view("openai.chat", {"messages": [SYSTEM, say(LONG + " And more."), AGAIN, MORE]})
    )
    assert (match.relation, match.state, match.shared) == ("changed", one, 0)


@pytest.mark.parametrize(
    ("target", "unknown", "known"),
    [("chatml", 19, 229), ("chatml+slot", 19, 228), ("chatml+paged:16", 16, 224)],
)
def test_a_recorded_reply_counts_as_kept_by_the_server(target: str, unknown: int, known: int) -> None:
    """It was generated there, behind the prompt: the next turn finds it, all but what the cache rounds off."""
    answer = say(LONG, "assistant")
    reused = []
    for response in (None, {"choices": [{"message": answer}]}):
        log = LogDiagnosis(parse_target(target))
        log.feed(Exchange("openai.chat", {"model": "m", "messages": [SYSTEM, ASK]}, response))
        log.feed(Exchange("openai.chat", {"model": "m", "messages": [SYSTEM, ASK, answer, MORE]}))
        assert log.turn is not None
        reused.append(log.turn.reused)
    assert reused == [unknown, known]
