"""Content blocks of a rendered request and the markers on them, as token places: what a provider with markers goes by."""

from __future__ import annotations

from agentctx.interchange.cache_control import newest_users
from agentctx.messages import Request
from agentctx.rendering.prompt import Prompt

Marks = tuple[tuple[int, str | None], ...]
"""Token ends of the marked blocks, each with the life that its marker asks for."""


def block_ends(prompt: Prompt) -> tuple[int, ...]:
    """Token ends of the content blocks: each tool, the system text, each text, call, result and note of a message."""
    ends: list[int] = []
    last: tuple[str, int | None, str] | None = None
    for span in prompt.spans:
        if span.item is None:
            continue
        # A tool is one block, and so is a call: its name and arguments.
        field = "" if span.zone == "tools" else span.field.partition(".")[0]
        block = ("tools" if span.zone == "tools" else "messages", span.item, field)
        if block == last:
            ends[-1] = span.end
        else:
            ends.append(span.end)
        last = block
    return tuple(ends)


def marks_by_rule(prompt: Prompt, life: str | None = None) -> Marks:
    """The markers that ``interchange.cache_control.with_markers`` places: last tool, system, the newest user message and the
    one that was newest in the request before.
    """
    wanted = _marked_items(prompt.request)
    ends: dict[tuple[bool, int], int] = {}
    for span in prompt.spans:
        if span.item is not None:
            ends[span.zone == "tools", span.item] = span.end
    places = sorted({ends[key] for key in wanted if key in ends})
    return tuple((end, life) for end in places)


def _marked_items(request: Request) -> list[tuple[bool, int]]:
    """(is a tool, index) of the items that carry a marker."""
    messages = request.messages
    wanted: list[tuple[bool, int]] = [(True, len(request.tools) - 1)] if request.tools else []
    wanted += [(False, 0)] if messages and messages[0].role == "system" else []
    # Results of calls are user messages to this API.
    users = [index for index, message in enumerate(messages) if message.role in ("user", "tool")]
    replies = [index for index, message in enumerate(messages) if message.role == "assistant"]
    return wanted + [(False, index) for index in newest_users(users, replies)]
