"""Facts: what a template takes and prints, read off its forms and the battery's texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from agentctx.checks import material
from agentctx.checks.battery import Growth, Pair, chat, keeping_keywords, thinking_switches
from agentctx.checks.growth import CaseResult, Verdict
from agentctx.checks.material import ArgumentForm
from agentctx.checks.subject import Call, Handling, Subject
from agentctx.common_ends import common_start

Reasoning = Literal["kept", "dropped", "never", "raises"]
_LONG_HEAD = 60  # characters before the first user message that are more than tokens and a role


@dataclass(frozen=True, slots=True)
class Facts:
    """What the template does with each part of a conversation.

    ``content``: strings, parts, or neither comes out. ``default_system``: it prints a system prompt of its own; ``None`` where a call fails.
    ``generation_prompt``: what stands behind the last message when a reply is asked for; ``None`` where that fails.
    ``tools_at``: place of the tool definitions, empty where a call fails. ``arguments`` and ``arguments_taken``: the best form, and which forms
    come out; ``beside_calls``: what has to stand beside tool calls. ``reasoning_in_loop``, ``reasoning_later``: whether the first reasoning is
    still there at the end of its tool loop, and after a new user message. ``keeps``: keywords that may keep reasoning, with the verdict on the
    stored conversation. ``thinking``: its switches, and what holds without them. ``whitespace``: whether answers keep theirs.
    ``date``: when today's date is printed. ``indented``: a plain chat has runs of four blanks. ``relaxed``: it changed
    a list or a dict of the battery's conversations, which transformers forbids.
    """

    content: Literal["string", "parts", "neither"]
    system: Handling
    default_system: bool | None
    generation_prompt: str | None
    definitions: Handling
    tools_at: str
    calls: Handling
    results: Handling
    arguments: ArgumentForm | None
    arguments_taken: str
    beside_calls: str | None
    parallel: bool
    reasoning_in_loop: Reasoning
    reasoning_later: Reasoning
    keeps: tuple[tuple[str, bool, Verdict], ...]
    thinking: tuple[str, ...]
    thinking_default: str
    whitespace: Literal["verbatim", "trimmed"] | None
    unicode: str
    date: str
    indented: bool | None
    relaxed: bool


def read_facts(subject: Subject, results: Mapping[str, CaseResult]) -> Facts:
    """From the results of the whole battery."""
    forms = subject.forms
    source = subject.template.source
    least = forms.least_tools
    switches = tuple(thinking_switches(source))
    plain = subject.text(Call(chat(), least), True)
    return Facts(
        content="parts" if forms.parts else "string" if forms.plain else "neither",
        system=forms.system,
        default_system=_default_system(subject, results["f2_system_absent_vs_present"]),
        generation_prompt=_generation_prompt(subject),
        definitions=forms.definitions,
        tools_at=_tools_at(results["e1_tools_reordered"]),
        calls=forms.calls,
        results=forms.results,
        arguments=None if forms.calls == "raises" else forms.arguments,
        arguments_taken=_arguments_taken(subject, results["h_args_dict_vs_string"]),
        beside_calls=forms.beside_calls,
        parallel=results["b3_tools_parallel"].stored != "raises",
        reasoning_in_loop=_reasoning(results["c2_reasoning_tool_loop"]),
        reasoning_later=_reasoning(results["c3_reasoning_new_user"]),
        keeps=tuple(
            (name, value, results[f"c6_new_user_with_{name}={value}"].stored)
            for name, value in keeping_keywords(source)
        ),
        thinking=switches,
        thinking_default=_thinking_default(subject, switches),
        whitespace=_whitespace(subject, results["g_whitespace"]),
        unicode=_unicode(results["i_unicode_args"]),
        date=_date(results),
        indented=None if plain is None else re.search(r" {4,}", plain) is not None,
        relaxed=_relaxed(subject, results),
    )


def _default_system(subject: Subject, result: CaseResult) -> bool | None:
    if result.error:
        return None
    head = result.texts[0].split("USRQ1")[0]
    return len(head) > len(subject.template.variables["bos_token"]) + _LONG_HEAD


def _generation_prompt(subject: Subject) -> str | None:
    call = Call([material.user(1)], subject.forms.least_tools)
    without, asked = subject.text(call), subject.text(call, True)
    if without is None or asked is None:
        return None
    return asked[common_start(without, asked) :] if without != asked else ""


def _tools_at(result: CaseResult) -> str:
    if result.error:
        return ""
    text = result.texts[1]
    at = text.find("TDESCA")
    if at < 0:
        return "not rendered"
    if at < text.index("USRQ1"):
        return "before the first user message"
    if at < text.index("USRQ2"):
        return "between first and last user message"
    return "after the last user message"


def _arguments_taken(subject: Subject, result: CaseResult) -> str:
    if not result.error:
        return "both, same" if result.stored == "yes" else "both, differ"
    assert isinstance(result.case, Pair)
    sides = (("dict", result.case.left), ("string", result.case.right))
    taken = [name for name, call in sides if subject.text(call) is not None]
    return f"{taken[0]} only" if taken else "none"


def _reasoning(result: CaseResult) -> Reasoning:
    if result.error:
        return "raises"
    if not any("RZNQ" in text for text in result.texts):
        return "never"
    return "kept" if "RZNQ1" in result.texts[-1] else "dropped"


def _thinking_default(subject: Subject, switches: tuple[str, ...]) -> str:
    if not switches:
        return ""
    messages, tools = [material.user(1)], subject.forms.least_tools
    settings = (("on", dict.fromkeys(switches, True)), ("off", dict.fromkeys(switches, False)))
    given = subject.text(Call(messages, tools), True)
    for name, keywords in settings:
        text = subject.text(Call(messages, tools, keywords), True)
        if given is None or text is None:
            return ""
        if text == given:
            return name
    return "neither"


def _whitespace(subject: Subject, result: CaseResult) -> Literal["verbatim", "trimmed"] | None:
    assert isinstance(result.case, Growth)
    messages = result.case.messages[:2]
    text = subject.text(Call(messages, subject.forms.least_tools))
    if text is None:
        return None
    return "verbatim" if messages[1]["content"] in text else "trimmed"


def _unicode(result: CaseResult) -> str:
    if result.error:
        return ""
    text = result.texts[-1]
    if "東京 🚀" in text.split("RESQ1")[0]:
        found = "verbatim"
    else:
        found = "escaped" if "\\u6771" in text else "not rendered"
    return f"{found}, html-escaped" if "\\u003c" in text or "&lt;" in text else found


def _date(results: Mapping[str, CaseResult]) -> str:
    alone, system, tools = (
        results[name].stored == "no"
        for name in ("d1_date_no_system", "d2_date_with_system", "d3_date_system_tools")
    )
    if not (alone or system or tools):
        return "no"
    if system:
        return "always"
    return "only in the default system prompt" if alone else "only with tools"


def _relaxed(subject: Subject, results: Mapping[str, CaseResult]) -> bool:
    """Whether the stricter sandbox refuses a text that this one gives."""
    if not subject.relaxed:
        return False
    strict = Subject(
        subject.template.source, name=subject.name, variables=subject.template.variables, relaxed=False
    )
    cases = [result.case for result in results.values() if not result.error]
    return any(
        strict.text(Call(case.messages, case.tools, case.keywords)) is None
        for case in cases
        if isinstance(case, Growth)
    )
