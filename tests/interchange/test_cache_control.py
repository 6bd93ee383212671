"""The marker rule: never more than four, never on what can't carry one, and never out of an entry's reach."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from agentctx.history import History
from agentctx.interchange import anthropic
from agentctx.interchange.cache_control import with_markers
from agentctx.messages import Tool, ToolCall

MARK = {"type": "ephemeral"}
Place = tuple[str, int, int]


def markers(body: dict[str, Any]) -> list[Place]:
    """(zone, item, block) of every marker, in the order in which the API reads them."""
    places: list[Place] = [
        ("tools", i, 0) for i, tool in enumerate(body.get("tools", [])) if "cache_control" in tool
    ]
    system = body.get("system", [])
    places += [
        ("system", 0, i)
        for i, block in enumerate(system)
        if isinstance(block, dict) and "cache_control" in block
    ]
    for index, message in enumerate(body["messages"]):
        if isinstance(message["content"], list):
            places += [
                ("messages", index, i)
                for i, block in enumerate(message["content"])
                if "cache_control" in block
            ]
    return places


def bare(value: Any) -> Any:
    """A body without its markers."""
    if isinstance(value, dict):
        return {key: bare(item) for key, item in value.items() if key != "cache_control"}
    return [bare(item) for item in value] if isinstance(value, list) else value


def example() -> History:
    history = History("You are an agent.", [Tool.of("read"), Tool.of("edit")])
    history.user("Read it.")
    history.assistant(tool_calls=[ToolCall(id="c1", name="read", arguments="{}")])
    history.tool_result("c1", "alpha")
    return history


def test_the_four_places() -> None:
    body = with_markers(anthropic.write(example().request()))
    assert markers(body) == [("tools", 1, 0), ("system", 0, 0), ("messages", 0, 0), ("messages", 2, 0)]
    assert body["system"] == [{"type": "text", "text": "You are an agent.", "cache_control": MARK}]
    assert body["messages"][2]["content"][0]["type"] == "tool_result"


def test_the_life_of_an_entry_can_be_chosen() -> None:
    body = with_markers(anthropic.write(example().request()), ttl="1h")
    assert body["tools"][1]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}


def test_markers_that_were_there_are_taken_away() -> None:
    body = with_markers(anthropic.write(example().request()))
    for block in [*body["tools"], *body["messages"][2]["content"]]:
        block["cache_control"] = MARK
    body["messages"][2]["content"][0]["content"] = [{"type": "text", "text": "x", "cache_control": MARK}]
    again = with_markers(body)
    assert len(markers(again)) == 4
    assert "cache_control" not in again["messages"][2]["content"][0]["content"][0]


def test_the_body_given_is_not_changed() -> None:
    body = anthropic.write(example().request())
    before = repr(body)
    with_markers(body)
    assert repr(body) == before


def test_no_marker_on_an_empty_text() -> None:
    body = {
        "system": "",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": ""}]},
            {"role": "user", "content": ""},
        ],
    }
    assert markers(with_markers(body)) == [("messages", 0, 0)]


def test_where_the_last_request_ended_can_be_told() -> None:
    """Two replies since the last request: the place before the newest reply would not be that of an entry."""
    history = example()
    sent = len(with_markers(anthropic.write(history.request()))["messages"])
    for number in range(2):
        history.assistant(f"step {number}")
        history.user("go on")
    body = with_markers(anthropic.write(history.request()), sent=sent)
    assert markers(body)[2:] == [("messages", 2, 0), ("messages", 6, 0)]


turns = st.lists(
    st.one_of(
        st.tuples(st.just("calls"), st.integers(1, 30), st.booleans()),
        st.tuples(st.just("talk"), st.integers(1, 3), st.booleans()),
    ),
    max_size=8,
)


@settings(max_examples=60, deadline=None)
@given(turns, st.booleans(), st.booleans())
def test_every_request_has_a_marker_where_the_last_one_wrote(
    steps: list[tuple[str, int, bool]], has_system: bool, has_tools: bool
) -> None:
    """However many blocks a turn adds, the entry of the request before stands right at a marker of this one."""
    history = History("system" if has_system else None, [Tool.of("f")] if has_tools else [])
    history.user("task")
    before: dict[str, Any] | None = None
    for number, (kind, amount, more) in enumerate([*steps, ("talk", 1, False)]):
        body = with_markers(anthropic.write(history.request()))
        places = markers(body)
        assert len(places) <= 4
        assert places[-1][1] == len(body["messages"]) - 1
        if before is not None:
            newest = markers(before)[-1]
            assert newest in places
            assert bare(body["messages"])[: len(before["messages"])] == bare(before["messages"])
            assert bare([body.get("system"), body.get("tools")]) == bare(
                [before.get("system"), before.get("tools")]
            )
        before = body
        if kind == "calls":
            history.assistant(
                "working" if more else "",
                tool_calls=[ToolCall(id=f"{number}-{i}", name="f", arguments="{}") for i in range(amount)],
            )
            for call in history.open_calls:
                history.tool_result(call, "ok")
            if more:
                history.user("by the way")
        else:
            history.assistant("answer")
            for _ in range(amount):
                history.user("next")
