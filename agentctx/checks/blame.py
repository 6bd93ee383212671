"""Which line of a template makes two prompts part: their trails are compared, and the suspect is tried.

The trails are walked from the last output that both texts share. The first decision that came out differently is suspected, else the
output whose text differs. A decision is tried: the later prompt is rendered again with that decision the other way; if the two texts then
agree further than before, it is confirmed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentctx.checks.growth import Side
from agentctx.checks.subject import Subject
from agentctx.common_ends import common_start
from agentctx.errors import RenderError
from agentctx.rendering.templates.limits import LimitError
from agentctx.rendering.templates.trail import Event, Site

_CONSTRUCTS = {
    "if": "a condition",
    "inline if": "a condition inside an expression",
    "for": "a loop",
    "set": "an assignment",
    "output": "an expression",
    "text": "text of the template",
}
_MOST_TRIED = 40  # decisions behind the last common output; real templates have fewer than ten


@dataclass(frozen=True, slots=True)
class Blame:
    """The place in the template.

    ``line``: 1-based. ``construct``: what stands there. ``was``/``now``: its outcome in the earlier and the later prompt, where it is a
    decision. ``confirmed``: with the decision the other way, the texts agree further. ``depends_on``: lines that set what it reads, and
    whose value differed.
    """

    line: int
    construct: str
    was: str = ""
    now: str = ""
    confirmed: bool = False
    depends_on: tuple[int, ...] = ()


@dataclass(slots=True)
class _Trails:
    """Both trails behind the last common output. ``first`` numbers the first event of ``after`` in its whole trail."""

    sites: Sequence[Site]
    before: Sequence[Event]
    after: Sequence[Event]
    first: int
    whole_before: Sequence[Event]
    whole_after: Sequence[Event]


def find_blame(
    subject: Subject, before: Side, after: Side, offset: int, replies: Sequence[str] = ()
) -> Blame | None:
    """The place that is to blame for the break at ``offset``; ``None`` when the trails don't tell.

    ``replies``: what the model wrote, where the break may lie behind the earlier prompt's end.
    """
    text, events = subject.follow(before.call, before.generation)
    _, later_events = subject.follow(after.call, after.generation)
    sites = subject.followed.sites
    if offset >= len(text):
        return _reply_blame(sites, later_events, offset, replies)
    trails = _behind_common(sites, events, later_events, offset)
    suspect = _first_difference(trails)
    tried = _try_decisions(subject, after, before.text, offset, trails, suspect)
    return tried or suspect


def _behind_common(
    sites: Sequence[Site], before: Sequence[Event], after: Sequence[Event], offset: int
) -> _Trails:
    def shared(events: Sequence[Event]) -> dict[tuple[int, int, Any], int]:
        """Outputs that end before the break, and their place in the trail."""
        return {
            (event.site, event.chars, event.value): index
            for index, event in enumerate(events)
            if sites[event.site].kind in ("output", "text")
            and not sites[event.site].buffered
            and event.value
            and event.chars + len(event.value) <= offset
        }

    left, right = shared(before), shared(after)
    common = [key for key in right if key in left]
    a, b = (left[common[-1]] + 1, right[common[-1]] + 1) if common else (0, 0)
    return _Trails(sites, before[a:], after[b:], b, before, after)


def _first_difference(trails: _Trails) -> Blame | None:
    """The first event at which the two ways part."""
    sites = trails.sites
    for left, right in zip(trails.before, trails.after, strict=False):
        site = sites[left.site]
        if left.site != right.site:
            break
        if left.value == right.value or site.kind == "set":
            continue
        return _blame(trails, site, left, right)
    written = next((e for e in trails.before if sites[e.site].kind in ("output", "text") and e.value), None)
    if written is None:
        written = next(
            (e for e in trails.after if sites[e.site].kind in ("output", "text") and e.value), None
        )
    return _blame(trails, sites[written.site], None, None) if written is not None else None


def _blame(
    trails: _Trails, site: Site, left: Event | None, right: Event | None, confirmed: bool = False
) -> Blame:
    decision = site.kind in ("if", "inline if")
    return Blame(
        site.line,
        _CONSTRUCTS[site.kind],
        _outcome(left) if decision else "",
        _outcome(right) if decision else "",
        confirmed,
        _origins(trails, site),
    )


def _outcome(event: Event | None) -> str:
    return "" if event is None else "true" if event.value else "false"


def _origins(trails: _Trails, site: Site) -> tuple[int, ...]:
    """Lines that set a variable which the site reads, with another value in the two renderings."""

    def last_values(events: Sequence[Event]) -> dict[str, tuple[int, Any]]:
        found = {}
        for event in events:
            place = trails.sites[event.site]
            if place.kind == "set" and place.target.split(".")[0] in site.names:
                found[place.target] = (place.line, event.value)
        return found

    left, right = last_values(trails.whole_before), last_values(trails.whole_after)
    lines = {
        right[name][0]
        for name in right
        if name in left and left[name][1] != right[name][1] and right[name][0] != site.line
    }
    return tuple(sorted(lines))


def _try_decisions(
    subject: Subject, after: Side, earlier: str, offset: int, trails: _Trails, suspect: Blame | None
) -> Blame | None:
    """The decision which, taken the other way, lets the later text agree furthest with the earlier one."""
    best: tuple[int, Event] | None = None
    reach = offset
    tried = 0
    for index, event in enumerate(trails.after):
        site = trails.sites[event.site]
        if event.chars > offset or tried >= _MOST_TRIED:
            break
        if site.kind not in ("if", "inline if"):
            continue
        tried += 1
        try:
            text, _ = subject.follow(after.call, after.generation, flip=trails.first + index)
        except LimitError:
            raise
        except RenderError:
            continue
        shared = common_start(earlier, text)
        first = suspect is not None and suspect.line == site.line and best is None
        if shared > reach or (first and shared > offset):
            reach, best = shared, (index, event)
    if best is None:
        return None
    event = best[1]
    other = Event(event.site, not event.value, event.chars)
    return _blame(trails, trails.sites[event.site], other, event, confirmed=True)


def _reply_blame(
    sites: Sequence[Site], events: Sequence[Event], offset: int, replies: Sequence[str]
) -> Blame | None:
    """The break lies in what the model wrote: the place that writes it differently."""
    trimmed = {reply.strip() for reply in replies if reply != reply.strip()}
    best: Event | None = None
    for event in events:
        if not isinstance(event.value, str) or event.chars > offset:
            continue
        if (
            event.value.strip() in trimmed
            and event.value not in replies
            and event.chars + len(event.value) >= offset
        ):
            best = event  # the reply's text, without the white space around it
            break
        if sites[event.site].kind in ("output", "text") and event.chars + len(event.value) > offset:
            best = event
    if best is None:
        return None
    site = sites[best.site]
    return Blame(site.line, _CONSTRUCTS[site.kind])
