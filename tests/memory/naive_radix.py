"""A radix cache without a tree: a list of runs, each with its whole text. Slow, short, and shares no code with the fast one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

Space = tuple[str | None, str | None]
Text = tuple[int, ...]


@dataclass(slots=True)
class Run:
    """Tokens ``start`` … of ``text``, which begins at the start of the text."""

    space: Space
    text: Text
    start: int
    used: int
    created: int
    hits: int
    priority: int


@dataclass(slots=True, eq=False)
class Held:
    """A running request: its text, and how much of it is in the cache under its lock."""

    space: Space
    text: Text
    locked: int
    counted: int
    priority: int


def common(left: Text, right: Text) -> int:
    for index, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return index
    return min(len(left), len(right))


class NaiveRadix:
    def __init__(self, page: int, capacity: int | None, order: str, refresh_run: bool) -> None:
        self.page, self.order, self.refresh_run = page, order, refresh_run
        self.pages = None if capacity is None else capacity // page
        self.runs: list[Run] = []
        self.held: list[Held] = []
        self.clock = 0

    def whole(self, tokens: int) -> int:
        return tokens // self.page * self.page

    def equal(self, text: Text, space: Space) -> int:
        return max((common(text, run.text) for run in self.runs if run.space == space), default=0)

    def hit(self, text: Text, space: Space, limit: int | None) -> int:
        most = len(text) - 1 if limit is None else min(len(text) - 1, limit)
        return self.whole(max(0, min(self.equal(text, space), most)))

    def locked(self, run: Run) -> bool:
        return any(
            held.space == run.space and held.text[: held.locked][: len(run.text)] == run.text
            for held in self.held
        )

    def leaf(self, run: Run) -> bool:
        return not any(
            other is not run and other.space == run.space and other.text[: len(run.text)] == run.text
            for other in self.runs
        )

    def cached(self, *, locked: bool) -> int:
        return sum(len(run.text) - run.start for run in self.runs if self.locked(run) == locked)

    def free_pages(self) -> int:
        assert self.pages is not None
        own = sum(-(-(len(held.text) - held.locked) // self.page) for held in self.held)
        return self.pages - own - sum((len(run.text) - run.start) // self.page for run in self.runs)

    def key(self, run: Run) -> tuple[int, int]:
        first = {
            "lru": 0,
            "fifo": 0,
            "lfu": run.hits,
            "priority": run.priority,
            "slru": int(run.hits >= 2),
        }[self.order]
        return (first, run.created if self.order == "fifo" else run.used)

    def evict(self, tokens: int) -> list[Text]:
        gone: list[Text] = []
        freed = 0
        while freed < tokens:
            leaves = [run for run in self.runs if self.leaf(run) and not self.locked(run)]
            if not leaves:
                break
            victim = min(leaves, key=self.key)
            self.runs.remove(victim)
            freed += len(victim.text) - victim.start
            gone.append(victim.text)
        return gone

    def claim(self, text: Text, space: Space) -> int:
        """Split where the text leaves a run, mark its path as used; returns the length found."""
        found = self.whole(self.equal(text, space))
        self.clock += 1
        for run in list(self.runs):
            if run.space == space and run.start < found < len(run.text) and common(run.text, text) >= found:
                self.runs.append(replace(run, text=run.text[:found], created=self.clock))
                run.start = found
                if self.refresh_run:
                    run.used = self.clock
                break
        for run in self.path(text[:found], space):
            run.used = self.clock
        return found

    def path(self, text: Text, space: Space) -> list[Run]:
        return [run for run in self.runs if run.space == space and text[: len(run.text)] == run.text]

    def take(self, tokens: int, own: int) -> bool:
        """Make room for ``tokens`` more behind ``own`` tokens that already have their pages."""
        if self.pages is None:
            return True
        need = -(-(own + tokens) // self.page) - -(-own // self.page)
        missing = need - self.free_pages()
        if missing > 0:
            self.evict(missing * self.page)
        return need <= self.free_pages()

    def commit(self, text: Text, space: Space, priority: int, limit: int | None, reserve: int) -> Held | None:
        hit = self.hit(text, space, limit)
        if self.pages is not None:
            unlocked = sum(
                min(hit, len(run.text)) - run.start
                for run in self.runs
                if run.space == space
                and run.start < hit
                and common(run.text, text) >= min(hit, len(run.text))
                and not self.locked(run)
            )
            need = -(-(len(text) + reserve) // self.page) - hit // self.page
            if need > self.free_pages() + (self.cached(locked=False) - unlocked) // self.page:
                return None
        self.claim(text[:hit], space)
        held = Held(space, text[:hit], hit, 0, priority)
        self.held.append(held)
        assert self.take(len(text) - hit, hit)
        held.text = text
        return held

    def extend(self, held: Held, tokens: Text) -> bool:
        if not self.take(len(tokens), len(held.text)):
            return False
        held.text += tokens
        return True

    def checkpoint(self, held: Held, computed: int) -> None:
        upto = self.whole(min(computed, len(held.text)))
        if upto <= held.locked:
            return
        text = held.text[:upto]
        known = self.claim(text, held.space)
        for run in self.path(text, held.space):
            run.hits += len(run.text) > held.counted
            run.priority = max(run.priority, held.priority)
        if known < upto:
            self.clock += 1
            self.runs.append(Run(held.space, text, known, self.clock, self.clock, 1, held.priority))
        held.locked = held.counted = upto

    def release(self, held: Held, output: Text) -> None:
        self.checkpoint(held, len(held.text))
        computed = output[:-1]
        if computed and self.pages is not None:
            free = self.free_pages() + self.cached(locked=False) // self.page
            room = (-(-len(held.text) // self.page) + free) * self.page - len(held.text)
            computed = computed[:room]
        if computed:
            assert self.extend(held, computed)
            self.checkpoint(held, len(held.text))
        self.held.remove(held)

    def abort(self, held: Held) -> None:
        self.held.remove(held)

    def state(self) -> list[Any]:
        return sorted(
            ((run.space, run.text, run.start, run.hits, run.priority) for run in self.runs), key=repr
        )
