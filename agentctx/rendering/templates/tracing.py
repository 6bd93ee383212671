"""Provenance of text inside a template: which characters came from which field of which message.

A template receives its strings as ``Traced``: a ``str`` that remembers its origin. The sandbox sees every operation that makes a
string from others (``+``, ``~``, filters, methods, slices, output), so the origin is carried along exactly where the operation keeps
the characters, and found again by search where it changes their surroundings (JSON, ``join``, ``format``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from agentctx.rendering.spans import Run, Source


class Traced(str):
    """Text with runs of known origin, in order and disjoint."""

    __slots__ = ("runs",)
    runs: tuple[Run, ...]

    def __new__(cls, text: str, runs: tuple[Run, ...]) -> Traced:
        self = str.__new__(cls, text)
        self.runs = runs
        return self

    def __str__(self) -> str:  # str(x) in compiled templates must not lose the origin
        return self


def whole(text: str, source: Source) -> str:
    """Text that came from one source as it stands."""
    return Traced(text, ((0, len(text), source),)) if text else text


def with_runs(text: str, runs: Iterable[Run]) -> str:
    kept = tuple(runs)
    return Traced(text, kept) if kept else text


def runs_of(value: object) -> tuple[Run, ...]:
    return value.runs if type(value) is Traced else ()


def joined(parts: Sequence[str]) -> str:
    """``"".join`` that keeps origins."""
    text = "".join(parts)
    runs: list[Run] = []
    at = 0
    for part in parts:
        if type(part) is Traced:
            runs.extend((at + start, at + end, source) for start, end, source in part.runs)
        at += len(part)
    return Traced(text, tuple(runs)) if runs else text


def added(left: str, right: str) -> str:
    """``left + right`` that keeps origins."""
    text = left + right
    if type(right) is not Traced:
        return Traced(text, left.runs) if type(left) is Traced else text
    at = len(left)
    moved = tuple([(at + start, at + end, source) for start, end, source in right.runs])
    return Traced(text, left.runs + moved if type(left) is Traced else moved)


def cut(value: Traced, start: int, end: int) -> str:
    """``value[start:end]`` with its origins; 0 <= start <= end <= len(value)."""
    text = str.__getitem__(value, slice(start, end))
    return with_runs(
        text,
        (
            (max(a, start) - start, min(b, end) - start, source)
            for a, b, source in value.runs
            if a < end and b > start
        ),
    )


def located(value: Traced, pieces: Iterable[str]) -> list[str]:
    """Substrings of ``value`` that stand in it in this order, with their origins."""
    found: list[str] = []
    at = 0
    for piece in pieces:
        start = value.find(piece, at)
        found.append(cut(value, start, start + len(piece)) if start >= 0 else piece)
        at = start + len(piece) if start >= 0 else at
    return found


def changed(value: Traced, text: str) -> str:
    """``text``, made from ``value`` by changing its characters."""
    runs = value.runs
    if len(runs) == 1 and runs[0][:2] == (0, len(value)):
        return whole(text, runs[0][2])
    return searched(text, (value,))


def searched(text: str, inputs: Iterable[str]) -> str:
    """``text``, in which the inputs occur in this order among other text; each run is found by search."""
    runs: list[Run] = []
    at = 0
    for value in inputs:
        for start, end, source in runs_of(value):
            needle = str.__getitem__(value, slice(start, end))
            place = text.find(needle, at)
            if place >= 0:
                at = place + len(needle)
                runs.append((place, at, source))
    return with_runs(text, runs)


def leaves(value: object) -> Iterable[str]:
    """The traced strings inside a value, in order."""
    if type(value) is Traced:
        yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(key)
            yield from leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)


def traced_json(
    value: Any, text: str, origins: Mapping[int, Source], write: Callable[[Any], str], sort_keys: bool
) -> str:
    """``text``, the JSON of ``value`` as ``write`` made it, with the origins of what is in it.

    ``origins`` maps ``id()`` of structured values to their source: such a value's whole text is attributed. Strings are
    found as JSON writes them. Both are searched for in the order in which they were written.
    """
    own = origins.get(id(value))
    if own is not None:
        return whole(text, own)
    runs: list[Run] = []
    at = 0

    def find(needle: str, source: Source, inner: int = 0) -> bool:
        nonlocal at
        place = text.find(needle, at)
        if place < 0:
            return False
        runs.append((place + inner, place + len(needle) - inner, source))
        at = place + len(needle)
        return True

    def walk(item: Any) -> None:
        source = origins.get(id(item))
        # Inside an indented text a nested value is indented too, so it is only found where it stands at the left.
        if source is not None and find(write(item), source):
            return
        if type(item) is Traced:
            for _, _, origin in item.runs[:1]:
                find(write(item), origin, inner=1)
        elif isinstance(item, Mapping):
            for key, inside in sorted(item.items()) if sort_keys else item.items():
                walk(key)
                walk(inside)
        elif isinstance(item, list | tuple):
            for inside in item:
                walk(inside)

    walk(value)
    return with_runs(text, (run for run in runs if run[0] < run[1]))
