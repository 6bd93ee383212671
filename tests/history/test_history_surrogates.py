"""Text that no UTF-8 can hold, such as a file name of other bytes: made safe wherever it enters, and nothing breaks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agentctx.history import History, Splice
from agentctx.interchange import anthropic, openai_chat
from agentctx.messages import (
    JSON_DECODER,
    Message,
    Params,
    TextPart,
    Tool,
    ToolCall,
    canonical_json,
)
from agentctx.policies import DirectoryStore, OffloadResults
from agentctx.rendering.chatml import ChatMLRenderer
from agentctx.rendering.tokenizer import embedded_tokenizer

BAD = os.fsdecode(b"caf\xe9") if os.name != "nt" else "caf\udce9"
SAFE = "caf\ufffd"
EXTRA = canonical_json({BAD: BAD})


def parts(history: History) -> None:
    history.user([TextPart(text=BAD, extra_json=EXTRA)])


def a_tool_call(history: History) -> None:
    identity = history.tool_call(BAD, {BAD: [BAD]}, id=BAD)
    assert identity == SAFE
    history.tool_result(BAD, BAD, name=BAD)


def a_draft(history: History) -> None:
    history.user("draft")
    history[-1] = history[-1].model_copy(update={"content": BAD, "notes": (BAD,), "name": BAD})


def notes(history: History) -> None:
    history.note(BAD, key=BAD)
    history.note(BAD)
    assert history.pending_notes == (SAFE, SAFE)


def a_late_tool(history: History) -> None:
    history.user("x")
    history.request()
    history.add_tool(Tool.of(BAD, BAD, {BAD: BAD}, server=BAD), "message")


def a_compaction(history: History) -> None:
    history.user("x")
    history.request()
    history.compact("summarized", [Splice(2, 3, (Message(role="user", content=BAD),))])


def parameters(history: History) -> None:
    history.params = Params(model=BAD, extra_json=canonical_json({"user": BAD}))


WAYS_IN: dict[str, Callable[[History], object]] = {
    "a text": lambda history: history.user(BAD),
    "parts": parts,
    "a reply": lambda history: history.assistant(BAD, reasoning=BAD),
    "a reply's calls": lambda history: history.append(
        Message(role="assistant", tool_calls=(ToolCall(id=BAD, name=BAD, arguments=BAD, extra_json=EXTRA),))
    ),
    "a call and its result": a_tool_call,
    "a message's other fields": lambda history: history.append(
        Message(role="user", content=BAD, name=BAD, notes=(BAD,), extra_json=EXTRA)
    ),
    "JSON": lambda history: history.append(
        Message.model_validate(json.loads('{"role":"user","content":"caf\\udce9","notes":["\\udce9"]}'))
    ),
    "a draft": a_draft,
    "an attachment": lambda history: history.attach(b"text", name=BAD, media_type="text/plain"),
    "an image": lambda history: history.attach(b"\x89PNG\r\n\x1a\n", name=BAD),
    "notes": notes,
    "declared tools": lambda history: history.declare(
        [Tool.of(BAD, BAD, {BAD: BAD}), Tool(name="b", description=BAD)]
    ),
    "a late tool": a_late_tool,
    "a compaction": a_compaction,
    "parameters": parameters,
}


@pytest.mark.parametrize("way", WAYS_IN)
def test_every_way_in_makes_text_safe(way: str, tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    with History.open(path, BAD, [Tool.of("read", BAD)], [BAD]) as history:
        WAYS_IN[way](history)
        left = history.checkpoint()
        assert left.decode().count(SAFE) > 3, "in more than system, tools and pinned"
        for identity in history.open_calls:
            history.tool_result(identity, "ok")
        history.user("go on")
        request = history.request()
    assert request.messages[0].text == request.messages[1].text == request.tools[-1].description == SAFE
    for written in (openai_chat.write(request), anthropic.write(request)):
        json.dumps(written, ensure_ascii=False).encode()
    assert all(len(message.digest) == 32 for message in request.messages)
    assert len(ChatMLRenderer(embedded_tokenizer()).render(request).token_ids) > 0
    assert History.resume(left).checkpoint() == left
    with History.open(path) as again:
        assert again.request() == request


def test_half_a_pair_that_arguments_spell_stays_as_the_model_wrote_it() -> None:
    """Spelled in JSON it is UTF-8; where it is read it is made safe."""
    history = History("s")
    history.user("x")
    history.tool_call("read", '{"path": "\\ud83d"}', id="a")
    history.tool_result("a", "ok")
    request = history.request()
    assert request.messages[2].tool_calls[0].arguments == '{"path": "\\ud83d"}'
    body = anthropic.write(request)
    assert body["messages"][1]["content"][0]["input"] == {"path": "\ufffd"}
    assert JSON_DECODER.decode('"\\ud83d\\ude00 \\ud83d"') == "\U0001f600 \ufffd", (
        "a whole pair is a character"
    )


def test_a_bodys_half_pair_is_safe_in_the_history_made_of_it() -> None:
    message = {"role": "user", "content": BAD, "vendor": {"field": BAD}}
    request = History.of(openai_chat.read({"model": "m", "messages": [message]})).request()
    assert openai_chat.write(request)["messages"] == [
        {"role": "user", "content": SAFE, "vendor": {"field": SAFE}}
    ]


@pytest.mark.skipif(os.name == "nt", reason="file names are text there")
def test_a_stores_name_is_made_safe_in_the_prompt(tmp_path: Path) -> None:
    history = History("s")
    history.user("x")
    history.tool_call("read", id="a")
    history.tool_result("a", BAD + " word" * 50)
    policy = OffloadResults(20, 0, store=DirectoryStore(tmp_path / BAD))
    stub = policy.turn(history, lambda text: len(text.split())).request.messages[-1].text
    assert SAFE in stub
    stub.encode()
