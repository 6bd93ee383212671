"""What a History lets its caller do, and what it refuses, by name."""

from __future__ import annotations

import hashlib
import json
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from agentctx.errors import HistoryError, UsageError
from agentctx.history import Compaction, History, Splice, ToolAdded
from agentctx.messages import MediaPart, Message, Params, TextPart, Tool, ToolCall

READ = Tool.of("read", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
EDIT = Tool.of("edit", "Edit a file.", {"type": "object", "properties": {"path": {}, "text": {}}})
GREP = Tool.of("grep", "Search.", {}, source="mcp", server="files")


def conversation() -> History:
    history = History("You are an agent.", [READ])
    history.user("Read a.txt and b.txt.")
    history.request()
    history.tool_call("read", '{"path": "a.txt"}', id="c1")
    history.tool_call("read", '{ "path":"b.txt" }', id="c2")
    history.tool_result("c1", "alpha")
    history.tool_result("c2", "beta")
    history.request()
    return history


def test_zones_stand_in_their_order() -> None:
    history = History(
        "system", [EDIT, GREP, READ], ["project rules", Message(role="user", content="repo map")]
    )
    history.user("task")
    request = history.request(Params(model="m"))
    assert [tool.name for tool in request.tools] == ["edit", "read", "grep"]
    assert [message.text for message in request.messages] == ["system", "project rules", "repo map", "task"]
    assert (request.pinned, request.params.model) == (2, "m")
    assert history.pinned == request.messages[1:3]
    assert history.system == request.messages[0]


def test_tools_stand_in_one_order_however_they_arrive() -> None:
    assert History(tools=[GREP, READ, EDIT]).tools == History(tools=[EDIT, GREP, READ]).tools
    assert [tool.name for tool in History(tools=[GREP, READ], tool_order="given").tools] == ["grep", "read"]


def test_declaring_an_equal_set_again_keeps_the_first_bytes() -> None:
    history = History("s", [READ, EDIT])
    first = history.tools
    turned = Tool.of("edit", "Edit a file.", {"properties": {"text": {}, "path": {}}, "type": "object"})
    history.user("x")
    history.request()
    history.declare([turned, READ])
    assert history.tools is first
    with pytest.raises(HistoryError, match=r"tools \(grep\): the tools were sent"):
        history.declare([READ, EDIT, GREP])
    with pytest.raises(HistoryError, match=r"tools \(edit\)"):
        history.declare([READ])


def test_tools_may_be_replaced_before_the_first_request() -> None:
    history = History("s", [READ])
    history.declare([EDIT])
    assert history.tools == (EDIT,)


def test_many_tools_are_one_zone() -> None:
    many = [Tool.of(f"tool_{number:03}") for number in range(300)]
    assert History(tools=reversed(many)).tools == tuple(many)


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(HistoryError, match=r"tools \(read\): two tools have this name"):
        History(tools=[READ, Tool.of("read", "other")])


def test_a_late_tool_as_a_message_only_appends() -> None:
    history = conversation()
    before = history.request()
    history.add_tool(GREP, "message")
    after = history.request()
    assert after.tools == before.tools
    assert after.messages[: len(before.messages)] == before.messages
    assert '"name":"grep"' in after.messages[-1].text
    assert history.epoch == 0
    history.declare([READ, GREP])  # a caller that declares all of its tools every turn
    assert isinstance(history.events[0], ToolAdded)


def test_a_late_tool_in_the_zone_opens_an_epoch() -> None:
    history = conversation()
    history.add_tool(EDIT, "epoch")
    assert (history.epoch, [tool.name for tool in history.request().tools]) == (1, ["edit", "read"])
    history.add_tool(EDIT, "epoch")
    assert history.epoch == 1, "a tool that is there already changes nothing"
    with pytest.raises(HistoryError, match="another tool has this name"):
        history.add_tool(Tool.of("edit", "Another."), "message")


@pytest.mark.parametrize(
    ("index", "name"),
    [
        (0, r"messages\[0\] \(system\)"),
        (1, r"messages\[1\] \(user\)"),
        (2, r"messages\[2\] \(assistant, calls c1, c2\)"),
        (3, r"messages\[3\] \(tool result c1\)"),
        (-1, r"messages\[4\] \(tool result c2\)"),
    ],
)
def test_what_was_sent_can_not_change(index: int, name: str) -> None:
    history = conversation()
    with pytest.raises(HistoryError, match=name + ": it was sent and can't be edited"):
        history[index] = Message(role="user", content="other")
    with pytest.raises(HistoryError, match=name + ": it was sent and can't be removed"):
        del history[index]


def test_drafts_may_change() -> None:
    history = conversation()
    history.assistant("done")
    history.user("thnaks")
    history[-1] = Message(role="user", content="thanks")
    del history[-2]
    assert [message.text for message in history.request().messages[-1:]] == ["thanks"]
    assert len(history) == 6


@pytest.mark.parametrize("at", [5, 6, 7, 8])
def test_one_draft_changes_and_its_neighbours_stay(at: int) -> None:
    history = conversation()
    for text in ("a", "b", "c", "d"):
        history.user(text)
    before = list(history)
    other = Message(role="user", content="other")
    history[at] = other
    assert list(history) == [*before[:at], other, *before[at + 1 :]]
    del history[at]
    assert list(history) == list(history.visible) == [*before[:at], *before[at + 1 :]]
    assert history.origins == tuple(range(8))


def test_the_head_can_not_be_edited_even_before_it_is_sent() -> None:
    history = History("s", pinned=["p"])
    with pytest.raises(HistoryError, match=r"messages\[1\] \(user\).*build a new History"):
        del history[1]


def test_an_index_out_of_range_is_an_index_error() -> None:
    with pytest.raises(IndexError):
        conversation()[9] = Message(role="user")


def test_a_draft_change_that_would_orphan_a_result_is_refused() -> None:
    history = History()
    history.user("x")
    history.tool_call("read", id="c1")
    history.tool_result("c1", "a")
    with pytest.raises(HistoryError, match="no tool call has this id"):
        del history[1]
    assert len(history) == 3


def test_messages_are_kept_as_they_came() -> None:
    call = conversation()[2].tool_calls[1]
    assert call.arguments == '{ "path":"b.txt" }'


def test_results_take_the_order_of_their_calls_and_user_drafts_wait_behind_them() -> None:
    history = History()
    history.user("go")
    for call in ("c1", "c2", "c3"):
        history.tool_call("read", id=call)
    history.tool_result("c3", "third")
    history.user("and hurry")
    history.tool_result("c1", "first")
    history.tool_result("c2", "second")
    texts = [message.text for message in history.request().messages]
    assert texts == ["go", "", "first", "second", "third", "and hurry"]
    assert history.origins == (0, 1, 2, 3, 4, 5)


def test_a_batch_is_sent_whole_or_not_at_all() -> None:
    history = History()
    history.user("go")
    history.tool_call("read", id="c1")
    history.tool_call("read", id="c2")
    history.tool_result("c2", "x")
    assert history.open_calls == ("c1",)
    for step in (history.request, history.seal, lambda: history.compact("removed", [Splice(0, 1)])):
        with pytest.raises(HistoryError, match="tool call c1 has no result yet"):
            step()
    with pytest.raises(HistoryError, match=r"messages\[3\] \(assistant\): tool call c1 has no result yet"):
        history.assistant("never mind")
    assert history.sealed == 0


def test_of_several_open_calls_the_first_is_named() -> None:
    history = History()
    history.user("go")
    for call in ("c1", "c2", "c3"):
        history.tool_call("read", id=call)
    history.tool_result("c1", "x")
    for step in (history.request, history.assistant, lambda: history.compact("removed", [Splice(0, 1)])):
        with pytest.raises(HistoryError, match=r"messages\[\d\] \(.*\): tool call c2 has no result yet"):
            step()
    assert history.open_calls == ("c2", "c3")
    history = conversation()
    history.assistant("both read")
    with pytest.raises(
        HistoryError, match=r"messages\[2\] \(assistant, calls c1, c2\): tool call c1 has no result"
    ):
        history.compact("removed", [Splice(3, 6)])


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (Message(role="tool", tool_call_id="nope"), "no tool call has this id"),
        (Message(role="tool"), "must name the call"),
        (Message(role="tool", tool_call_id="c1"), "already has a result"),
        (Message(role="user", tool_call_id="c1"), "only a tool result may have a tool_call_id"),
        (Message(role="user", tool_calls=(ToolCall(id="z", name="f", arguments=""),)), "only an assistant"),
        (Message(role="assistant", tool_calls=(ToolCall(id="c1", name="f", arguments=""),)), "used before"),
        (Message(role="assistant", tool_calls=(ToolCall(id="", name="f", arguments=""),)), "empty id"),
    ],
)
def test_illegal_messages_are_refused(message: Message, problem: str) -> None:
    history = conversation()
    with pytest.raises(HistoryError, match=problem):
        history.append(message)
    assert len(history) == 5


def test_a_result_for_a_call_of_an_earlier_batch_is_refused() -> None:
    history = conversation()
    history.tool_call("read", id="c3")
    with pytest.raises(HistoryError, match="answered long ago"):
        history.tool_result("c1", "again")


def test_call_ids_are_made_where_none_is_given() -> None:
    history = History()
    history.user("x")
    first = history.tool_call("read")
    second = history.tool_call("read")
    assert first != second
    assert [call.id for call in history[1].tool_calls] == [first, second]
    with pytest.raises(HistoryError, match="used before"):
        history.tool_call("read", id=first)


def test_notes_stand_at_the_tail_and_are_frozen_there() -> None:
    history = History("s")
    history.note("time 10:05", key="time")
    history.user("hello")
    history.note("time 10:06", key="time")
    history.note("3 files changed")
    first = history.request()
    assert first.messages[-1].notes == ("time 10:06", "3 files changed")
    assert first.messages[-1].text_with_notes == "hello\n\ntime 10:06\n\n3 files changed"
    history.assistant("hi")
    history.user("more")
    second = history.request()
    assert second.messages[1] == first.messages[1]
    assert second.messages[-1].notes == ()


def test_a_note_without_a_new_message_waits_for_one() -> None:
    history = History()
    history.user("hello")
    first = history.request()
    history.note("late")
    assert history.request() == first, "a retry sends the same bytes"
    history.assistant("hi")
    assert history.pending_notes == ("late",)
    history.user("next")
    assert history.request().messages[-1].notes == ("late",)


def test_a_note_never_joins_the_models_own_message() -> None:
    history = conversation()
    history.note("late")
    history.assistant("done")
    history.seal()
    assert (history[-1].notes, history.pending_notes) == ((), ("late",))
    history.user("next")
    assert history.request().messages[-1].notes == ("late",)


def test_an_empty_history_has_nothing_to_send() -> None:
    with pytest.raises(HistoryError, match="no message to send"):
        History().request()


def test_a_compaction_is_recorded_and_opens_an_epoch() -> None:
    history = conversation()
    history.assistant("done")
    history.user("next task")
    summary = Message(role="user", content="Both files were read.")
    event = history.compact("summarized", [Splice(2, 6, (summary,))])
    assert event == Compaction("summarized", (Splice(2, 6, (summary,)),), 7, 1, 2)
    assert [message.text for message in history.request().messages] == [
        "You are an agent.",
        "Read a.txt and b.txt.",
        "Both files were read.",
        "next task",
    ]
    assert history.origins == (0, 1, -1, 6)
    assert dict(history.fates) == dict.fromkeys((2, 3, 4, 5), "summarized")
    assert len(history.messages) == 7, "the log keeps every message"
    assert history.events == (event,)


def test_several_splices_rewrite_from_the_first_on() -> None:
    history = conversation()
    history.assistant("done")
    history.user("next")
    history.request()
    stubs = [Message(role="user", content=text) for text in ("one", "two")]
    event = history.compact("summarized", [Splice(5, 6, (stubs[1],)), Splice(1, 2, (stubs[0],))])
    assert (event.rewrites_at, history.sent, history.epoch) == (1, 1, 1)
    assert [splice.start for splice in event.splices] == [1, 5]
    assert [message.text for message in history.visible] == [
        "You are an agent.",
        "one",
        "",
        "alpha",
        "beta",
        "two",
        "next",
    ]
    assert history.origins == (0, 1, 2, 3, 4, -1, 6)


def test_a_summary_that_is_summed_up_has_no_fate() -> None:
    """Fates are those of the log's messages; a summary is none of them."""
    history = conversation()
    for number in range(2):
        history.compact(
            "summarized", [Splice(1, 2 if number else 5, (Message(role="assistant", content="sum"),))]
        )
    assert set(history.fates) == {1, 2, 3, 4}
    assert history.origins == (0, -1)


def test_a_compaction_of_what_was_never_sent_opens_no_epoch() -> None:
    history = conversation()
    history.assistant("done")
    history.user("a very long paste")
    stub = Message(role="user", content="[stored in paste.txt]")
    assert history.compact("offloaded", [Splice(6, 7, (stub,))]).rewrites_at is None
    assert history.epoch == 0
    assert history.origins[-1] == 6
    assert history.request().messages[-1] == stub


@pytest.mark.parametrize(
    ("splices", "problem"),
    [
        ([Splice(0, 2)], "out of place"),
        ([Splice(2, 9)], "out of place"),
        ([Splice(3, 2)], "out of place"),
        ([Splice(1, 3), Splice(2, 4)], "out of place"),
        ([], "without a splice"),
        ([Splice(3, 4)], "tool call c1 has no result|results must stand"),
        ([Splice(2, 3)], "no tool call has this id"),
        ([Splice(4, 5)], "tool call c2 has no result"),
    ],
)
def test_a_bad_compaction_changes_nothing(splices: list[Splice], problem: str) -> None:
    history = conversation()
    history.assistant("a draft")
    history.note("10:05", key="time")
    before = history.checkpoint()
    with pytest.raises(HistoryError, match=problem):
        history.compact("removed", splices)
    assert history.checkpoint() == before, "the draft is a draft still, and its note waits"


def test_a_compaction_in_place_may_not_change_calls() -> None:
    history = conversation()
    other = ToolCall(id="c9", name="read", arguments="{}")
    for calls in ((), (other,), (history[2].tool_calls[0],)):
        with pytest.raises(HistoryError, match=r"no tool call has this id|has no result"):
            history.compact("cleared", [Splice(2, 3, (history[2].model_copy(update={"tool_calls": calls}),))])
    with pytest.raises(HistoryError, match="no tool call has this id"):
        history.compact("cleared", [Splice(3, 4, (history[3].model_copy(update={"tool_call_id": "c9"}),))])
    history.compact("cleared", [Splice(3, 4, (history[3].model_copy(update={"content": "[cleared]"}),))])
    assert (history.visible[3].text, history[3].text) == ("[cleared]", "alpha")


def test_a_checkpoint_keeps_what_a_compaction_put_in_place() -> None:
    history = conversation()
    history.compact("cleared", [Splice(3, 4, (history[3].model_copy(update={"content": "[cleared]"}),))])
    again = History.resume(history.checkpoint())
    assert (again.visible, again.origins, again.messages) == (
        history.visible,
        history.origins,
        history.messages,
    )
    assert again.request() == history.request()


def test_a_fork_shares_what_was_sent_and_nothing_else() -> None:
    history = conversation()
    history.note("mine")
    history.assistant("draft")
    child = history.fork()
    child.user("sub-task")
    history.user("go on")
    sent = conversation().request().messages
    assert child.request().messages == (*sent, Message(role="user", content="sub-task"))
    assert history.request().messages[: len(sent)] == sent
    assert history[-1].notes == ("mine",)
    with pytest.raises(HistoryError, match="was sent"):
        child[1] = Message(role="user")


def test_a_fork_before_the_first_request_has_the_head() -> None:
    history = History("s", [READ], ["p"])
    history.user("draft")
    assert [message.text for message in history.fork()] == ["s", "p"]


PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(64))


def test_attachments_are_known_by_their_bytes(tmp_path: Path) -> None:
    history = History()
    history.user("What is this?")
    part = history.attach(PNG, name="shot.png")
    assert isinstance(part, MediaPart)
    assert part.sha256 == hashlib.sha256(PNG).hexdigest()
    assert json.loads(part.source_json)["media_type"] == "image/png"
    (tmp_path / "notes.md").write_text("# Notes")
    text = history.attach(tmp_path / "notes.md")
    assert isinstance(text, TextPart)
    assert "notes.md" in text.text
    assert history[-1].content == (TextPart(text="What is this?"), part, text)
    assert len(history) == 1
    history.request()
    again = history.attach(PNG)
    assert isinstance(again, MediaPart)
    assert again.sha256 == part.sha256
    assert len(history) == 2, "a sent message is not reopened"
    with pytest.raises(UsageError, match="can't tell the type"):
        history.attach(b"\xff\x00\xfe")
    with pytest.raises(UsageError, match=r"can't attach gone\.txt"):
        history.attach(tmp_path / "gone.txt")


def test_a_history_is_a_sequence_of_its_log() -> None:
    history = conversation()
    assert len(history) == len(list(history)) == 5
    assert history[-1].tool_call_id == "c2"
    assert [message.role for message in history[1:3]] == ["user", "assistant"]
    assert repr(history) == "History(5 messages, 5 sealed, epoch 0, 1 tools)"


def test_what_is_recorded_can_not_change() -> None:
    history = conversation()
    history.add_tool(GREP, "message")
    history.request()
    compaction = history.compact("removed", [Splice(5, 6)])
    late = history.events[0]
    assert isinstance(late, ToolAdded)
    for value in (compaction, compaction.splices[0], late):
        for field in fields(value):
            with pytest.raises(FrozenInstanceError):
                setattr(value, field.name, None)


def test_turns_are_where_requests_were_built() -> None:
    history = conversation()
    assert (history.turns, history.turn_end(1), history.turn_end(2)) == (2, 2, 5)
    assert history.request() == history.request(), "a retry is no turn"
    assert (history.turns, history.sent, history.sealed) == (2, 5, 5)
    history.assistant("done")
    history.user("next")
    assert (history.turns, history.sent, history.sealed) == (2, 5, 5), "nothing counts before it is sent"
    history.request()
    assert (history.turns, history.turn_end(3), history.sent) == (3, 7, 7)


def test_a_history_of_a_request_goes_on_from_it() -> None:
    source = History("s", [GREP, READ], ["p", "q"], params=Params(model="m"), tool_order="given")
    source.user("go")
    request = source.request()
    history = History.of(request)
    assert (history.sealed, history.head, history.sent) == (0, 3, 0)
    assert [message.text for message in history.pinned] == ["p", "q"]
    assert history.request() == request
    assert History.of(request.model_copy(update={"messages": (), "pinned": 0})).system is None
    open_call = Message(role="assistant", tool_calls=(ToolCall(id="c1", name="read", arguments=""),))
    waiting = History.of(request.model_copy(update={"messages": (*request.messages, open_call)}))
    assert waiting.open_calls == ("c1",)
    orphan = request.model_copy(
        update={"messages": (*request.messages, Message(role="tool", tool_call_id="c9"))}
    )
    with pytest.raises(HistoryError, match=r"messages\[4\] \(tool result c9\): no tool call has this id"):
        History.of(orphan)
