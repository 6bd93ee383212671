"""Cases written here, beside the shared ones: the same kinds in other APIs and shapes, and near misses that are clean.

Each case is a base conversation and one change, written out; the expected place is written by hand.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from agentctx.diagnosis import Api, Diagnosis, Exchange, diagnose, diagnose_log

Body = dict[str, Any]
SYSTEM = (
    "You keep the books of a bakery. You answer in short sentences and name your sources.\nBranch: Nordend\n"
)
QUESTION = "How many loaves did we sell on Friday, and were there complaints about the rye bread?"
RESULT = "loaves 212, rolls 840, complaints 3: rye too dark (2), rye too small (1). " * 6
ANSWER = "We sold 212 loaves on Friday. Three customers complained about the rye bread."
ARGUMENTS = '{"day": "Friday", "kind": "loaf"}'
SCHEMA = {
    "type": "object",
    "properties": {"day": {"type": "string"}, "kind": {"type": "string"}},
    "required": ["day", "kind"],
}


def chat(*more: Body, system: str = SYSTEM) -> Body:
    return {
        "model": "gpt-4.1",
        "messages": [{"role": "system", "content": system}, {"role": "user", "content": QUESTION}, *more],
        "tools": [
            {
                "type": "function",
                "function": {"name": name, "description": f"Finds {name}.", "parameters": SCHEMA},
            }
            for name in ("sales", "complaints", "stock")
        ],
    }


CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "sales", "arguments": ARGUMENTS}}
    ],
}
TOOL = {"role": "tool", "tool_call_id": "call_1", "content": RESULT}
REPLY = {"role": "assistant", "content": ANSWER}
NEXT = {"role": "user", "content": "And on Saturday? Take the same kinds, please."}
LAST = {"role": "user", "content": "Thank you. Order flour for Monday as usual, and tell the oven crew."}


def chat_log() -> list[Body]:
    return [
        chat(),
        chat(CALL, TOOL),
        chat(CALL, TOOL, REPLY, NEXT),
        chat(CALL, TOOL, REPLY, NEXT, REPLY, LAST),
    ]


def claude(*more: Body, marked: int = -1) -> Body:
    messages: list[Body] = [
        {"role": "user", "content": [{"type": "text", "text": QUESTION}]},
        *copy.deepcopy(more),
    ]
    messages[marked]["content"][-1]["cache_control"] = {"type": "ephemeral"}
    return {
        "model": "claude-sonnet-4-5",
        "max_tokens": 1024,
        "system": [
            {"type": "text", "text": "You serve the house of Loewe & Co."},
            {"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}},
        ],
        "messages": messages,
        "tools": [
            {"name": name, "description": f"Finds {name}.", "input_schema": SCHEMA}
            for name in ("sales", "stock")
        ],
    }


USE = {
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": "I need the figures of Friday.", "signature": "EqQBCg"},
        {"type": "tool_use", "id": "toolu_1", "name": "sales", "input": {"day": "Friday", "kind": "loaf"}},
    ],
}
USED = {
    "role": "user",
    "content": [
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": RESULT}]}
    ],
}
SAID = {"role": "assistant", "content": [{"type": "text", "text": ANSWER}]}
ASKED = {
    "role": "user",
    "content": [{"type": "text", "text": "And on Saturday? Take the same kinds, please."}],
}
THANKS = {
    "role": "user",
    "content": [{"type": "text", "text": "Thank you. Order flour for Monday as usual."}],
}


def claude_log() -> list[Body]:
    return [
        claude(),
        claude(USE, USED),
        claude(USE, USED, SAID, ASKED),
        claude(USE, USED, SAID, ASKED, SAID, THANKS),
    ]


def responses(*more: Body) -> Body:
    return {
        "model": "gpt-5.1",
        "instructions": SYSTEM,
        "input": [{"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}, *more],
        "tools": [{"type": "function", "name": "sales", "description": "Finds sales.", "parameters": SCHEMA}],
    }


THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAAABexample" * 3}
ITEM_CALL = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_1",
    "name": "sales",
    "arguments": ARGUMENTS,
}
OUTPUT = {"type": "function_call_output", "call_id": "call_1", "output": RESULT}
SPOKEN = {
    "type": "message",
    "role": "assistant",
    "id": "msg_1",
    "content": [{"type": "output_text", "text": ANSWER}],
}
ASK = {
    "role": "user",
    "content": [{"type": "input_text", "text": "And on Saturday? Take the same kinds, please."}],
}


def responses_log() -> list[Body]:
    return [
        responses(),
        responses(THOUGHT, ITEM_CALL, OUTPUT),
        responses(THOUGHT, ITEM_CALL, OUTPUT, SPOKEN, ASK),
        responses(THOUGHT, ITEM_CALL, OUTPUT, SPOKEN, ASK, SPOKEN, ASK),
    ]


LOGS: dict[Api, Callable[[], list[Body]]] = {
    "openai.chat": chat_log,
    "anthropic.messages": claude_log,
    "openai.responses": responses_log,
}
Change = Callable[[Body, int], None]


def run(api: Api, change: Change, bodies: list[Body] | None = None) -> Diagnosis:
    """The base log of the API with ``change(body, turn)`` made to every request."""
    made = [json.loads(json.dumps(body)) for body in (bodies if bodies is not None else LOGS[api]())]
    for turn, body in enumerate(made):
        change(body, turn)
    return diagnose_log([Exchange(api, body, None, 1000.0 + 30 * turn) for turn, body in enumerate(made)])


def said(diagnosis: Diagnosis) -> list[tuple[str, int, str | None, bool]]:
    return [(f.cause, f.turn, f.place, f.recurs) for f in diagnosis.findings]


def since(turn: int, change: Callable[[Body], None]) -> Change:
    return lambda body, number: change(body) if number >= turn else None


@pytest.mark.parametrize("api", LOGS)
def test_the_base_logs_are_clean(api: Api) -> None:
    diagnosis = run(api, lambda body, turn: None)
    assert said(diagnosis) == []
    assert diagnosis.conversation_count == 1
    assert not diagnosis.suspicions


def system_text(body: Body, text: str) -> None:
    body["messages"][0]["content"] = text


@pytest.mark.parametrize(
    ("piece", "cause"),
    [
        (lambda turn: f"Working directory: /srv/{'abcd'[turn]}/books", "volatile_text"),
        (lambda turn: f"Git branch: {('main', 'fix-oven', 'main', 'rye')[turn]}", "volatile_text"),
        (lambda turn: f"Cost so far: ${turn}.10", "volatile_text"),
        (lambda turn: f"Battery {98 - turn} %", "volatile_text"),
        (lambda turn: f"It is {('morning', 'noon', 'evening', 'night')[turn]}.", "volatile_text"),
        (
            lambda turn: f"Open files: {', '.join(['a.py', 'b.py', 'c.py', 'd.py'][: turn + 1])}",
            "volatile_text",
        ),
        (lambda turn: f"x-billing: v=2.1; tag={('a82f1', '0c93e', 'f17d2', '7be04')[turn]};", "random_value"),
        (lambda turn: f"run {('5f3759df', '9e3779b9', 'deadbe3f', '1b873593')[turn]}", "random_value"),
        (lambda turn: ("Be kind.", "Be thorough.", "Be quick.", "Be brief.")[turn], "volatile_text"),
    ],
)
@pytest.mark.parametrize("front", [True, False])
def test_a_live_line_in_the_system_prompt(piece: Callable[[int], str], cause: str, front: bool) -> None:
    """A line that differs in every request, before or behind the static text."""

    def text(turn: int) -> str:
        return f"{piece(turn)}\n{SYSTEM}" if front else f"{SYSTEM}{piece(turn)}\nAlways check the figures."

    diagnosis = run("openai.chat", lambda body, turn: system_text(body, text(turn)))
    (finding,) = diagnosis.findings
    first = next(i for i, (a, b) in enumerate(zip(text(0), text(1), strict=False)) if a != b)
    assert (finding.cause, finding.turn, finding.recurs) == (cause, 1, True)
    assert finding.place == f"messages[0].content@{first}"
    assert finding.count == 3


def test_a_system_prompt_that_was_edited_once() -> None:
    diagnosis = run("openai.chat", since(2, lambda b: system_text(b, SYSTEM.replace("short", "long"))))
    assert said(diagnosis) == [("message_edited", 2, f"messages[0].content@{SYSTEM.index('short')}", False)]


def test_a_date_that_changes_at_midnight() -> None:
    days = ("Monday, 2 March", "Monday, 2 March", "Tuesday, 3 March", "Tuesday, 3 March")
    diagnosis = run("openai.responses", lambda b, t: b.update(instructions=f"{SYSTEM}Today is {days[t]}."))
    assert said(diagnosis) == [("volatile_text", 2, f"instructions@{len(SYSTEM) + 9}", False)]


def test_a_clock_in_a_tool_description() -> None:
    diagnosis = run(
        "anthropic.messages",
        lambda b, t: b["tools"][1].update(description=f"Finds stock (as of 10:0{t}:30)."),
    )
    assert said(diagnosis) == [("volatile_text", 1, "tools[1].description@23", True)]


def test_an_appointment_that_was_corrected_is_no_clock() -> None:
    """A time in a message changes, but not as time passes."""
    first = copy.deepcopy(chat_log())
    for body in first:
        body["messages"][1]["content"] = "Meet the miller at 10:15 on 12 June. " + QUESTION
    diagnosis = run(
        "openai.chat",
        since(
            3, lambda b: b["messages"][1].update(content="Meet the miller at 16:45 on 12 June. " + QUESTION)
        ),
        first,
    )
    assert said(diagnosis) == [("message_edited", 3, "messages[1].content@20", False)]


def test_a_relative_time_that_is_written_anew() -> None:
    diagnosis = run(
        "openai.chat",
        lambda b, t: b["messages"][1].update(content=f"(sent {30 * t + 5} seconds ago) {QUESTION}"),
    )
    assert said(diagnosis) == [("volatile_text", 1, "messages[1].content@6", True)]


def test_one_tool_instead_of_another() -> None:
    diagnosis = run("openai.chat", since(2, lambda b: b["tools"][1]["function"].update(name="feedback")))
    assert said(diagnosis)[0][1:] == (2, "tools[1]", False)
    assert said(diagnosis)[0][0] in ("tool_removed", "tool_added")


def test_tools_of_a_server_that_answers_in_any_order() -> None:
    orders = ([0, 1, 2], [1, 0, 2], [2, 1, 0], [1, 2, 0])
    diagnosis = run("openai.chat", lambda b, t: b.update(tools=[b["tools"][i] for i in orders[t]]))
    assert said(diagnosis) == [("tool_order", 1, "tools (order)", True)]


def test_required_names_in_another_order() -> None:
    diagnosis = run(
        "openai.responses",
        since(2, lambda b: b["tools"][0].update(parameters={**SCHEMA, "required": ["kind", "day"]})),
    )
    assert said(diagnosis) == [("json_key_order", 2, "tools[0].parameters", False)]


def test_an_enum_that_grows_is_a_changed_schema() -> None:
    changed = copy.deepcopy(SCHEMA)
    changed["properties"]["kind"]["enum"] = ["loaf", "roll"]  # type: ignore[index]
    diagnosis = run("anthropic.messages", since(1, lambda b: b["tools"][1].update(input_schema=changed)))
    assert said(diagnosis) == [("tool_schema_changed", 1, "tools[1].input_schema", False)]


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        ('{"day":"Friday","kind":"loaf"}', "argument_serialisation"),
        ('{"kind": "loaf", "day": "Friday"}', "json_key_order"),
        (json.dumps(ARGUMENTS), "argument_serialisation"),
        ('{"day": "\\u0046riday", "kind": "loaf"}', "argument_serialisation"),
        ('{"day": "Sunday", "kind": "loaf"}', "message_edited"),
    ],
)
@pytest.mark.parametrize("api", ["openai.chat", "openai.responses"])
def test_arguments_of_a_call(api: Api, arguments: str, cause: str) -> None:
    def change(body: Body) -> None:
        if api == "openai.chat":
            body["messages"][2]["tool_calls"][0]["function"]["arguments"] = arguments
        else:
            body["input"][2]["arguments"] = arguments

    where = "messages[2].tool_calls[0].function.arguments" if api == "openai.chat" else "input[2].arguments"
    at = next(i for i, (a, b) in enumerate(zip(ARGUMENTS, arguments, strict=False)) if a != b)
    assert said(run(api, since(2, change))) == [(cause, 2, f"{where}@{at}", False)]


def test_a_json_result_that_is_written_anew() -> None:
    old, new = '{"loaves": 212, "rolls": 840}', '{"rolls": 840, "loaves": 212}'
    log = chat_log()
    for body in log[1:]:
        body["messages"][3] = {**TOOL, "content": old}
    diagnosis = run("openai.chat", since(2, lambda b: b["messages"][3].update(content=new)), log)
    assert said(diagnosis) == [("json_key_order", 2, "messages[3].content@2", False)]


def test_item_ids_that_are_left_out_are_bookkeeping() -> None:
    """Items of the Responses API may come back without their own ids; the call ids stay."""

    def change(body: Body) -> None:
        for item in body["input"]:
            item.pop("id", None)

    assert said(run("openai.responses", since(2, change))) == []


def test_parallel_results_that_swap_places() -> None:
    calls = copy.deepcopy(CALL)
    calls["tool_calls"].append({**calls["tool_calls"][0], "id": "call_2"})  # type: ignore[attr-defined, index]
    results = [TOOL, {**TOOL, "tool_call_id": "call_2", "content": "rolls " + RESULT}]
    log = [chat(), chat(calls, *results), chat(calls, *reversed(results), REPLY, NEXT)]
    diagnosis = run("openai.chat", lambda b, t: None, log)
    ((turn, place),) = [(finding.turn, finding.place) for finding in diagnosis.findings]
    assert turn == 2
    assert place is not None
    assert place.startswith("messages[3]")


def test_a_reminder_in_the_newest_message_that_is_taken_away_again() -> None:
    """Each request appends a note to its last message and drops it from the one before."""

    def change(body: Body, turn: int) -> None:
        body["messages"][-1]["content"] += "\n\nReminder: the plan has not been updated yet."

    ((cause, turn, place, recurs),) = said(run("openai.chat", change))
    assert (turn, place, recurs) == (1, f"messages[1].content@{len(QUESTION)}", True)
    assert cause == "message_edited"


def test_a_note_in_front_of_the_newest_message() -> None:
    def change(body: Body, turn: int) -> None:
        body["messages"].insert(
            -1, {"role": "user", "content": f"[turn {turn}] Mind the opening hours, please."}
        )

    diagnosis = run("openai.chat", change)
    (finding,) = diagnosis.findings
    assert (finding.turn, finding.place, finding.recurs, finding.count) == (1, "messages[1]", True, 3)
    assert finding.cause in ("message_inserted", "message_removed")


def test_a_window_that_keeps_the_opening_question() -> None:
    log = [chat(), chat(CALL, TOOL), chat(CALL, TOOL, REPLY, NEXT), chat(REPLY, NEXT, REPLY, LAST)]
    assert said(run("openai.chat", lambda b, t: None, log)) == [("history_trimmed", 3, "messages[2]", False)]


def test_a_window_with_a_stub_for_what_was_dropped() -> None:
    stub = {"role": "user", "content": "[2 earlier messages were removed to save space]"}
    log = [chat(), chat(CALL, TOOL), chat(CALL, TOOL, REPLY, NEXT), chat(stub, REPLY, NEXT, REPLY, LAST)]
    ((cause, turn, place, _),) = said(run("openai.chat", lambda b, t: None, log))
    assert cause in ("history_trimmed", "compaction")
    assert (turn, place) == (3, "messages[2]")


@pytest.mark.parametrize(
    "stub",
    [
        "[cleared]",
        "(output removed)",
        "Output is in /tmp/out-1.txt",
        "loaves 212, rolls 840 … [truncated 300 characters]",
        "",
    ],
)
@pytest.mark.parametrize("api", LOGS)
def test_an_old_result_makes_room(api: Api, stub: str) -> None:
    def change(body: Body) -> None:
        if api == "openai.chat":
            body["messages"][3]["content"] = stub
        elif api == "openai.responses":
            body["input"][3]["output"] = stub
        else:
            body["messages"][2]["content"][0]["content"] = [{"type": "text", "text": stub}] if stub else []

    places = {
        "openai.chat": "messages[3].content",
        "openai.responses": "input[3].output",
        "anthropic.messages": "messages[2].content[0].content",
    }
    ((cause, turn, place, recurs),) = said(run(api, since(3, change)))
    assert (cause, turn, recurs) == ("compaction", 3, False)
    assert place is not None
    assert place.startswith(places[api])


def test_a_result_that_was_corrected_is_no_compaction() -> None:
    diagnosis = run(
        "openai.chat", since(3, lambda b: b["messages"][3].update(content=RESULT.replace("212", "221")))
    )
    assert said(diagnosis) == [("message_edited", 3, "messages[3].content@8", False)]


def test_thinking_kept_on_the_newest_reply_only() -> None:
    thinking = {"type": "thinking", "thinking": "The figures are clear.", "signature": "EqQBCh"}
    kept = {"role": "assistant", "content": [thinking, *SAID["content"]]}
    log = [claude(), claude(USE, USED), claude({**USE, "content": USE["content"][1:]}, USED, kept, ASKED)]
    assert said(run("anthropic.messages", lambda b, t: None, log)) == [
        ("reasoning_removed", 2, "messages[1].content[0]", False)
    ]


def test_inline_thinking_that_is_cut_out() -> None:
    long = {"role": "assistant", "content": f"<think>\nFriday was busy.\n</think>\n\n{ANSWER}"}
    log = [chat(), chat(CALL, TOOL), chat(CALL, TOOL, long, NEXT), chat(CALL, TOOL, REPLY, NEXT, REPLY, LAST)]
    ((cause, turn, place, _),) = said(run("openai.chat", lambda b, t: None, log))
    assert (cause, turn, place) == ("reasoning_removed", 3, "messages[4].content@0")


@pytest.mark.parametrize("api", LOGS)
def test_line_ends_that_are_converted(api: Api) -> None:
    question = "First line.\nSecond line.\n" + QUESTION

    def ask(body: Body, text: str) -> None:
        item = body["input" if api == "openai.responses" else "messages"][1 if api == "openai.chat" else 0]
        if isinstance(item["content"], str):
            item["content"] = text
        else:
            item["content"][0]["text"] = text

    diagnosis = run(api, lambda b, t: ask(b, question if t < 2 else question.replace("\n", "\r\n")))
    places = {
        "openai.chat": "messages[1].content@11",
        "openai.responses": "input[0].content[0].text@11",
        "anthropic.messages": "messages[0].content[0].text@11",
    }
    assert said(diagnosis) == [("whitespace", 2, places[api], False)]
    assert "␍" in diagnosis.findings[0].now
    assert "⏎" in diagnosis.findings[0].was


def test_blocks_that_become_strings_in_chat() -> None:
    log = chat_log()
    for body in log:
        body["messages"][1]["content"] = [{"type": "text", "text": QUESTION}]
    diagnosis = run("openai.chat", since(2, lambda b: b["messages"][1].update(content=QUESTION)), log)
    assert said(diagnosis) == [("content_shape", 2, "messages[1].content", False)]


def test_a_string_that_becomes_one_block_is_suspected_and_proven_when_it_recurs() -> None:
    def once(body: Body) -> None:
        body["messages"][1]["content"] = [{"type": "text", "text": QUESTION}]

    diagnosis = run("openai.chat", since(2, once))
    assert said(diagnosis) == []
    assert [(f.cause, f.turn) for f in diagnosis.suspicions] == [("content_shape", 2)]

    def always(body: Body, turn: int) -> None:
        for message in body["messages"][1:-1]:
            if isinstance(message["content"], str):
                message["content"] = [{"type": "text", "text": message["content"]}]

    diagnosis = run("openai.chat", always)
    assert said(diagnosis) == [("content_shape", 1, "messages[1].content", True)]
    assert not diagnosis.suspicions


def test_an_image_that_follows_the_newest_message() -> None:
    picture = {"type": "image_url", "image_url": {"url": "https://img.example/oven.png?sig=abc"}}

    def change(body: Body, turn: int) -> None:
        users = [message for message in body["messages"] if message["role"] == "user"]
        for message in users:
            message["content"] = [{"type": "text", "text": message["content"]}]
        users[-1]["content"].append(copy.deepcopy(picture))

    ((cause, turn, place, _),) = said(run("openai.chat", change))
    assert (cause, turn, place) == ("image_changed", 2, "messages[1].content[1]")


def test_a_signed_link_that_is_made_anew() -> None:
    def change(body: Body, turn: int) -> None:
        part = {
            "type": "image_url",
            "image_url": {"url": f"https://img.example/oven.png?sig={turn * 7919 + 5}"},
        }
        body["messages"][1]["content"] = [{"type": "text", "text": QUESTION}, part]

    assert said(run("openai.chat", change)) == [
        ("image_changed", 1, "messages[1].content[1].image_url", True)
    ]


def test_a_picture_that_gives_way_to_a_placeholder() -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBOR"}}
    log = claude_log()
    for turn, body in enumerate(log):
        body["messages"][0]["content"].insert(
            0, picture if turn < 2 else {"type": "text", "text": "[image removed]"}
        )
    assert said(run("anthropic.messages", lambda b, t: None, log)) == [
        ("image_changed", 2, "messages[0].content[0]", False)
    ]


def test_a_developer_note_hoisted_into_the_instructions() -> None:
    note = "The oven is out of order until noon."
    diagnosis = run("openai.responses", since(2, lambda b: b.update(instructions=f"{SYSTEM}\n\n{note}")))
    assert said(diagnosis) == [("system_moved", 2, f"instructions@{len(SYSTEM)}", False)]


def test_a_system_message_in_the_log_is_collected_in_front() -> None:
    note = {"role": "system", "content": "The oven is out of order until noon."}
    log = [chat(), chat(CALL, TOOL, note), chat(CALL, TOOL, note, REPLY, NEXT)]
    last = chat(CALL, TOOL, REPLY, NEXT, REPLY, LAST)
    last["messages"].insert(1, note)
    assert said(run("openai.chat", lambda b, t: None, [*log, last])) == [
        ("system_moved", 3, "messages[1]", False)
    ]


def test_a_system_note_in_the_middle_is_only_inserted() -> None:
    note = {"role": "system", "content": "The oven is out of order until noon."}
    log = [*chat_log()[:3], chat(CALL, note, TOOL, REPLY, NEXT, REPLY, LAST)]
    assert said(run("openai.chat", lambda b, t: None, log)) == [("message_inserted", 3, "messages[3]", False)]


def test_a_reply_that_was_dropped_and_never_missed() -> None:
    """The client ignored a reply and went on: nothing that was sent is computed again."""
    log = [
        Exchange("openai.chat", chat(), {"choices": [{"message": REPLY}]}),
        Exchange("openai.chat", chat(NEXT), {"choices": [{"message": CALL}]}),
    ]
    assert said(diagnose_log(log)) == []


def test_a_reply_that_the_client_rewrote() -> None:
    log = [
        Exchange(
            "openai.chat", chat(), {"choices": [{"message": {**REPLY, "content": f"Answer: {ANSWER}"}}]}
        ),
        Exchange("openai.chat", chat(REPLY, NEXT), None),
    ]
    assert said(diagnose_log(log)) == [("message_edited", 1, "messages[2].content@0", False)]


@pytest.mark.parametrize(
    ("name", "early", "late", "place"),
    [
        ("tool_choice", "auto", {"type": "function", "function": {"name": "sales"}}, "params.tool_choice"),
        ("response_format", None, {"type": "json_object"}, "params.response_format"),
        (
            "chat_template_kwargs",
            {"enable_thinking": True, "x": 1},
            {"enable_thinking": False, "x": 1},
            "params.chat_template_kwargs.enable_thinking",
        ),
        ("service_tier", "flex", "default", "params.service_tier"),
        ("prompt_cache_key", "a", "b", "params.prompt_cache_key"),
    ],
)
def test_parameters_that_matter(name: str, early: Any, late: Any, place: str) -> None:
    diagnosis = run("openai.chat", lambda b, t: b.update({name: early if t < 2 else late}))
    assert said(diagnosis) == [("parameter_changed", 2, place, False)]


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.9},
        {"max_tokens": 77},
        {"stream": True, "stream_options": {"include_usage": True}},
        {"metadata": {"run": "7"}, "user": "u-7", "store": True},
        {"seed": 7, "stop": ["\n"], "logprobs": True, "top_p": 0.5},
        {"tool_choice": "auto"},
        {"parallel_tool_calls": True},
    ],
)
def test_parameters_that_dont_matter(change: Body) -> None:
    assert said(run("openai.chat", since(2, lambda b: b.update(change)))) == []


def test_fields_that_only_a_response_has() -> None:
    reply = {
        **REPLY,
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": None,
    }
    log = [
        Exchange(
            "openai.chat", chat(CALL, TOOL), {"choices": [{"index": 0, "message": reply, "logprobs": None}]}
        ),
        Exchange("openai.chat", chat(CALL, TOOL, REPLY, NEXT), None),
    ]
    assert said(diagnose_log(log)) == []
    back = Exchange("openai.chat", chat(CALL, TOOL, reply, NEXT), None)
    assert said(diagnose_log([log[0], back])) == []


def test_bedrock_style_markers_are_no_parts() -> None:
    point = {"cachePoint": {"type": "default"}}
    log = claude_log()
    for body in log:
        body["messages"][-1]["content"].append(point)
    assert said(run("anthropic.messages", lambda b, t: None, log)) == []


def test_two_requests_by_hand() -> None:
    """``diagnose`` takes plain bodies, and takes it as given that the second follows the first."""
    diagnosis = diagnose(chat(), chat(CALL, TOOL, system=SYSTEM.replace("short", "long")))
    (finding,) = diagnosis.findings
    assert (finding.cause, finding.turn) == ("message_edited", 1)
    assert finding.place == f"messages[0].content@{SYSTEM.index('short')}"
    assert diagnose(chat(), chat(CALL, TOOL)).clean


# -- what usage proves --------------------------------------------------------------------------------------------


def used(prompt: int, cached: int | None) -> Body:
    details = None if cached is None else {"cached_tokens": cached}
    return {"prompt_tokens": prompt, "completion_tokens": 20, "prompt_tokens_details": details}


def with_usage(*counts: tuple[int, int | None]) -> list[Exchange]:
    replies = (CALL, REPLY, REPLY, REPLY)
    return [
        Exchange(
            "openai.chat", body, {"choices": [{"message": reply}], "usage": used(*count)}, 1000.0 + 20 * turn
        )
        for turn, (body, reply, count) in enumerate(zip(chat_log(), replies, counts, strict=True))
    ]


def test_a_difference_that_the_server_did_not_mind() -> None:
    """New identifiers, yet everything was reused: this server doesn't put identifiers into the prompt."""
    log = with_usage((1500, 0), (2400, 1408), (2600, 2304), (2900, 2560))
    body = copy.deepcopy(dict(log[2].request))
    body["messages"][2]["tool_calls"][0]["id"] = body["messages"][3]["tool_call_id"] = "call_9"
    changed = Exchange("openai.chat", body, log[2].response, log[2].at)
    last = copy.deepcopy(dict(log[3].request))
    last["messages"][2]["tool_calls"][0]["id"] = last["messages"][3]["tool_call_id"] = "call_9"
    after = Exchange("openai.chat", last, log[3].response, log[3].at)
    assert said(diagnose_log([*log[:2], changed, after])) == []
    unknown = [Exchange("openai.chat", call.request, None, call.at) for call in (*log[:2], changed, after)]
    assert said(diagnose_log(unknown)) == [("id_regenerated", 2, "messages[2].tool_calls[0].id", False)]


def test_unknown_is_not_zero() -> None:
    assert said(diagnose_log(with_usage((1500, None), (2400, None), (2600, None), (2900, None)))) == []


def test_a_long_new_message_is_no_miss() -> None:
    assert said(diagnose_log(with_usage((1500, 0), (40_000, 1408), (40_200, 39_936), (40_500, 40_192)))) == []


def test_a_constant_low_read_is_not_healthy() -> None:
    """The same small read on every turn: judged by what each request allowed, not by the read before."""
    ((cause, turn, place, recurs),) = said(
        diagnose_log(with_usage((3000, 0), (4000, 1024), (5000, 1024), (6000, 1024)))
    )
    assert (cause, turn, place, recurs) == ("server_evicted", 1, None, True)


def test_claude_without_markers_is_no_eviction() -> None:
    replies = (USE, SAID, SAID, SAID)
    log = []
    for turn, (body, reply) in enumerate(zip(claude_log(), replies, strict=True)):
        text = json.dumps(body).replace(', "cache_control": {"type": "ephemeral"}', "")
        usage = {
            "input_tokens": 3000 + 500 * turn,
            "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": 0,
        }
        log.append(Exchange("anthropic.messages", json.loads(text), {**reply, "usage": usage}, 1000.0 + turn))
    assert said(diagnose_log(log)) == []


def test_a_retry_on_llama_server_is_no_drift() -> None:
    """The same prompt again: the last token is always computed, and the reply isn't in it."""
    body = {"prompt": "<|im_start|>user\n" + QUESTION * 20 + "<|im_end|>\n<|im_start|>assistant\n"}
    first = {"content": ANSWER, "timings": {"cache_n": 0, "prompt_n": 600, "predicted_n": 40}}
    again = {"content": ANSWER, "timings": {"cache_n": 599, "prompt_n": 1, "predicted_n": 40}}
    log = [Exchange("llama.completion", body, first, 1.0), Exchange("llama.completion", body, again, 2.0)]
    assert said(diagnose_log(log)) == []
