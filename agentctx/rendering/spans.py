"""From character runs of known origin to the spans of a prompt."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

import numpy as np

from agentctx.common_ends import common_start
from agentctx.messages import Request
from agentctx.rendering.prompt import Span, Zone
from agentctx.rendering.tokenizer import CharStarts

TEMPLATE = "template"
_CHAR_END = attrgetter("char_end")
Source = tuple[Literal["tool", "message"], int, str]
"""Kind of item, its index, its field."""
Run = tuple[int, int, Source]
"""Characters of known origin: first, end, source."""


@dataclass(slots=True)
class Mapped:
    """Spans that are already known. ``unchanged``: characters up to which text, tokens and their places are the same.

    ``tail``: place of the first span of the tail, or behind all spans. ``same_runs``: leading runs that are known to be the new ones.
    """

    request: Request
    runs: Sequence[Run]
    offset: int
    spans: tuple[Span, ...]
    unchanged: int
    tail: int
    same_runs: int = 0


def zone_of(request: Request, index: int) -> Zone:
    """The zone of a message's content."""
    messages = request.messages
    first = 1 if messages and messages[0].role == "system" else 0
    if index < first:
        return "system"
    return "pinned" if index < first + request.pinned else "log"


def map_spans(
    request: Request,
    runs: Sequence[Run],
    offset: int,
    text_length: int,
    starts: CharStarts,
    known: Mapped | None = None,
) -> tuple[tuple[Span, ...], int]:
    """Spans that cover the text, and the place of the first one of the tail, or behind all.

    ``runs`` count from ``offset``; a token that reaches over two spans belongs to the first. Runs that touch and have one source are one
    span; the text between runs is the template's.
    """
    kept: tuple[Span, ...] = ()
    made: list[Span] = []
    run = 0
    if known is not None and known.offset == offset and _same_layout(known.request, request):
        count, run = _kept_spans(known, runs, offset)
        # Only a log that got shorter can change what stood before the tail.
        first = min(known.tail, count) if len(request.messages) >= len(known.request.messages) else 0
        kept = known.spans[:first]
        made = rezoned(known.spans[first:count], known.request, request)
    last = made[-1] if made else kept[-1] if kept else None
    char, token = (last.char_end, last.end) if last else (0, 0)
    pieces = _pieces(runs, run, offset, char, text_length)
    ends = token + starts[token:].searchsorted(np.array([end for end, _ in pieces], dtype=np.int32))
    for (char_end, source), end in zip(pieces, ends.tolist(), strict=True):
        zone, item, name = _place(request, source)
        made.append(Span(token, end, char, char_end, zone, item, name))
        char, token = char_end, end
    tail = next((i for i, span in enumerate(made) if span.zone == "tail"), len(made))
    return kept + tuple(made), len(kept) + tail


def _pieces(
    runs: Sequence[Run], first: int, offset: int, char: int, text_length: int
) -> list[tuple[int, Source | None]]:
    """Ends and sources of all pieces from ``char`` on, without gaps."""
    pieces: list[tuple[int, Source | None]] = []
    for index in range(first, len(runs)):
        start, end, source = runs[index]
        if start + offset > char:
            pieces.append((start + offset, None))
        elif pieces and pieces[-1][1] == source:
            pieces.pop()
        pieces.append((end + offset, source))
        char = end + offset
    if char < text_length:
        pieces.append((text_length, None))
    return pieces


def _place(request: Request, source: Source | None) -> tuple[Zone, int | None, str]:
    if source is None:
        return "template", None, TEMPLATE
    kind, index, name = source
    if kind == "tool":
        return "tools", index, name
    newest = name == "note" and index == len(request.messages) - 1
    return "tail" if newest else zone_of(request, index), index, name


def _same_layout(old: Request, new: Request) -> bool:
    def system_first(request: Request) -> bool:
        return bool(request.messages) and request.messages[0].role == "system"

    return old.pinned == new.pinned and system_first(old) == system_first(new)


def _kept_spans(known: Mapped, runs: Sequence[Run], offset: int) -> tuple[int, int]:
    """Number of leading spans that stay where they are, and the first run behind them."""
    same = common_start(known.runs, runs, known.same_runs)
    limit = known.unchanged
    for side in (known.runs, runs):
        if same < len(side):
            limit = min(limit, side[same][0] + offset)
    count = bisect_right(known.spans, limit, key=_CHAR_END)
    # The last one may go on in the new text, and a piece of it may be a run of its own.
    count = max(0, count - 1)
    end = known.spans[count - 1].char_end if count else 0
    return count, bisect_right(runs, end - offset, hi=same, key=lambda run: run[1])


def rezoned(spans: Sequence[Span], old: Request, new: Request) -> list[Span]:
    """The spans with the zones of ``new``: notes are the tail only of the newest message."""
    was, now = len(old.messages) - 1, len(new.messages) - 1
    changed = list(spans)
    if was == now or not any(0 <= i < len(new.messages) and new.messages[i].notes for i in (was, now)):
        return changed
    for index, span in enumerate(spans):
        if span.field == "note" and span.item in (was, now):
            assert span.item is not None, "notes belong to messages"
            zone: Zone = "tail" if span.item == now else zone_of(new, span.item)
            changed[index] = Span(
                span.start, span.end, span.char_start, span.char_end, zone, span.item, span.field
            )
    return changed
