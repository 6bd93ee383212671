"""Requests out of the shared corpus: what an agent had sent before each of its recorded replies."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from agentctx.errors import AgentctxError
from agentctx.messages import MediaPart, Request
from agentctx.traces import load

_MOST_CHARACTERS = 30_000


@cache
def corpus_prefixes(shared: Path) -> tuple[Request, ...]:
    """Every prefix of every session that ends before a reply, has no pictures and isn't long, in an order that mixes them.

    A server takes an assistant message at the end for the beginning of its reply, so no prefix ends with one.
    """
    found = [request for path in sorted((shared / "corpus/traces").rglob("*")) for request in _prefixes(path)]
    random.Random(3).shuffle(found)
    return tuple(found)


def _prefixes(path: Path) -> Iterator[Request]:
    if not path.is_file() or path.suffix == ".tsv":
        return
    try:
        sessions = load(path)
    except AgentctxError:
        return
    for session in sessions:
        head = (session.system,) if session.system else ()
        size = 0
        for index, message in enumerate(session.messages):
            if not isinstance(message.content, str) and any(
                isinstance(p, MediaPart) for p in message.content
            ):
                break
            if index and message.role == "assistant" != session.messages[index - 1].role:
                yield Request(tools=session.tools, messages=(*head, *session.messages[:index]))
            size += len(message.text) + sum(len(call.arguments) for call in message.tool_calls)
            if size > _MOST_CHARACTERS:
                break
