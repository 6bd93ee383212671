"""The markers of a request's own: where they stand in the prompt, and what an API reads that is sent no others."""

from __future__ import annotations

from agentctx.caches.marked_blocks import block_ends, own_marks
from agentctx.interchange import read_request
from agentctx.messages import Message, Request
from agentctx.rendering import load_renderer

RENDERER = load_renderer("chatml")
MARK = {"cache_control": {"type": "ephemeral"}}
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
BODY = {
    "model": "m",
    "tools": [{"name": "f", "input_schema": {}, **HOUR}, {"name": "g", "input_schema": {}}],
    "system": [{"type": "text", "text": "Be kind.", **MARK}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Look."}, {"type": "text", "text": "Now.", **MARK}]},
        {"role": "assistant", "content": [
            {"type": "tool_use", "id": "a", "name": "f", "input": {"cache_control": "no marker"}},
            {"type": "tool_use", "id": "b", "name": "f", "input": {}, **MARK},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": "one"},
            {"type": "tool_result", "tool_use_id": "b", "content": "two", **HOUR},
        ]},
    ],
}  # fmt: skip


def test_markers_stand_at_the_ends_of_the_blocks_that_carry_them() -> None:
    prompt = RENDERER.render(read_request("anthropic.messages", BODY))
    marks = own_marks(prompt)
    assert [life for _, life in marks] == ["1h", None, None, None, "1h"]
    assert set(dict(marks)) <= set(block_ends(prompt))
    text = prompt.text
    ends = [end for end, _ in marks]
    assert prompt.starts is not None
    before = [text[: int(prompt.starts[end])] for end in ends]
    assert before[1].endswith("Be kind.")
    assert before[2].endswith("Now.")
    assert before[4].endswith("two")


def test_a_request_without_markers_has_none() -> None:
    asked = Request(messages=(Message(role="system", content="Be kind."), Message(role="user", content="Hi")))
    assert own_marks(RENDERER.render(asked)) == ()
