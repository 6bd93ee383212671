"""Content blocks of a rendered request and the markers on them, as token places: what a provider with markers goes by."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agentctx.interchange.cache_control import newest_users
from agentctx.messages import Message, Request, TextPart
from agentctx.rendering.prompt import Prompt

_FIELD = "cache_control"

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


def own_marks(prompt: Prompt) -> Marks:
    """The markers that the request's own items carry, for a client that places none: on tools, texts, calls and results.

    Several texts of a message count as one block here, marked where any of them is.
    """
    lives = {(True, at, ""): _life(tool.extra_json) for at, tool in enumerate(prompt.request.tools)}
    for at, message in enumerate(prompt.request.messages):
        lives |= {(False, at, field): _life(extra) for field, extra in _extras(message)}
    ends: dict[tuple[bool, int, str], int] = {}
    for span in prompt.spans:
        if span.item is not None:
            tool = span.zone == "tools"
            ends[tool, span.item, "" if tool else span.field.partition(".")[0]] = span.end
    found = ((ends[key], life) for key, life in lives.items() if key in ends and life is not _NO_MARK)
    return tuple(sorted(found))


_NO_MARK = ""


def _extras(message: Message) -> Iterator[tuple[str, str | None]]:
    """The block and the unnamed fields of everything in a message that can carry a marker."""
    if message.role == "tool":
        yield "content", message.extra_json
    elif isinstance(message.content, tuple):
        extras = [part.extra_json for part in message.content if isinstance(part, TextPart)]
        yield "content", next((extra for extra in extras if _life(extra) is not _NO_MARK), None)
    for index, call in enumerate(message.tool_calls):
        yield f"tool_calls[{index}]", call.extra_json


def _life(extra_json: str | None) -> str | None:
    """The life that a marker among these fields asks for: ``None`` for the usual one, ``_NO_MARK`` where there is none."""
    if extra_json is None or _FIELD not in extra_json:
        return _NO_MARK
    marker = next(_markers_in(json.loads(extra_json)), None)
    if marker is None:
        return _NO_MARK
    return marker["ttl"] if isinstance(marker.get("ttl"), str) else None


def _markers_in(value: Any) -> Iterator[dict[str, Any]]:
    for key, inner in value.items() if isinstance(value, dict) else ():
        if key == _FIELD and isinstance(inner, dict) and "type" in inner:
            yield inner
        else:
            yield from _markers_in(inner)
    for inner in value if isinstance(value, list) else ():
        yield from _markers_in(inner)


def _marked_items(request: Request) -> list[tuple[bool, int]]:
    """(is a tool, index) of the items that carry a marker."""
    messages = request.messages
    wanted: list[tuple[bool, int]] = [(True, len(request.tools) - 1)] if request.tools else []
    wanted += [(False, 0)] if messages and messages[0].role == "system" else []
    # Results of calls are user messages to this API.
    users = [index for index, message in enumerate(messages) if message.role in ("user", "tool")]
    replies = [index for index, message in enumerate(messages) if message.role == "assistant"]
    return wanted + [(False, index) for index in newest_users(users, replies)]
