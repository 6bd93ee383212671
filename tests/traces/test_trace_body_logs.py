"""Logs of whole requests as sessions: conversations found, requests kept, and what each call said about itself."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from agentctx.errors import InputError
from agentctx.history import History
from agentctx.traces import load, read_records, record_reply, record_request

from .log_helpers import ANTHROPIC, CHAT, LLAMA, RESPONSES, written

# A log of completion prompts has no messages to compare, only text: a prompt that was edited starts a session anew.
EDITED: dict[str, dict[Any, list[int]]] = {"s31-edit-near-end-sliding-window": {0: [1, 2, 3, 4], 1: [5, 6]}}


@pytest.mark.corpus
def test_conversations_of_the_shared_cases(shared_dir: Path) -> None:
    """The cases say which line belongs to which conversation; the requests themselves don't."""
    cases = sorted((shared_dir / "cases" / "requests").glob("*/requests.jsonl"))
    assert len(cases) == 40
    for log in cases:
        expected = json.loads((log.parent / "expected.json").read_text())
        wanted: dict[Any, list[int]] = {}
        for index, name in enumerate(expected.get("conversation") or [0] * len(log.read_text().splitlines())):
            wanted.setdefault(name, []).append(index + 1)
        if log.parent.name in EDITED:
            wanted = EDITED[log.parent.name]
        sessions = load(log)
        found = [[request.line for request in session.requests] for session in sessions]
        assert sorted(found, key=lambda lines: lines[0] or 0) == sorted(wanted.values()), log.parent.name
        for session in sessions:
            history = History(system=session.system, tools=session.tools)
            for message in session.messages:
                history.append(message)


def turns(body: dict[str, Any], reply: Any, *more: Any) -> list[dict[str, Any]]:
    """Two requests of one conversation: the second holds the reply to the first, and more."""
    key = "input" if "input" in body else "messages"
    return [body, {**body, key: [*body[key], reply, *more]}]


@pytest.mark.parametrize(
    ("body", "reply", "response", "more"),
    [
        (CHAT, {"role": "assistant", "content": "ho"}, {"choices": [{"message": {"role": "assistant", "content": "ho"}}], "usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}}, {"role": "user", "content": "and?"}),
        (ANTHROPIC, {"role": "assistant", "content": [{"type": "text", "text": "ho"}]}, {"type": "message", "content": [{"type": "text", "text": "ho"}], "usage": {"input_tokens": 5, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 0}}, {"role": "user", "content": "and?"}),
        (RESPONSES, {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ho"}]}, {"object": "response", "output": [{"type": "reasoning", "summary": []}, {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ho"}]}], "usage": {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}}}, {"role": "user", "content": "and?"}),
    ],
)  # fmt: skip
def test_each_api_becomes_a_conversation(
    tmp_path: Path, body: dict[str, Any], reply: Any, response: Any, more: Any
) -> None:
    bodies = turns(body, reply, more)
    log = written(
        tmp_path / "log", *({"request": one, "response": response, "at": at} for at, one in enumerate(bodies))
    )
    (session,) = load(log)
    assert session.format == "request-log"
    assert session.system is not None
    assert session.system.text == "Be brief."
    assert [(message.role, message.text) for message in session.messages] == [
        ("user", "hi"),
        ("assistant", "ho"),
        ("user", "and?"),
        ("assistant", "ho"),
    ]
    assert session.generated == (False, True, False, True)
    assert len(session.requests) == 2
    first = session.requests[0]
    assert first.usage is not None
    assert (first.usage.prompt, first.usage.cached, first.at) == (9, 4, 0.0)
    assert session.message_count == 4
    for record in read_records(log):
        assert record_request(record).params.model == body["model"]
        answer = record_reply(record)
        assert answer is not None
        assert answer.text == "ho"


def test_completion_prompts_are_taken_apart_where_one_continues_the_other(tmp_path: Path) -> None:
    prompts = ["Be brief.\nhi\n", "Other\n", "Be brief.\nhi\nho\nand?\n"]
    log = written(
        tmp_path / "log",
        *(
            {"request": {**LLAMA, "prompt": prompt}, "response": {"content": "ho", "stop": True}}
            for prompt in prompts
        ),
    )
    first, second = load(log)
    assert [message.text for message in first.messages] == ["Be brief.\nhi\n", "ho", "\nand?\n", "ho"]
    assert [message.text for message in second.messages] == ["Other\n", "ho"]
    assert [request.request.messages[0].text for request in first.requests] == [prompts[0], prompts[2]]
    tokens = written(tmp_path / "tokens", {**LLAMA, "prompt": [1, 2, 3]})
    with pytest.raises(InputError, match="token ids"):
        load(tokens)


def test_requests_without_responses(tmp_path: Path) -> None:
    bodies = turns(CHAT, {"role": "assistant", "content": "ho"}, {"role": "user", "content": "and?"})
    (session,) = load(written(tmp_path / "log", *bodies))
    assert [message.text for message in session.messages] == ["hi", "ho", "and?"]
    assert session.generated == (False, True, False)
    assert all(request.reply is None for request in session.requests)


def test_a_named_session_is_one_conversation(tmp_path: Path) -> None:
    lines = [{"session_id": name, "request": CHAT} for name in ("a", "b", "a")]
    sessions = load(written(tmp_path / "log", *lines))
    assert [(session.id, len(session.requests)) for session in sessions] == [("a", 2), ("b", 1)]


@pytest.mark.parametrize("layout", ["array", "indented", "har", "one", "values"])
def test_other_layouts(tmp_path: Path, layout: str) -> None:
    entry = {
        "request": {"url": "https://a/v1/chat/completions", "postData": {"text": json.dumps(CHAT)}},
        "response": {},
    }
    text = {
        "array": json.dumps([CHAT, CHAT]),
        "indented": json.dumps([CHAT, CHAT], indent=2),
        "har": json.dumps({"log": {"entries": [entry, entry]}}, indent=1),
        "one": json.dumps(CHAT, indent=2),
        "values": json.dumps(CHAT, indent=2) + "\n" + json.dumps(CHAT, indent=2),
    }[layout]
    path = tmp_path / "log"
    path.write_text(text)
    (session,) = load(path)
    assert len(session.requests) == (1 if layout == "one" else 2)


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ({"model": "m", "messages": [{"role": "wizard", "content": "x"}]}, "request.messages[0].role"),
        ({"model": "m", "messages": [{"role": "user", "content": 5}]}, "request.messages[0].content"),
        ({"request": CHAT, "response": {"choices": [{"message": 7}]}}, "response.choices[0].message"),
    ],
)  # fmt: skip
def test_a_wrong_body_names_line_and_field(tmp_path: Path, line: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        load(written(tmp_path / "log", CHAT, line))
    assert (caught.value.line, caught.value.field) == (2, field)
    assert caught.value.remedy


def test_several_documents_on_lines_are_all_read(tmp_path: Path) -> None:
    sample = {"id": 1, "epoch": 1, "messages": [{"role": "user", "content": "x"}]}
    assert [session.id for session in load(written(tmp_path / "a", sample, {**sample, "epoch": 2}))] == [
        "1-1",
        "1-2",
    ]
    with pytest.raises(InputError, match="unknown format") as caught:
        load(written(tmp_path / "b", sample, {"x": 1}))
    assert caught.value.line == 2


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_log_in_a_pipe_is_refused_and_does_not_hang(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(json.dumps(CHAT) + "\n",), daemon=True)
    writer.start()
    with pytest.raises(InputError, match="from a pipe"):
        load(pipe)
    writer.join(timeout=30)
