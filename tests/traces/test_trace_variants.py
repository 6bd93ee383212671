"""Versions and corners of the recorders' formats that the shared corpus doesn't hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentctx.errors import InputError
from agentctx.traces import Session, load
from agentctx.traces.conversation import NO_RESULT


def lines(path: Path, *records: Any) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def document(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value, indent=1))
    return path


def shown(session: Session) -> list[tuple[str, str]]:
    return [(message.role, message.text) for message in session.messages]


# --- Claude Code -------------------------------------------------------------------------------------------


def claude(role: str, content: Any, uuid: str, **more: Any) -> dict[str, Any]:
    message: dict[str, Any] = {"role": role, "content": content}
    if "reply" in more:
        message |= {
            "id": more.pop("reply"),
            "model": "claude-x",
            "usage": {"input_tokens": 1, "output_tokens": 2},
        }
    return {"type": role, "uuid": uuid, "sessionId": "s", "message": message, **more}


def test_claude_code_keeps_sub_agents_apart(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "a",
        claude("user", "go", "1"),
        claude("user", "sub task", "2", isSidechain=True, parentUuid=None),
        claude(
            "assistant",
            [{"type": "text", "text": "sub answer"}],
            "3",
            isSidechain=True,
            parentUuid="2",
            reply="m1",
        ),
        claude("user", "named", "4", isSidechain=True, parentUuid=None, agentId="abc"),
        claude("assistant", [{"type": "text", "text": "answer"}], "5", parentUuid="1", reply="m2"),
    )
    main, old, named = load(path)
    assert (main.id, shown(main)) == ("s", [("user", "go"), ("assistant", "answer")])
    assert (old.id, shown(old)) == ("s/2", [("user", "sub task"), ("assistant", "sub answer")])
    assert (named.id, shown(named)) == ("s/abc", [("user", "named")])


def test_claude_code_lines_written_twice_count_once(tmp_path: Path) -> None:
    line = claude("user", "go", "1")
    (session,) = load(lines(tmp_path / "a", line, claude("assistant", "yes", "2", reply="m"), line))
    assert session.message_count == 2


def test_claude_code_parallel_results_between_the_blocks_of_one_reply(tmp_path: Path) -> None:
    def use(call: str) -> list[dict[str, Any]]:
        return [{"type": "tool_use", "id": call, "name": "read", "input": {}}]

    def result(call: str) -> list[dict[str, Any]]:
        return [
            {
                "type": "tool_result",
                "tool_use_id": call,
                "content": [{"type": "text", "text": f"of {call}"}],
                "is_error": True,
            }
        ]

    path = lines(
        tmp_path / "a",
        claude("user", "go", "1"),
        claude("assistant", [{"type": "thinking", "thinking": "hm", "signature": "s"}], "2", reply="m"),
        claude("assistant", use("a"), "3", reply="m"),
        claude("user", result("a"), "4"),
        claude("assistant", use("b"), "5", reply="m"),
        claude("user", result("b"), "6"),
    )
    (session,) = load(path)
    assert session.message_count == 5
    assert session.assistant_count == 2
    _, reply, first, second = session.messages
    assert [call.id for call in reply.tool_calls] == ["a", "b"]
    assert reply.reasoning == "hm"
    assert json.loads(reply.extra_json or "")["thinking"][0]["signature"] == "s"
    assert (first.tool_call_id, first.text, second.tool_call_id) == ("a", "of a", "b")
    assert json.loads(first.extra_json or "") == {"is_error": True}
    assert session.generated == (False, True, False, False)
    assert session.conversation.repairs == ()


def test_images_are_known_by_their_bytes(tmp_path: Path) -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "QUJD" * 30}}
    (session,) = load(lines(tmp_path / "a", claude("user", [{"type": "text", "text": "see"}, image], "1")))
    part = session.messages[0].content[1]
    assert not isinstance(part, str)
    assert part.type == "image"
    assert part.media_type == "image/png"
    assert json.loads(part.source_json) == image


# --- Codex -------------------------------------------------------------------------------------------------


def rollout(kind: str, payload: dict[str, Any]) -> dict[str, Any]:
    return {"timestamp": "2026-03-01T10:00:00Z", "type": kind, "payload": payload}


def item(kind: str, **fields: Any) -> dict[str, Any]:
    return rollout("response_item", {"type": kind, **fields})


def tokens(total: int, last: int) -> dict[str, Any]:
    info = {
        "total_token_usage": {"input_tokens": total},
        "last_token_usage": {"input_tokens": last, "cached_input_tokens": 1, "output_tokens": 2},
    }
    return rollout("event_msg", {"type": "token_count", "info": info})


def test_codex_counts_behind_the_items_and_parallel_calls_with_results_between(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "a",
        rollout("session_meta", {"id": "c", "base_instructions": {"text": "Be brief."}}),
        item("message", role="user", content=[{"type": "input_text", "text": "go"}]),
        item("reasoning", summary=[{"type": "summary_text", "text": "hm"}], encrypted_content="x"),
        item("function_call", name="shell", arguments="{}", call_id="a"),
        item("function_call_output", call_id="a", output="1"),
        item("function_call", name="shell", arguments="{}", call_id="b"),
        item("function_call_output", call_id="b", output="2"),
        tokens(10, 10),
        tokens(10, 10),
        item("web_search_call", status="completed", action={"query": "q"}),
        item("message", role="assistant", content=[{"type": "output_text", "text": "done"}]),
        tokens(30, 20),
    )
    (session,) = load(path)
    assert session.system is not None
    assert session.system.text == "Be brief."
    assert [message.role for message in session.messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert sum(session.generated) == 2
    assert [usage.prompt for usage in session.conversation.usage if usage] == [10, 20]
    assert session.messages[1].reasoning == "hm"
    assert session.conversation.repairs == ()


def test_codex_rollouts_of_old_versions(tmp_path: Path) -> None:
    path = lines(
        tmp_path / "a",
        {"id": "c", "timestamp": "2025-05-01T10:00:00Z", "instructions": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "go"}]},
        {"record_type": "state"},
        {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "a"},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "done"}]},
    )
    (session,) = load(path)
    assert (session.format, session.id) == ("codex", "c")
    assert shown(session) == [("user", "go"), ("assistant", ""), ("tool", "1"), ("assistant", "done")]


# --- OpenHands ---------------------------------------------------------------------------------------------


def openhands_events() -> list[dict[str, Any]]:
    def made(call: str, tool: str) -> dict[str, Any]:
        response = {"id": "r1", "usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}}
        return {
            "function_name": tool,
            "tool_call_id": call,
            "model_response": response,
            "total_calls_in_response": 2,
        }

    return [
        {"id": 0, "source": "agent", "action": "system", "args": {"content": "Be brief."}},
        {"id": 1, "source": "user", "action": "message", "args": {"content": "go"}},
        {"id": 2, "source": "user", "action": "recall", "args": {"query": "go"}},
        {"id": 3, "source": "agent", "cause": 2, "observation": "recall", "content": "microagents"},
        {
            "id": 4,
            "source": "environment",
            "observation": "agent_state_changed",
            "content": "",
            "extras": {"agent_state": "running"},
        },
        {
            "id": 5,
            "source": "agent",
            "action": "run",
            "args": {"command": "ls", "thought": "look"},
            "tool_call_metadata": made("t1", "bash"),
        },
        {
            "id": 6,
            "source": "agent",
            "cause": 5,
            "observation": "run",
            "content": "a.py",
            "tool_call_metadata": made("t1", "bash"),
        },
        {
            "id": 7,
            "source": "agent",
            "action": "read",
            "args": {"path": "a.py"},
            "tool_call_metadata": made("t2", "edit"),
        },
        {"id": 8, "source": "agent", "cause": 7, "observation": "read", "content": "x = 1"},
        {"id": 9, "source": "agent", "action": "message", "args": {"content": "done"}},
    ]


@pytest.mark.parametrize("form", ["line", "list"])
def test_openhands_of_newer_versions(tmp_path: Path, form: str) -> None:
    events = openhands_events()
    if form == "line":
        path = lines(tmp_path / "a", {"instance_id": "i", "instruction": "go", "history": events})
    else:
        path = document(tmp_path / "a", events)
    (session,) = load(path)
    assert session.format == "openhands"
    assert session.system is not None
    assert [message.role for message in session.messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    reply = session.messages[1]
    assert [(call.id, call.name, call.arguments) for call in reply.tool_calls] == [
        ("t1", "bash", '{"command":"ls"}'),
        ("t2", "edit", '{"path":"a.py"}'),
    ]
    usage = session.conversation.usage[1]
    assert usage is not None
    assert (usage.prompt, usage.cached) == (9, 4)
    assert session.conversation.repairs == ()


def test_openhands_results_of_nothing_are_refused(tmp_path: Path) -> None:
    events = [
        *openhands_events(),
        {"id": 10, "source": "agent", "cause": 77, "observation": "run", "content": "x"},
    ]
    with pytest.raises(InputError, match="'77'"):
        load(document(tmp_path / "a", events))


# --- lists of chat messages --------------------------------------------------------------------------------

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "go"},
    {"role": "assistant", "content": "done"},
]


def test_mini_swe_agent_documents(tmp_path: Path) -> None:
    response = {"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}}
    messages = [
        *CHAT[:2],
        {**CHAT[2], "extra": {"response": response, "timestamp": 1772359200.5}},
        {"role": "exit", "content": "Submitted"},
    ]
    (session,) = load(
        document(
            tmp_path / "a", {"info": {}, "messages": messages, "trajectory_format": "mini-swe-agent-1.1"}
        )
    )
    assert session.format == "mini-swe-agent"
    assert session.message_count == 3
    usage = session.conversation.usage[-1]
    assert usage is not None
    assert (usage.cached, session.conversation.at[-1]) == (4, 1772359200.5)


def test_swe_agent_demonstrations_are_not_generated(tmp_path: Path) -> None:
    history = [CHAT[0], {**CHAT[1], "is_demo": True}, {**CHAT[2], "is_demo": True}, CHAT[1], CHAT[2]]
    (session,) = load(document(tmp_path / "a.traj", {"history": history}))
    assert session.generated == (False, False, False, True)


def test_tau_bench_result_files_hold_many_sessions(tmp_path: Path) -> None:
    runs = [{"task_id": n, "trial": 0, "traj": CHAT} for n in range(3)]
    assert [session.id for session in load(document(tmp_path / "a", runs))] == ["0-0", "1-0", "2-0"]


def test_inspect_logs_hold_samples_with_reasoning_and_attachments(tmp_path: Path) -> None:
    def sample(number: int, answer: Any) -> dict[str, Any]:
        call = {"id": "c", "function": "bash", "arguments": {"cmd": "attachment://h2"}, "type": "function"}
        messages = [
            {"role": "user", "content": "attachment://h1", "source": "input"},
            {"role": "assistant", "content": answer, "source": "generate", "tool_calls": [call]},
            {"role": "tool", "content": "ok", "tool_call_id": "c", "function": "bash"},
        ]
        return {"id": number, "epoch": 1, "messages": messages, "attachments": {"h1": "go", "h2": "ls"}}

    thinking = [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "now"}]
    path = document(
        tmp_path / "a", {"version": 2, "eval": {}, "samples": [sample(1, thinking), sample(2, "now")]}
    )
    first, second = load(path)
    assert (first.id, second.id) == ("1-1", "2-1")
    assert shown(first) == shown(second) == [("user", "go"), ("assistant", "now"), ("tool", "ok")]
    assert first.messages[1].reasoning == "hm"
    assert first.messages[1].tool_calls[0].arguments == '{"cmd":"ls"}'
    with pytest.raises(InputError, match="attachment is missing"):
        load(document(tmp_path / "b", {**sample(1, "x"), "attachments": {}}))


def test_cline_task_files_are_lists_of_blocks(tmp_path: Path) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "go"}], "ts": 1772359200500},
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "a", "name": "read", "input": {"p": 1}}],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": "x"},
                {"type": "text", "text": "more"},
            ],
        },
    ]
    (session,) = load(document(tmp_path / "a", messages))
    assert shown(session) == [("user", "go"), ("assistant", ""), ("tool", "x"), ("user", "more")]
    assert session.messages[1].tool_calls[0].arguments == '{"p":1}'
    assert session.conversation.at[0] == 1772359200.5


# --- Gemini CLI, pi ----------------------------------------------------------------------------------------


def test_gemini_notices_are_no_messages(tmp_path: Path) -> None:
    messages = [
        {"type": "info", "content": "update available"},
        {"type": "user", "content": [{"text": "go"}]},
        {"type": "error", "content": "quota"},
        {
            "type": "gemini",
            "content": "done",
            "tokens": {"input": 9, "cached": 4, "output": 2, "thoughts": 3},
        },
    ]
    (session,) = load(document(tmp_path / "a", {"sessionId": "g", "projectHash": "h", "messages": messages}))
    assert shown(session) == [("user", "go"), ("assistant", "done")]
    usage = session.conversation.usage[1]
    assert usage is not None
    assert (usage.prompt, usage.cached, usage.output) == (9, 4, 5)


def test_pi_sessions_with_branches_give_the_last_one(tmp_path: Path) -> None:
    def entry(own: str, parent: str | None, role: str, text: str) -> dict[str, Any]:
        message = {"role": role, "content": [{"type": "text", "text": text}]}
        return {
            "type": "message",
            "id": own,
            "parentId": parent,
            "timestamp": "2026-03-01T10:00:00Z",
            "message": message,
        }

    path = lines(
        tmp_path / "a",
        {"type": "session", "version": 3, "id": "p", "timestamp": "2026-03-01T10:00:00Z", "cwd": "/x"},
        entry("1", None, "user", "go"),
        entry("2", "1", "assistant", "left"),
        entry("3", "1", "assistant", "right"),
        entry("4", "3", "user", "on"),
    )
    (session,) = load(path)
    assert shown(session) == [("user", "go"), ("assistant", "right"), ("user", "on")]


# --- what a conversation is made of ------------------------------------------------------------------------


def test_calls_that_were_never_answered_and_ids_used_twice(tmp_path: Path) -> None:
    def call(own: str) -> dict[str, Any]:
        return {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": own, "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        }

    def result(own: str, text: str) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": own, "content": text}

    messages = [
        CHAT[1],
        call("a"),
        call("b"),
        result("b", "1"),
        result("b", "again"),
        call("b"),
        result("b", "2"),
        call("c"),
    ]
    (session,) = load(document(tmp_path / "a", messages))
    assert [(m.role, m.tool_call_id, m.text) for m in session.messages if m.role == "tool"] == [
        ("tool", "a", NO_RESULT),
        ("tool", "b", "1"),
        ("tool", "b~2", "2"),
    ]
    assert session.messages[-1].tool_calls[0].id == "c", "a call that ends the session is still open"
    notes = session.conversation.repairs
    assert len(notes) == 3
    assert "a second result of call b" in notes[0]
    assert "call a (f) was never answered" in notes[1]
    assert "'b' was used before, now 'b~2'" in notes[2]
