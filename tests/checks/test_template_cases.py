"""The template cases that people reported: verdict, first break and line; and the trail that leads there."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from agentctx.checks.battery import reasoning_then_user
from agentctx.checks.blame import Blame, find_blame
from agentctx.checks.growth import Side
from agentctx.checks.steps import Step, blame_of_step, broken_steps
from agentctx.checks.subject import NOON, Call, Subject
from agentctx.rendering.templates.template import Conversation
from agentctx.rendering.templates.trail import FollowedTemplate
from tests.rendering.corpus_templates import sources

NAMES = (
    "st1-reasoning-behind-last-question",
    "st2-clock-before-tools",
    "st3-effort-line-on-top",
    "st4-content-trimmed",
    "st5-tools-travel-with-question",
    "st6-newline-depends-on-loop-last",
    "st7-clean-all-reasoning-kept",
    "st8-clean-tools-sorted",
)


def steps_of(conversation: dict[str, Any]) -> list[Step]:
    steps = []
    for step in conversation["steps"]:
        order = step.get("tools_order")
        tools = [conversation["tools"][index] for index in order] if order else conversation["tools"]
        call = Call(
            conversation["messages"][: step["upto"]],
            tools,
            {**conversation["kwargs"], **(step.get("kwargs") or {})},
            datetime.fromisoformat(step["now"]),
        )
        steps.append(Step(call, step.get("generated") or ""))
    return steps


@pytest.mark.corpus
@pytest.mark.parametrize("name", NAMES)
def test_verdict_first_break_and_line(name: str, shared_dir: Path) -> None:
    folder = shared_dir / "cases" / "templates" / name
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    conversation = json.loads((folder / "conversation.json").read_text(encoding="utf-8"))
    source = (folder / "template.jinja").read_text(encoding="utf-8")
    subject = Subject(source, name=name)
    found = broken_steps(subject, steps_of(conversation))
    assert (not found) == expected["append_only"]
    if not found:
        return
    first = found[0]
    place = {"step": first.step, "offset": first.offset, "in": first.inside}
    assert place == expected["first_break"]
    blame = blame_of_step(subject, first)
    assert blame is not None
    assert blame.line == expected["line"]
    # And with the line repaired, nothing breaks.
    lines = source.split("\n")
    assert lines[blame.line - 1] == expected["line_text"]
    lines[blame.line - 1] = expected["repaired_line"]
    assert broken_steps(Subject("\n".join(lines), name=name), steps_of(conversation)) == []


def test_every_case_is_tried(shared_dir: Path) -> None:
    assert sorted(path.name for path in (shared_dir / "cases" / "templates").iterdir()) == sorted(NAMES)


def blame_between(source: str, before: Call, after: Call) -> Blame | None:
    subject = Subject(source, name="own")
    left = Side(before, True, subject.render(before, True))
    right = Side(after, True, subject.render(after, True))
    offset = next(
        (i for i, (a, b) in enumerate(zip(left.text, right.text, strict=False)) if a != b),
        min(len(left.text), len(right.text)),
    )
    return find_blame(subject, left, right, offset)


ONE = [{"role": "user", "content": "one"}]
TWO = [*ONE, {"role": "assistant", "content": "two"}, {"role": "user", "content": "three"}]


@pytest.mark.parametrize(
    ("source", "line", "construct"),
    [
        # A condition in a macro, whose text goes to a value first.
        (
            "{% macro show(m, last) %}\n{% if last %}\nLAST\n{% endif %}\n{{ m.content }}\n{% endmacro %}\n"
            "{% for m in messages %}\n{{ show(m, loop.last) }}\n{% endfor %}\n",
            2,
            "a condition",
        ),
        # What a namespace counted further up decides later.
        (
            "{% set ns = namespace(n=0) %}\n{% for m in messages %}\n{% set ns.n = ns.n + 1 %}\n{% endfor %}\n"
            "{% for m in messages %}\n{{ m.role }}\n{% if loop.index == ns.n %}\n*\n{% endif %}\n{% endfor %}\n",
            7,
            "a condition",
        ),
        # A number in the head.
        ("head {{ messages | length }}\n{% for m in messages %}\n{{ m.content }}\n{% endfor %}\n", 1, "an expression"),
        # The generation prompt is not what the stored reply begins with.
        (
            "{% for m in messages %}\n<{{ m.role }}>{{ m.content }}\n{% endfor %}\n"
            "{% if add_generation_prompt %}\n<assistant><think>\n{% endif %}\n",
            5,
            "text of the template",
        ),
        # A second system message is drawn to the front: the loop has other passes.
        (
            "{% for m in messages if m.role == 'assistant' %}\n!{{ m.content }}\n{% endfor %}\n"
            "{% for m in messages if m.role == 'user' %}\n?{{ m.content }}\n{% endfor %}\n",
            5,
            "text of the template",
        ),
    ],
    ids=["macro", "namespace", "count", "generation prompt", "drawn to the front"],
)  # fmt: skip
def test_the_line_to_blame(source: str, line: int, construct: str) -> None:
    blame = blame_between(source, Call(ONE), Call(TWO))
    assert blame is not None
    assert (blame.line, blame.construct) == (line, construct)


def test_what_a_condition_depends_on_is_named() -> None:
    source = (
        "{% set ns = namespace(n=0) %}\n{% for m in messages %}\n{% set ns.n = loop.index %}\n{% endfor %}\n"
        "{% for m in messages %}\n{{ m.role }}{{ '*' if loop.index == ns.n }}\n{% endfor %}\n"
    )
    blame = blame_between(source, Call(ONE), Call(TWO))
    assert blame is not None
    assert (blame.line, blame.was, blame.now, blame.confirmed) == (6, "true", "false", True)
    assert blame.depends_on == (3,)


@pytest.mark.corpus
def test_a_trail_changes_no_text(shared_dir: Path) -> None:
    """On every tenth template of the corpus, followed and not."""
    checked = 0
    for name, source in list(sources(shared_dir / "corpus" / "templates").items())[::10]:
        subject = Subject(source, name=name)
        call = Call(reasoning_then_user(subject), None)
        plain = subject.text(call, True)
        if plain is None:
            continue
        text, events = subject.follow(call, True)
        assert text == plain, name
        outputs = [e for e in events if subject.followed.sites[e.site].kind in ("output", "text")]
        written = "".join(e.value for e in outputs if not subject.followed.sites[e.site].buffered)
        assert written == plain, name
        checked += 1
    assert checked > 15


def test_a_decision_taken_the_other_way() -> None:
    template = FollowedTemplate("{% if a %}\nyes\n{% else %}\nno\n{% endif %}\n", name="own")
    text, events = template.follow(
        Conversation([]), add_generation_prompt=False, now=NOON, arguments={"a": True}
    )
    assert text == "yes\n"
    assert [template.sites[event.site].kind for event in events] == ["if", "text"]
    text, _ = template.follow(
        Conversation([]), add_generation_prompt=False, now=NOON, arguments={"a": True}, flip=0
    )
    assert text == "no\n"
