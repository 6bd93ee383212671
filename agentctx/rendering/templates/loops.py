"""Loops that are taken up where the previous rendering left them.

A template walks over all messages each time. Passes of a top-level loop whose every input is the same as in the previous
rendering write the same text again, so they are skipped: their text is copied, the namespaces are put into the state in which
these passes left them, and the loop goes on behind them.

What is an input of a pass, and how it is watched:

- its item, and items at its side: compared by identity, the index of every message that a pass touches is recorded;
- whether there is a next item (``loop.last``), how many there are (``loop.length``): recorded when asked;
- namespaces: compared when the loop begins, kept at each pass boundary;
- every other variable that the loop's body or any macro mentions: compared when the loop begins.

Nothing else can flow into a pass: the sandbox lets nobody change a list or a dict, assignments inside a pass end with it, and
templates with stateful helpers (``cycler``, ``joiner``, ``loop.changed``) are not resumed at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from operator import index as index_of
from operator import is_
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from jinja2.runtime import LoopContext, Macro
from jinja2.utils import Namespace, missing

from agentctx.rendering.templates.comparing import charge_arguments, surely_equal

if TYPE_CHECKING:
    from agentctx.rendering.templates.template import RenderRun


class Messages(list[Any]):
    """The message list as a template sees it: a list that notes what a loop pass looks at.

    ``offset``: index of the first element in the whole conversation, for slices.
    """

    def __init__(self, items: list[Any], run: RenderRun, offset: int = 0) -> None:
        super().__init__(items)
        self._plain = items  # what a template can't name: reading it isn't watched
        self._run = run
        self.offset = offset

    def _all(self) -> None:
        self._run.watch.all_read = True

    def __bool__(self) -> bool:
        # Appending can't make a list empty; an empty one may fill up.
        if not list.__len__(self):
            self._all()
        return list.__len__(self) > 0

    def __len__(self) -> int:
        self._all()
        return list.__len__(self)

    def __iter__(self) -> Iterator[Any]:
        self._all()
        return list.__iter__(self)

    def __reversed__(self) -> Iterator[Any]:
        self._all()
        return list.__reversed__(self)

    def __contains__(self, item: object) -> bool:
        self._all()
        return list.__contains__(self, item)

    def __eq__(self, other: object) -> bool:
        self._all()
        return list.__eq__(self, other)

    __hash__ = None

    def __add__(self, other: Any) -> Any:
        self._all()
        return list(list.__iter__(self)) + list(other)

    def __radd__(self, other: Any) -> Any:
        self._all()
        return list(other) + list(list.__iter__(self))

    def __mul__(self, times: SupportsIndex) -> Any:
        self._all()
        return list(list.__iter__(self)) * times

    __rmul__ = __mul__

    def count(self, item: Any) -> int:
        self._all()
        return list.count(self, item)

    def index(self, *args: Any) -> int:
        self._all()
        return list.index(self, *args)

    def copy(self) -> list[Any]:
        self._all()
        return list(list.__iter__(self))

    @overload
    def __getitem__(self, key: SupportsIndex) -> Any: ...
    @overload
    def __getitem__(self, key: slice) -> list[Any]: ...
    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return self._part(key)
        index = index_of(key)  # TypeError for anything else, as lists raise it
        size = list.__len__(self)
        if index < 0 or index >= size:
            self._all()  # counted from the end, or asking where the end is
        else:
            self._run.watch.touch(self.offset + index)
        return list.__getitem__(self, index)

    def _part(self, key: slice) -> list[Any]:
        start, step = key.start or 0, key.step or 1
        if step == 1 and start >= 0 and key.stop is None:
            return Messages(list.__getitem__(self, key), self._run, self.offset + start)
        if step == 1 and start >= 0 and 0 <= key.stop <= list.__len__(self):
            self._run.watch.touch(self.offset + max(start, key.stop - 1))
            return list.__getitem__(self, key)
        self._all()
        return list.__getitem__(self, key)


def items_of(messages: Messages) -> list[Any]:
    """The messages for a loop to walk over, not copied: no template whose loops are resumed can change them."""
    return messages._plain


@dataclass(slots=True)
class Watch:
    """What the passes so far have looked at. ``reach``: highest index of a message; ``peek``: highest index of an item."""

    reach: int = -1
    peek: int = -1
    all_read: bool = False
    length_read: bool = False

    def touch(self, index: int) -> None:
        if index > self.reach:
            self.reach = index

    def state(self) -> tuple[int, int, bool, bool]:
        return (self.reach, self.peek, self.all_read, self.length_read)


@dataclass(frozen=True, slots=True)
class Boundary:
    """The state between two passes. ``chars`` and ``runs`` count from the loop's beginning."""

    chars: int
    runs: int
    watched: tuple[int, int, bool, bool]
    namespaces: tuple[dict[str, Any], ...]


@dataclass(slots=True)
class LoopRecord:
    """One top-level loop of a rendering: what went in, and the state at each boundary that was passed.

    ``offset``: index of the first item in the conversation when the items are its messages from there on, else -1.
    """

    items: list[Any]
    offset: int
    names: Mapping[str, Any]
    entry: tuple[dict[str, Any], ...]
    start_char: int
    start_run: int
    boundaries: list[Boundary] = field(default_factory=list)


def namespace_contents(namespace: Namespace) -> dict[str, Any]:
    """The attributes of a namespace; the values themselves are shared."""
    return dict(namespace._Namespace__attrs)


def set_namespace(namespace: Namespace, contents: dict[str, Any]) -> None:
    attributes = namespace._Namespace__attrs
    attributes.clear()
    attributes.update(contents)


class Passes:
    """The items of a ``for``, each pass metered."""

    def __init__(self, items: list[Any], run: RenderRun) -> None:
        self.items = items
        self.run = run
        self.first = 0

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Any]:
        step = self.run.meter.step
        for item in self.items:
            step()
            yield item


class ResumablePasses(Passes):
    """The items of a top-level ``for``: begins behind what the previous rendering did, and records its own boundaries."""

    def __init__(self, items: list[Any], run: RenderRun, record: LoopRecord, first: int) -> None:
        super().__init__(items, run)
        self.record = record
        self.first = first

    def __iter__(self) -> Iterator[Any]:
        run, record = self.run, self.record
        outer, run.watch = run.watch, Watch(*(record.boundaries[-1].watched if record.boundaries else ()))
        try:
            if not record.boundaries:
                record.boundaries.append(self._boundary())
            for index in range(self.first, len(self.items)):
                run.meter.step()
                yield self.items[index]
                record.boundaries.append(self._boundary())
        finally:  # also when the template breaks out of the loop
            run.watch = outer

    def _boundary(self) -> Boundary:
        run, record = self.run, self.record
        states = run.namespace_states()
        if (
            states
            and record.boundaries
            and surely_equal(record.boundaries[-1].namespaces, states, budget=256)
        ):
            states = record.boundaries[-1].namespaces  # keep one copy
        return Boundary(
            run.chars - record.start_char, len(run.runs) - record.start_run, run.watch.state(), states
        )


class Loop(LoopContext):
    """``loop`` inside a ``for``: as Jinja's, with a note of every look ahead."""

    def __init__(self, iterable: Any, undefined: Any, recurse: Any = None, depth0: int = 0) -> None:
        super().__init__(iterable, undefined, recurse, depth0)
        self._passes = iterable if isinstance(iterable, Passes) else None
        if self._passes is not None and self._passes.first:
            self.index0 = self._passes.first - 1
            self._current = self._passes.items[self._passes.first - 1]

    def _note(self) -> None:
        if self._passes is not None:
            watch = self._passes.run.watch
            watch.peek = max(watch.peek, self.index0 + 1)

    @property
    def length(self) -> int:
        if self._passes is None:
            return super().length
        self._passes.run.watch.length_read = True
        return len(self._passes.items)

    def changed(self, *value: Any) -> bool:
        if self._passes is not None:
            charge_arguments(value, {}, self._passes.run.meter)
        return super().changed(*value)

    def _peek_next(self) -> Any:
        if self._passes is None:
            return super()._peek_next()
        self._note()
        items, index = self._passes.items, self.index0 + 1
        return items[index] if index < len(items) else missing


def same_value(old: Any, new: Any, places: Mapping[int, int]) -> bool:
    """Whether a variable means the same to a loop pass in both renderings.

    ``places`` maps ``id()`` of the old rendering's namespaces to their number and the new one's too.
    Message lists may have grown at their end: what a pass reads of them is watched.
    """
    if old is new:
        return True
    if isinstance(old, Messages) and isinstance(new, Messages):
        shorter = min(list.__len__(old), list.__len__(new))
        return old.offset == new.offset and shorter > 0
    if isinstance(old, Namespace) and isinstance(new, Namespace):
        return id(old) in places and places.get(id(old)) == places.get(id(new))
    if type(old) is Macro and type(new) is Macro:
        return bool(old.name == new.name)
    return not isinstance(old, Messages) and surely_equal(old, new)


def leading_same(old: list[Any], new: list[Any], known: int = 0) -> int:
    """Number of leading elements that are the same objects, or equal plain values; ``known`` are."""
    limit = min(len(old), len(new))
    if known >= limit or old is new or all(map(is_, old[known:], new[known:])):
        return limit
    same = known
    while same < limit:
        left, right = old[same], new[same]
        if left is not right and not (
            type(left) is type(right) and type(left) in (str, int) and left == right
        ):
            break
        same += 1
    return same


def resume_at(old: LoopRecord, new: LoopRecord, same_messages: int, all_same: bool) -> int:
    """Number of passes that need not be made again.

    ``same_messages``: leading messages that are the same objects in both renderings; ``all_same``: the lists are equal.
    """
    items = new.items
    known = max(0, same_messages - new.offset) if old.offset == new.offset >= 0 else 0
    same = leading_same(old.items, items, known)
    equal_length = len(old.items) == len(items)
    for count in range(min(same, len(old.boundaries) - 1), 0, -1):
        reach, peek, all_read, length_read = old.boundaries[count].watched
        if (
            (all_same or (reach < same_messages and not all_read))
            and (peek < same or (equal_length and same == len(items)))
            and (equal_length or not length_read)
        ):
            return count
    return 0
