"""The same text as ``transformers.apply_chat_template``: on every template it takes, and feature by feature.

``render_jinja_template`` is the function behind ``apply_chat_template``; it needs no tokenizer. It copies a message's reasoning under
two names before the template sees it (``reasoning_content`` and ``thinking``), so both sides get messages that hold both.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from agentctx.checks import material
from agentctx.checks.battery import Growth, battery
from agentctx.checks.growth import states
from agentctx.checks.subject import NOON, Call, Subject
from agentctx.errors import RenderError
from agentctx.messages import Message, Request, TextPart, Tool, ToolCall
from agentctx.rendering.templates import ChatTemplate
from agentctx.rendering.templates.conversation import Converter
from agentctx.rendering.templates.profile import read_profile
from tests.rendering.corpus_templates import processes, subjects

utils = pytest.importorskip("transformers.utils.chat_template_utils")


class FixedClock(datetime):
    """``datetime`` at one moment."""

    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
        return NOON


def theirs(source: str, call: Call, generation: bool, variables: Mapping[str, Any]) -> str | None:
    """What transformers renders; ``None`` where it raises."""
    given = {**variables, **call.keywords}
    tools = list(call.tools) if call.tools is not None else None
    try:
        texts, _ = utils.render_jinja_template(
            [list(call.messages)], tools, chat_template=source, add_generation_prompt=generation, **given
        )
    except Exception:  # whatever a template may raise
        return None
    return str(texts[0])


def aliased(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As transformers hands messages to a template."""
    made: list[dict[str, Any]] = utils._alias_reasoning_fields(messages)
    return made


@dataclass
class Comparison:
    """What a template gave: how many texts were equal, how many calls both refused, and where they differ."""

    name: str
    relaxed: bool
    equal: int = 0
    refused: int = 0
    different: list[str] = field(default_factory=list)


def calls_of(subject: Subject) -> list[tuple[str, Call]]:
    """The battery's conversations, half grown and whole, and both sides of its pairs."""
    calls: list[tuple[str, Call]] = []
    for case in battery(subject):
        if isinstance(case, Growth):
            ends = states(case.messages, case.every_result)
            calls += [
                (case.name, Call(case.messages[:end], case.tools, case.keywords))
                for end in (ends[len(ends) // 2], ends[-1])
            ]
        else:
            calls += [(case.name, case.left), (case.name, case.right)]
    parts = [
        material.in_parts(message) for message in (material.user(1), material.answer(1), material.user(2))
    ]
    picture = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is this?"}]}
    developer = {"role": "developer", "content": "Be brief."}
    return [
        *calls,
        ("parts", Call(parts, subject.forms.least_tools)),
        ("picture", Call([picture])),
        ("developer", Call([developer, material.user(1)])),
        ("nothing", Call([])),
        ("unknown role", Call([{"role": "critic", "content": "No."}])),
    ]  # fmt: skip


def compare(job: tuple[str, str, dict[str, str]]) -> Comparison:
    name, source, tokens = job
    utils.datetime = FixedClock
    subject = Subject(source, name=name, variables=tokens)
    variables = subject.template.variables
    done = Comparison(name, subject.relaxed)
    converted = [(case, call) for case, call in converted_calls(subject) if not subject.relaxed]
    for case, call in [*calls_of(subject), *converted]:
        messages = [dict(message) for message in call.messages]
        if subject.forms.parts and case not in ("parts", "converted"):
            messages = [material.in_parts(message) for message in messages]
        call = Call(aliased(messages), call.tools, call.keywords)
        for generation in (False, True):
            try:
                ours: str | None = subject.template.render_messages(
                    call.messages, call.tools, add_generation_prompt=generation, now=NOON, **call.keywords
                )
            except RenderError:
                ours = None
            their = theirs(source, call, generation, variables)
            if ours != their:
                done.different.append(f"{case}, generation={generation}: {their!r} expected, {ours!r} found")
            elif ours is None:
                done.refused += 1
            else:
                done.equal += 1
    return done


def agent_request(arguments: str) -> Request:
    """A conversation with everything a message can hold."""
    calls = (
        ToolCall(id="callid001", name="search", arguments=arguments),
        ToolCall(id="callid002", name="search", arguments='{"b":[1,2.5,null,true],"a":{"ü":"\\u00fc"}}'),
    )
    tool = Tool(
        name="search", description="Find a pattern.", parameters_json='{"type":"object","properties":{}}'
    )
    return Request(
        tools=(tool,),
        messages=(
            Message(role="system", content="You are an agent."),
            Message(role="user", content="Find it.", notes=("Time: 10:05", "cwd: /src")),
            Message(role="assistant", content="", reasoning="Search first.", tool_calls=calls),
            Message(role="tool", tool_call_id="callid001", name="search", content="src/a.py:1"),
            Message(role="tool", tool_call_id="callid002", name="search", content="nothing"),
            Message(role="assistant", content="  Found.\n"),
            Message(role="user", content=(TextPart(text="And"), TextPart(text=" now?"))),
        ),
    )


def converted_calls(subject: Subject) -> list[tuple[str, Call]]:
    """Requests as the renderer converts them, with arguments that are an object and a string that is none."""
    converter = Converter(read_profile(subject.template))
    made = []
    for arguments in ('{"pattern":"a","limit":5}', "not json"):
        conversation = converter.prepare(agent_request(arguments)).conversation
        made.append(("converted", Call(conversation.messages, conversation.tools)))
    return made


@pytest.mark.corpus
@pytest.mark.slow
def test_every_template_gives_the_same_text(shared_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = shared_dir / "corpus" / "templates"
    with processes() as pool:
        done = list(pool.map(compare, subjects(folder), chunksize=8))
    equal, refused = sum(each.equal for each in done), sum(each.refused for each in done)
    wrong = {each.name: each.different for each in done if each.different and not each.relaxed}
    # Templates that change lists are forbidden in transformers and allowed in llama.cpp. The dialect for them only takes more: where
    # transformers gives a text, ours is the same.
    more = {each.name: each.different for each in done if each.different and each.relaxed}
    with capsys.disabled():
        extra = ", ".join(f"{len(found)} calls of {name} taken by ours only" for name, found in more.items())
        print(
            f"\n{len(done)} templates: {equal} texts equal, {refused} refused by both, "
            f"{sum(map(len, wrong.values()))} different; {extra}"
        )
    assert equal > 25_000
    assert wrong == {}
    assert sorted(more) == ["Kimi-K2-Instruct", "Kimi-K2-Thinking"]
    assert all("None expected" in each for found in more.values() for each in found)


FEATURES = (
    "{% generation %}a{% endgeneration %}b",
    "{% generation %}\n  {%- set x = 1 %}\n{{ x }}\n{% endgeneration %}\n{{ x is defined }}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ loop.index }}{% endgeneration %}{% endif %}{% endfor %}",
    "{{ strftime_now('%d %B %Y %H:%M') }}",
    "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.content }}{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}/{{ loop.length }}{{ m.content }}{% else %}none{% endfor %}",
    "{% for a, b in [(1, 2), (3, 4)] %}{{ a }}{{ b }}{{ loop.cycle('x', 'y') }}{% endfor %}",
    "{% for x in [1, [2, [3]]] recursive %}{% if x is iterable %}{{ loop(x) }}{% else %}{{ x }}{{ loop.depth }}{% endif %}{% endfor %}",
    "{% for m in messages %}{{ loop.previtem.role if loop.previtem else '' }}{{ loop.nextitem.role if loop.nextitem else '' }}{{ loop.changed(m.role) }}{% endfor %}",
    "{{ messages | tojson }}",
    "{{ tools | tojson(indent=2) }}",
    "{{ tools | tojson(indent=4, sort_keys=True) }}",
    "{{ tools | tojson(ensure_ascii=True, separators=(',', ':')) }}",
    "{{ {'ü': '<a href=\"&\">\\u2028', 'n': none, 't': true, 'f': 1.0, 'i': [1, 2]} | tojson }}",
    "{{ 'ü' | tojson(ensure_ascii=True) }}{{ 5 | tojson }}{{ none | tojson }}",
    "{{ {'a': 1}.items() | list }}{% for k, v in {'a': 1, 'b': 2} | items %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}{{ v }}{% endfor %}",
    "{% set ns = namespace(n=0, s='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% set ns.s = ns.s ~ m.role[0] %}{% endfor %}{{ ns.n }}{{ ns.s }}",
    "{% set ns = namespace(_hidden=1) %}x",
    "{% set ns = namespace() %}{% set ns._hidden = 1 %}x",
    "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }}{{ m(1, 3, 4, c=5) }}",
    "{% macro outer() %}<{{ caller() }}>{% endmacro %}{% call outer() %}in{% endcall %}",
    "{% filter upper %}{{ messages[0].content }}{% endfilter %}",
    "{% set text %}a{{ messages[0].role }}\n{% endset %}[{{ text }}]",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}",
    "{% raw %}{{ not }}{% endraw %}{# gone #}\n  {% if true %}\nx\n  {% endif %}\ny",
    "  {%- if true -%}  a  {%- endif +%}  b",
    "{{ messages[0]['role'] }}{{ messages[-1].content[:3] }}{{ messages[1:] | length }}{{ messages[::-1][0].role }}",
    "{{ messages[0].missing }}{{ messages[0].missing is defined }}{{ messages[0].get('missing', 'd') }}",
    "{{ messages[0].missing.more }}",
    "{{ nothing }}{{ nothing | default('d') }}{{ none | default('d', true) }}{{ nothing is undefined }}",
    "{{ nothing + 'a' }}",
    "{{ 'a' + 1 }}",
    "{{ 'a' ~ 1 ~ none ~ true ~ 1.5 ~ [1, 'b'] }}",
    "{{ 7 // 2 }}{{ 7 % 3 }}{{ 2 ** 10 }}{{ 7 / 2 }}{{ -3 | abs }}{{ 3.7 | int }}{{ '12' | int + 1 }}{{ 2.345 | round(1) }}",
    "{{ 'a %s b %d' % ('x', 3) }}{{ 'a %s' | format('y') }}{{ '{} {a}'.format(1, a=2) }}{{ '{:>5}|'.format('x') }}",
    "{{ ' a b '.strip() }}|{{ ' a '.lstrip() }}|{{ 'a\\n'.rstrip('\\n') }}|{{ 'a,b'.split(',') }}|{{ 'a b c'.rsplit(' ', 1) }}",
    "{{ 'a</think>b'.split('</think>')[-1] }}{{ 'aXb'.partition('X') }}{{ 'abc'.startswith('ab') }}{{ 'abc'.endswith(('c', 'd')) }}",
    "{{ 'abc'.replace('b', 'x') }}{{ 'abc' | replace('b', 'y') }}{{ 'aAb'.upper() }}{{ 'AB' | lower }}{{ 'ab cd' | title }}{{ 'ab' | capitalize }}",
    "{{ 'abc'.find('c') }}{{ 'abc'.index('b') }}{{ 'abab'.count('ab') }}{{ 'a\\nb'.splitlines() }}{{ 'x'.join(['a', 'b']) }}{{ 'a'.isdigit() }}",
    "{{ 'a' | center(5) }}|{{ 'a'.ljust(3) }}|{{ '7'.zfill(3) }}|{{ 'a b c' | truncate(3, true, '') }}|{{ 'a\\nb' | indent(2) }}|{{ 'a\\nb' | indent(2, true) }}",
    "{{ [3, 1, 2] | sort }}{{ [1, 2] | sum }}{{ [1, 1] | unique | list }}{{ [1, 2] | reverse | list }}{{ [1, 2] | max }}{{ [1, 2] | first }}{{ [1, 2] | last }}",
    "{{ messages | map(attribute='role') | join(', ') }}{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ messages | rejectattr('role', 'equalto', 'user') | map(attribute='content') | list }}",
    "{{ [1, 2, 3] | select('odd') | list }}{{ ['a', ''] | reject('equalto', '') | list }}{{ [1, 2, 3, 4] | batch(2) | list }}{{ [1, 2, 3] | slice(2) | list }}",
    "{{ messages | groupby('role') | map('first') | list }}{{ ['b', 'A'] | sort(case_sensitive=true) }}{{ messages | sort(attribute='role') | map(attribute='role') | join }}",
    "{{ 'a<b' | escape }}{{ 'a<b' | e ~ 'c<d' }}{{ ('a<b' | safe) ~ '<' }}{{ '<b>x</b> y' | striptags }}{{ 'a b' | urlencode }}{{ 'a b' | wordcount }}",
    "{{ messages[0] is mapping }}{{ 'a' is string }}{{ 1 is number }}{{ [] is sequence }}{{ none is none }}{{ 1 is integer }}{{ 1.0 is float }}{{ true is boolean }}{{ 3 is divisibleby 3 }}{{ 'a' in 'abc' }}{{ 'x' is in ['x'] }}",
    "{{ 1 is odd }}{{ 2 is even }}{{ 'A' is upper }}{{ 1 is lt 2 }}{{ 'a' is sameas 'a' }}{{ 'lower' is filter }}{{ 'nope' is test }}",
    "{{ range(3) | list }}{{ range(1, 10, 3) | list }}{{ dict(a=1) }}{{ dict({'b': 2}, c=3).c }}",
    "{{ joiner(', ') is callable }}{% set j = joiner(', ') %}{% for m in messages %}{{ j() }}{{ m.role }}{% endfor %}{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}",
    "{{ raise_exception('no') }}",
    "{{ messages | string | length }}{{ messages | length }}{{ tools | length }}{{ documents is none }}{{ add_generation_prompt }}",
    "{{ (1, 2) }}{{ [1, 'a', none, true, 1.5] }}{{ {'a': [1]} }}{{ 'a' if false }}{{ 'a' if false else 'b' }}",
    "{{ messages | attr('append') is defined }}{{ 'x' | attr('upper') is defined }}",
     "{{ messages.append(1) }}", "{{ messages[0].update({'a': 1}) }}", "{{ ().__class__.__mro__ }}",

    "{% with a = 1 %}{{ a }}{% endwith %}{{ a is defined }}", "{% block b %}in{{ messages[0].role }}{% endblock %}",
    "{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}", "{% autoescape true %}{{ '<' }}{% endautoescape %}",
    "{{ 1 < 2 < 3 }}{{ not true }}{{ true and none }}{{ '' or 'b' }}{{ 1 == 1.0 }}{{ 'a' != 'b' }}{{ 'b' > 'a' }}",
    "{{ messages[9] is defined }}{{ messages[9] }}{{ messages['x'] is defined }}", "{{ messages[9].role }}", "{{ 'a'[5] is defined }}",
    "{{ 5 | filesizeformat }}{{ 'x' | list }}{{ none | list }}", "{{ [[1, 2], [3]] | sum(start=[]) }}", "{{ 'é東🚀' | length }}{{ 'é東🚀'[1] }}{{ 'é' | upper }}",
    "{{ bos_token }}{{ eos_token }}{{ custom }}{{ enable_thinking is defined }}", "{{ 'a' * 3 }}{{ [1] * 2 }}{{ [1] + [2] }}{{ (1,) + (2,) }}",
    "{%- set loop_messages = messages[1:] if messages[0]['role'] == 'system' else messages -%}{{ loop_messages | length }}",
    "{% for m in messages | reverse %}{{ m.role }}{{ loop.revindex }}{{ loop.revindex0 }}{% endfor %}", "{{ self }}", "{{ self.b() }}{% block b %}x{% endblock %}",
)  # fmt: skip


@pytest.mark.parametrize("source", FEATURES, ids=lambda source: source[:60])
@pytest.mark.parametrize("generation", [False, True])
def test_every_feature_gives_the_same_text(
    source: str, generation: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(utils, "datetime", FixedClock)
    messages = [material.SYSTEM, material.user(1), material.answer(1), material.user(2)]
    variables = {"bos_token": "<s>", "eos_token": "</s>", "custom": ["é", {"a": 1}]}
    their = theirs(source, Call(messages, material.TOOLS), generation, variables)
    try:
        template = ChatTemplate(source, variables=variables)
        ours: str | None = template.render_messages(
            messages, material.TOOLS, add_generation_prompt=generation, now=NOON
        )
    except RenderError:
        ours = None
    assert ours == their


def test_left_out_filters_are_refused_by_name() -> None:
    """What no prompt needs and what is random or unbounded: transformers has it, we say so."""
    for name in ("pprint", "random", "urlize", "wordwrap", "xmlattr"):
        with pytest.raises(RenderError, match=name):
            ChatTemplate("{{ 'a' | " + name + " }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{{ messages | map('attr', '__class__') | list }}",
        "{{ raise_exception.__globals__ }}",
        "{{ 'a'.upper }}",
        "{{ messages | map(attribute='role') }}",
    ],
)
def test_internals_are_refused_where_transformers_prints_nothing_or_an_address(source: str) -> None:
    """No prompt needs them: the text is empty there, or differs in every process."""
    messages = [material.user(1)]
    assert theirs(source, Call(messages), False, {}) is not None
    with pytest.raises(RenderError, match="forbidden"):
        ChatTemplate(source).render_messages(messages, now=NOON)
