"""The battery: growing agent conversations and pairs of calls that every template is tried with."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from agentctx.checks import material
from agentctx.checks.material import ArgumentForm, Json
from agentctx.checks.subject import NOON, Call, Subject, one_call

KEEPS: tuple[tuple[str, bool], ...] = (
    ("preserve_thinking", True),
    ("clear_thinking", False),
    ("drop_thinking", False),
    ("truncate_history_thinking", False),
    ("keep_thinking", True),
    ("keep_past_thinking", True),
    ("preserve_reasoning", True),
    ("preserve_all_thinking", True),
    ("keep_all_reasoning", True),
    ("interleaved_thinking", True),
    ("keep_reasoning", True),
)
"""Keywords by which templates let one keep the reasoning of earlier turns, with the value that does."""
SWITCHES = ("enable_thinking", "thinking")
_DAY_LATER, _MONTH_LATER = datetime(2025, 1, 16, 9, 30), datetime(2025, 2, 3, 9, 30)


@dataclass(frozen=True, slots=True)
class Growth:
    """A conversation that grows message by message: each prompt has to extend the one before.

    ``every_result``: the first of two results is already sent, not only both together.
    """

    name: str
    about: str
    messages: list[Json]
    tools: list[Json] | None = None
    keywords: Mapping[str, Any] = field(default_factory=dict)
    every_result: bool = False


@dataclass(frozen=True, slots=True)
class Pair:
    """Two calls that differ in one thing: where does it show? ``generation``: with the generation prompt."""

    name: str
    about: str
    left: Call
    right: Call
    generation: bool = True


Case = Growth | Pair


def battery(subject: Subject) -> list[Case]:
    """All cases that apply to the template."""
    return [
        *_chats(subject),
        *_tool_loops(subject),
        *_reasoning(subject),
        *_keywords(subject),
        *_dates(subject),
        *_tool_lists(subject),
        *_texts(subject),
    ]


def chat() -> list[Json]:
    return [message for n in (1, 2, 3) for message in (material.user(n), material.answer(n))]


def _chats(subject: Subject) -> list[Case]:
    tools = subject.forms.least_tools
    alone = [material.user(1)]
    return [
        Growth("a_chat", "chat", chat(), tools),
        Growth("f1_chat_with_system", "chat with a system message", [material.SYSTEM, *chat()], tools),
        Pair(
            "f2_system_absent_vs_present",
            "system message absent or present",
            Call(alone, tools),
            Call([material.SYSTEM, *alone], tools),
        ),
    ]


def _call(subject: Subject, number: int, name: str, arguments: Mapping[str, Any]) -> Json:
    return material.call(number, name, arguments, subject.forms.arguments)


def _tool_loops(subject: Subject) -> list[Case]:
    forms, beside = subject.forms, subject.forms.beside_calls
    read = _call(subject, 1, "read_file", {"path": "src/parse.py", "limit": 40})
    run = _call(subject, 2, "run_command", {"command": "pytest -q"})
    find = _call(subject, 3, "search", {"pattern": "parse\\("})
    single = [
        *forms.opening,
        material.user(1),
        material.answer(1, beside, calls=[read]),
        material.result(1, "read_file", material.RESULT_TEXT),
        material.answer(2, beside, calls=[run]),
        material.result(2, "run_command", "RESQ2 1 passed"),
        material.answer(3),
        material.user(2),
        material.answer(4, beside, calls=[find]),
        material.result(3, "search", "RESQ3 src/cli.py:12"),
        material.answer(5),
        material.user(3),
    ]
    spoken = [
        {**message, "content": "ASTQ8 Let me look."} if message.get("tool_calls") else message
        for message in single
    ]
    both = [
        _call(subject, 1, "read_file", {"path": "src/parse.py"}),
        _call(subject, 2, "search", {"pattern": "parse"}),
    ]
    parallel = [
        *forms.opening,
        material.user(1),
        material.answer(1, beside, calls=both),
        material.result(1, "read_file", material.RESULT_TEXT),
        material.result(2, "search", "RESQ2 src/cli.py:12"),
        material.answer(3),
        material.user(2),
        material.answer(4),
    ]
    tools = material.TOOLS
    return [
        Growth("b1_tools_sequential", "tool calls one after another", single, tools),
        Growth("b2_tools_with_text", "tool calls with text beside them", spoken, tools),
        Growth("b3_tools_parallel", "parallel calls", parallel, tools),
        Growth("b4_parallel_results_one_by_one", "results one by one", parallel, tools, every_result=True),
    ]


def reasoning_loop(subject: Subject) -> list[Json]:
    """A tool loop with reasoning before each step."""
    forms, beside, key = subject.forms, subject.forms.beside_calls, subject.forms.reasoning_key

    def step(number: int, content: str | None, calls: list[Json] | None) -> Json:
        return material.answer(
            number, content, calls=calls, reasoning=material.thought(number), reasoning_key=key
        )

    return [
        *forms.opening,
        material.user(1),
        step(1, beside, [_call(subject, 1, "read_file", {"path": "src/parse.py"})]),
        material.result(1, "read_file", material.RESULT_TEXT),
        step(2, beside, [_call(subject, 2, "run_command", {"command": "pytest -q"})]),
        material.result(2, "run_command", "RESQ2 1 passed"),
        step(3, None, None),
    ]


def _thinking_answer(subject: Subject, number: int) -> Json:
    return material.answer(
        number, reasoning=material.thought(number), reasoning_key=subject.forms.reasoning_key
    )


def reasoning_then_user(subject: Subject) -> list[Json]:
    """The tool loop, and two more questions."""
    return [
        *reasoning_loop(subject),
        material.user(2),
        _thinking_answer(subject, 4),
        material.user(3),
    ]


def _inline(subject: Subject, messages: list[Json]) -> list[Json]:
    """The reasoning inside the content, as a model without a reasoning parser gives it."""
    key = subject.forms.reasoning_key
    made = []
    for message in messages:
        if message["role"] == "assistant" and key in message:
            rest = {name: value for name, value in message.items() if name != key}
            message = {**rest, "content": f"<think>\n{message[key]}\n</think>\n\n{message['content'] or ''}"}
        made.append(message)
    return made


def _reasoning(subject: Subject) -> list[Case]:
    tools, least = material.TOOLS, subject.forms.least_tools
    talk = [m for n in (1, 2, 3) for m in (material.user(n), _thinking_answer(subject, n))]
    loop, later = reasoning_loop(subject), reasoning_then_user(subject)
    return [
        Growth("c1_reasoning_chat", "chat with reasoning", talk, least),
        Growth("c2_reasoning_tool_loop", "reasoning in a tool loop", loop, tools),
        Growth(
            "c3_reasoning_new_user", "reasoning in a tool loop, then a new user message", later, tools
        ),
        Growth(
            "c4_inline_think_new_user", "inline think in a tool loop, then a new user message",
            _inline(subject, later), tools,
        ),
        Growth("c5_inline_think_chat", "chat with inline think", _inline(subject, talk), least),
    ]  # fmt: skip


def keeping_keywords(source: str) -> list[tuple[str, bool]]:
    """Keywords of the template that may keep earlier reasoning."""
    return [(name, value) for name, value in KEEPS if re.search(rf"\b{name}\b", source)]


def thinking_switches(source: str) -> list[str]:
    """Keywords of the template that turn thinking on and off."""
    return [name for name in SWITCHES if re.search(rf"(?<![.'\"\w]){name}\b(?!['\"(=:])", source)]


def _keywords(subject: Subject) -> list[Case]:
    source, tools = subject.template.source, material.TOOLS
    later = reasoning_then_user(subject)
    cases: list[Case] = [
        Growth(
            f"c6_new_user_with_{name}={value}",
            f"reasoning, then a new user message, with {name}={value}",
            later,
            tools,
            {name: value},
        )
        for name, value in keeping_keywords(source)
    ]
    switches = thinking_switches(source)
    if switches:
        on, off = dict.fromkeys(switches, True), dict.fromkeys(switches, False)
        cases += [
            Growth(
                "c7_new_user_thinking_on",
                "reasoning, then a new user message, thinking on",
                later,
                tools,
                on,
            ),
            Growth(
                "c8_tool_loop_thinking_on",
                "reasoning in a tool loop, thinking on",
                reasoning_loop(subject),
                tools,
                on,
            ),
            Growth("c9_chat_thinking_off", "chat, thinking off", chat(), subject.forms.least_tools, off),
        ]
    return cases


def _dates(subject: Subject) -> list[Case]:
    forms, alone = subject.forms, [material.user(1)]
    settings: tuple[tuple[str, str, list[Json], list[Json] | None], ...] = (
        ("d1_date_no_system", "another day", alone, forms.least_tools),
        ("d2_date_with_system", "another day, with a system message", [*forms.opening, *alone], forms.least_tools),
        ("d3_date_system_tools", "another day, with tools", [*forms.opening, *alone], material.TOOLS),
    )  # fmt: skip
    cases: list[Case] = []
    for name, about, messages, tools in settings:
        before = Call(messages, tools, now=NOON)
        later = replace(before, now=_DAY_LATER)
        month = replace(before, now=_MONTH_LATER)
        same = subject.text(before, True) == subject.text(later, True)
        cases.append(Pair(name, about, before, month if same else later))
    return cases


def _tool_lists(subject: Subject) -> list[Case]:
    messages = [*subject.forms.opening, material.user(1), material.answer(1), material.user(2)]
    first, second, third = material.TOOLS
    given = Call(messages, material.TOOLS)
    return [
        Pair("e1_tools_reordered", "tools in another order", given, Call(messages, [third, first, second])),
        Pair("e2_tool_added", "a tool added", given, Call(messages, [*material.TOOLS, material.ADDED_TOOL])),
        Pair("e3_tools_absent_vs_present", "tools absent or present", Call(messages), given),
    ]


def _texts(subject: Subject) -> list[Case]:
    forms = subject.forms
    spaces = [
        material.user(1),
        material.answer(1, "\n  ASTQ1 indented answer \n\n"),
        material.user(2),
        material.answer(2, "ASTQ2 tail spaces   "),
        material.user(3),
    ]
    signs = {"pattern": "naïve café 東京 🚀 <a href=\"x\">&'y'</a>"}
    unicode = [
        *forms.opening,
        material.user(1),
        material.answer(1, forms.beside_calls, calls=[_call(subject, 1, "search", signs)]),
        material.result(1, "search", "RESQ1 naïve 東京 🚀"),
        material.answer(2),
        material.user(2),
    ]
    return [
        Growth("g_whitespace", "answers with white space around them", spaces, forms.least_tools),
        Pair(
            "h_args_dict_vs_string",
            "arguments as an object or as a string",
            Call(_short_call(subject, "mapping"), material.TOOLS),
            Call(_short_call(subject, "raw"), material.TOOLS),
            generation=False,
        ),
        Growth("i_unicode_args", "arguments beyond ASCII", unicode, material.TOOLS),
    ]


def _short_call(subject: Subject, form: ArgumentForm) -> list[Json]:
    messages = one_call(subject.forms.opening, form, subject.forms.beside_calls)
    return [
        {**message, "content": "RESQ1 def parse(lines)"} if message["role"] == "tool" else message
        for message in messages
    ]
