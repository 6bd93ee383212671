"""Guard: a caller's own message list, checked before it is sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anthropic.types
import openai.types.chat
import pytest

from agentctx.diagnosis import parse_target
from agentctx.errors import InputError
from agentctx.guard import Guard, PrefixChanged
from agentctx.messages import Message, Tool, ToolCall

TOOLS = [
    {"type": "function", "function": {"name": name, "description": name, "parameters": {"a": {}, "b": {}}}}
    for name in ("read", "edit")
]


def conversation() -> list[dict[str, Any]]:
    return [
        {"role": "system", "content": "You are an agent. It is 10:05."},
        {"role": "user", "content": "Read a."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "alpha"},
    ]


def test_an_append_only_list_passes() -> None:
    guard, messages = Guard(), conversation()
    for turn in range(5):
        assert guard.check(messages, TOOLS) == []
        messages += [{"role": "assistant", "content": f"step {turn}"}, {"role": "user", "content": "go on"}]
    assert (guard.turns, guard.epochs, guard.findings) == (5, 1, [])


def clock(messages: list[dict[str, Any]]) -> None:
    messages[0]["content"] = "You are an agent. It is 10:06."


def cleared(messages: list[dict[str, Any]]) -> None:
    messages[3]["content"] = "[cleared]"


def reworded(messages: list[dict[str, Any]]) -> None:
    messages[1]["content"] = "Read b."


def new_id(messages: list[dict[str, Any]]) -> None:
    messages[2]["tool_calls"][0]["id"] = messages[3]["tool_call_id"] = "c9"


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (clock, "messages[0].content@28"),
        (cleared, "messages[3].content@0"),
        (reworded, "messages[1].content@5"),
        (new_id, "messages[2].tool_calls[0].id"),
    ],
)
def test_a_change_in_place_is_refused_before_it_is_sent(change: Any, place: str) -> None:
    """The caller's list is changed in place, so the guard must not have kept a reference to it."""
    guard, messages = Guard(), conversation()
    guard.check(messages, TOOLS)
    change(messages)
    messages.append({"role": "user", "content": "more"})
    with pytest.raises(PrefixChanged) as error:
        guard.check(messages, TOOLS)
    (finding,) = error.value.findings
    assert finding.place == place
    assert f"turn 2: {finding.code}" in str(error.value)
    assert "remedy: " in str(error.value)
    assert guard.turns == 1, "what was refused was not sent"
    assert guard.check([*conversation(), {"role": "user", "content": "more"}], TOOLS) == []


def test_warning_returns_findings_and_goes_on() -> None:
    guard, messages = Guard("warn"), conversation()
    guard.check(messages, TOOLS)
    clock(messages)
    (finding,) = guard.check(messages, TOOLS)
    assert (finding.info.word, finding.turn) == ("volatile_text", 2)
    assert guard.check(messages, TOOLS) == []
    assert guard.findings == [finding]


def test_tools_in_another_order_and_schemas_in_another_key_order() -> None:
    guard, messages = Guard("warn"), conversation()
    guard.check(messages, TOOLS)
    (finding,) = guard.check(messages, TOOLS[::-1])
    assert finding.info.word == "tool_order"
    turned = json.loads(json.dumps(TOOLS[::-1]))
    turned[0]["function"]["parameters"] = {"b": {}, "a": {}}
    assert len(guard.check(messages, turned)) == 1


def test_an_announced_compaction_opens_an_epoch() -> None:
    guard, messages = Guard(), conversation()
    guard.check(messages, TOOLS)
    short = [messages[0], {"role": "user", "content": "Summary: a was read."}]
    with pytest.raises(PrefixChanged):
        guard.check(short, TOOLS)
    guard.compacted()
    assert guard.check(short, TOOLS) == []
    assert guard.epochs == 2
    with pytest.raises(PrefixChanged):
        guard.check([{"role": "system", "content": "other"}, *short[1:]], TOOLS)


def test_a_reply_that_is_stored_otherwise_is_found() -> None:
    guard, messages = Guard("warn"), conversation()
    guard.check(messages, TOOLS)
    guard.replied({"choices": [{"message": {"role": "assistant", "content": "The file says alpha."}}]})
    messages += [
        {"role": "assistant", "content": "The file says alpha"},
        {"role": "user", "content": "thanks"},
    ]
    (finding,) = guard.check(messages, TOOLS)
    assert finding.place is not None
    assert finding.place.startswith("messages[4].content@")


def test_objects_of_the_openai_client() -> None:
    guard, messages = Guard(), conversation()
    guard.check(messages, TOOLS, model="m")
    reply = openai.types.chat.ChatCompletionMessage.model_validate(
        {"role": "assistant", "content": "done", "refusal": None}
    )
    guard.check([*messages, reply, {"role": "user", "content": "x"}], TOOLS, model="m")
    longer = [*messages, reply.model_copy(update={"content": "done."}), {"role": "user", "content": "x"}]
    with pytest.raises(PrefixChanged, match=r"messages\[4\]\.content@4"):
        guard.check(longer, TOOLS, model="m")


def test_the_shape_of_anthropic() -> None:
    guard = Guard("warn")
    block = anthropic.types.ToolUseBlock(type="tool_use", id="c1", name="read", input={"path": "a"})
    marked = [{"type": "text", "text": "go", "cache_control": {"type": "ephemeral"}}]
    bare = [{"type": "text", "text": "go"}]
    tools = [{"name": "read", "input_schema": {"type": "object"}}]
    reply = {"role": "assistant", "content": [block]}
    result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "alpha"}]}
    assert guard.check([{"role": "user", "content": marked}], tools, system="You are an agent.") == []
    assert (
        guard.check([{"role": "user", "content": bare}, reply, result], tools, system="You are an agent.")
        == []
    )
    (finding,) = guard.check(
        [{"role": "user", "content": bare}, reply, result], tools, system="You are a bot."
    )
    assert finding.zone == "system"


def test_the_shape_of_responses() -> None:
    guard = Guard("warn")
    items: list[dict[str, Any]] = [
        {"role": "user", "content": "go"},
        {"type": "function_call", "call_id": "c1", "name": "read", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "alpha"},
    ]
    guard.check(items, system="Be brief.")
    items.append({"role": "user", "content": "more"})
    assert guard.check(items, system="Be brief.") == []
    items[2] = {**items[2], "output": "beta"}
    (finding,) = guard.check(items, system="Be brief.")
    assert finding.place is not None
    assert finding.place.startswith("input[2].output")


def test_our_own_messages() -> None:
    guard = Guard()
    messages = [
        Message(role="user", content="go"),
        Message(role="assistant", tool_calls=(ToolCall(id="c", name="f", arguments="{}"),)),
        Message(role="tool", tool_call_id="c", content="x"),
    ]
    guard.check(messages[:1], [Tool.of("f")])
    guard.check(messages, [Tool.of("f")])
    with pytest.raises(PrefixChanged, match=r"messages\[0\]"):
        guard.check([Message(role="user", content="no"), *messages[1:]], [Tool.of("f")])


def test_what_is_no_json_is_named() -> None:
    with pytest.raises(InputError, match=r"messages\[1\]"):
        Guard().check([{"role": "user", "content": "x"}, {"role": "user", "content": {1, 2}}])


@pytest.mark.corpus
def test_the_scenarios_break_where_the_truth_says(shared_dir: Path) -> None:
    """Scenarios in three wire formats, turn by turn against the truth for bodies as they are sent.

    ``anthropic_cc`` is ``anthropic`` with cache markers. Left out: ``i``, which is two conversations, and ``k`` with markers,
    where a string that becomes a marked block is a finding of its own.
    """
    truth = json.loads((shared_dir / "cases/scenarios/truth.json").read_text())
    checked = 0
    for path in sorted((shared_dir / "cases/scenarios").glob("*/*.jsonl")):
        folder, name = path.parent.name, path.stem
        if name == "i" or (folder, name) == ("anthropic_cc", "k"):
            continue
        guard = Guard("warn")
        bodies = [json.loads(line) for line in path.read_text().splitlines()]
        broken = [turn for turn, body in enumerate(bodies, 1) if guard.check_request(body)]
        assert broken == truth[f"{folder.removesuffix('_cc')}/{name}/api"]["break_turns"], path
        checked += 1
    assert checked == 41


def test_the_newest_message_cut_short_by_the_next_turn_is_a_change() -> None:
    # In a log this might be another conversation that begins alike; here it can't be one.
    guard = Guard("warn")
    question = {"role": "user", "content": "why does the parser drop the last line of this file?"}
    guard.check([question])
    cut = {"role": "user", "content": "why?"}
    found = guard.check([cut, {"role": "assistant", "content": "it"}, {"role": "user", "content": "mend it"}])
    assert [(finding.code, finding.place) for finding in found] == [("AC110", "messages[0].content@3")]
    found = guard.check([cut])
    assert [(finding.code, finding.place) for finding in found] == [("AC112", "messages[1]")]


def test_a_template_is_asked_even_when_the_bodies_are_append_only(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text(
        "{% for m in messages %}<{{ m.role }}>{{ m.content if loop.last else m.content[:3] }}{% endfor %}<assistant>"
    )
    guard = Guard("warn", target=parse_target(str(tmp_path / "t.jinja")))
    talk = [{"role": "user", "content": "question"}]
    guard.check(talk)
    talk += [{"role": "assistant", "content": "answer"}, {"role": "user", "content": "more"}]
    assert [finding.code for finding in guard.check(talk)] == ["AC150"]
