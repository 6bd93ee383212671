"""A conversation of one's own, call by call: is every prompt, with what the model wrote behind it, the beginning of the next?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentctx.checks.blame import Blame, find_blame
from agentctx.checks.growth import Side
from agentctx.checks.subject import Call, Subject
from agentctx.common_ends import common_start
from agentctx.rendering.templates.template import Rendering


@dataclass(frozen=True, slots=True)
class Step:
    """One model call, and the text that the model wrote behind the prompt; empty when it isn't known."""

    call: Call
    generated: str = ""


@dataclass(frozen=True, slots=True)
class StepBreak:
    """The prompt of call ``step`` (from 0) is no extension of the one before.

    ``offset``: character of the earlier prompt, or of the prompt with what was generated behind it, by ``inside``.
    """

    step: int
    offset: int
    inside: Literal["prompt", "generated"]
    before: Side
    after: Side


def break_of_step(step: int, before: Side, generated: str, after: Side) -> StepBreak | None:
    """Compare one prompt with the one before."""
    reference = before.text + generated
    if after.text.startswith(reference):
        return None
    offset = common_start(reference, after.text)
    inside: Literal["prompt", "generated"] = "prompt" if offset < len(before.text) else "generated"
    return StepBreak(step, offset, inside, before, after)


def rendered_steps(subject: Subject, steps: Sequence[Step]) -> list[Side]:
    """The prompt of each step. Raises ``RenderError`` when the template refuses a call."""
    sides = []
    previous: Rendering | None = None
    for step in steps:
        previous = subject.rendering(step.call, True, previous)
        sides.append(Side(step.call, True, previous.text))
    return sides


def breaks_between(steps: Sequence[Step], sides: Sequence[Side]) -> list[StepBreak]:
    """All breaks."""
    found = (
        break_of_step(index, sides[index - 1], steps[index - 1].generated, sides[index])
        for index in range(1, len(sides))
    )
    return [broken for broken in found if broken is not None]


def broken_steps(subject: Subject, steps: Sequence[Step]) -> list[StepBreak]:
    """Render all steps and compare. Raises ``RenderError`` when the template refuses a call."""
    return breaks_between(steps, rendered_steps(subject, steps))


def blame_of_step(subject: Subject, broken: StepBreak) -> Blame | None:
    """The place in the template that is to blame."""
    replies = [
        message["content"]
        for message in broken.after.call.messages
        if message.get("role") == "assistant" and isinstance(message.get("content"), str)
    ]
    return find_blame(subject, broken.before, broken.after, broken.offset, replies)
