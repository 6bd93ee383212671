"""What a template did where two prompts part, in the words that diagnosis has for clients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from agentctx.checks.growth import Break, Side
from agentctx.checks.material import Json
from agentctx.checks.subject import Subject
from agentctx.common_ends import common_start

_SAME_AGAIN = 24  # characters by which a text is known again elsewhere


def cause_of(subject: Subject, broken: Break) -> str:
    """A word of ``diagnosis.CAUSES``; ``template_made`` where none fits better."""
    before, after, offset = broken.before, broken.after, broken.offset
    if before.call.now != after.call.now and _reaches(subject, before, after, offset, now=True):
        return "volatile_text"
    if before.call.keywords != after.call.keywords and _reaches(subject, before, after, offset, now=False):
        return "parameter_changed"
    if _lost_reasoning(before, after, offset):
        return "reasoning_removed"
    left, right = before.text[offset:], after.text[offset:]
    if _only_blanks(left, right):
        return "whitespace"
    moved = left[:_SAME_AGAIN]
    if len(moved) == _SAME_AGAIN and moved in right and _is_head(before, offset):
        return "system_moved"
    if offset >= len(_without_generation(subject, before)):
        return "template_made"
    return "message_edited"


def _reaches(subject: Subject, before: Side, after: Side, offset: int, *, now: bool) -> bool:
    """Whether the texts agree further with the earlier call's clock, or its keywords."""
    call = (
        replace(after.call, now=before.call.now)
        if now
        else replace(after.call, keywords=before.call.keywords)
    )
    text = subject.text(call, after.generation)
    return text is not None and common_start(before.text, text) > offset


def _thoughts(messages: Sequence[Json]) -> Iterator[str]:
    for message in messages:
        for key in ("reasoning_content", "reasoning", "thinking", "thought"):
            if isinstance(message.get(key), str) and message[key]:
                yield message[key]
        content = message.get("content")
        if message.get("role") == "assistant" and isinstance(content, str) and "</think>" in content:
            yield content.split("</think>")[0].removeprefix("<think>").strip()


def _lost_reasoning(before: Side, after: Side, offset: int) -> bool:
    """Whether reasoning was printed behind the break before and is not printed now, or is due now and isn't."""
    for thought in _thoughts(after.call.messages):
        place = before.text.find(thought)
        if (
            place >= 0
            and place + len(thought) > offset
            and after.text.find(thought, offset - len(thought)) < 0
        ):
            return True
        opened = "think" in before.text[offset : offset + 40] and before.text.rstrip()[-1:] in (">", "]")
        if place < 0 and opened and thought not in after.text:
            return True
    return False


def _only_blanks(left: str, right: str) -> bool:
    """Whether the texts go on equally behind white space of which one side has more."""
    a, b = left.lstrip(), right.lstrip()
    blank = left[:1].isspace() or right[:1].isspace()
    return blank and a[:8] == b[:8]


def _is_head(before: Side, offset: int) -> bool:
    """Whether tools or the system message stand behind the break."""
    texts = [tool["function"]["name"] for tool in before.call.tools or () if "function" in tool]
    texts += [
        m["content"] for m in before.call.messages if m["role"] == "system" and isinstance(m["content"], str)
    ]
    return any(before.text.find(text, offset) >= 0 for text in texts if text)


def _without_generation(subject: Subject, side: Side) -> str:
    return (subject.text(side.call) or side.text) if side.generation else side.text
