"""Tokens of each turn under a target that has a renderer: what was reused, lost, and where the prompts part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from agentctx.caches.model import Arrival, CacheModel
from agentctx.common_ends import common_start
from agentctx.diagnosis.align import sent_again
from agentctx.diagnosis.targets import Target
from agentctx.diagnosis.views import Item, View
from agentctx.diagnosis.wire import Mapped, place_of, reply_message, request_of
from agentctx.errors import InputError, RenderError
from agentctx.messages import Message
from agentctx.rendering.prompt import Prompt, Renderer, Span, TokenIds, common_prefix_length
from agentctx.rendering.user_starts import UserStarts

_UNEXPLAINED = "unexplained"
_CAUSES = {
    "evicted": "server_evicted",
    "pool-full": "server_evicted",
    "slot-taken": "slot_taken",
    "window": "sliding_window",
    "no-checkpoint": "sliding_window",
}
"""What the server does with what it had: from a cache model's reason (``Prediction.lost``) to the cause."""


@dataclass(slots=True)
class Rendered:
    """A request as the target's server reads it; kept with the conversation's state for the next turn.

    ``said`` is the reply that the server gave, ``reply`` its tokens behind the prompt. ``user_starts`` is the
    conversation's: it walks what each prompt adds.
    """

    mapped: Mapped
    prompt: Prompt
    reply: TokenIds | None = None
    said: Message | None = None
    user_starts: UserStarts = field(default_factory=UserStarts, repr=False)


@dataclass(frozen=True, slots=True)
class Served:
    """What the target's cache model says of one prompt: tokens ``reused``, tokens that the same rules would reuse had
    nothing been lost, and the ``cause`` of most of the difference.
    """

    reused: int
    without_limits: int
    cause: str = _UNEXPLAINED

    @property
    def lost(self) -> int:
        """Tokens that the server no longer had."""
        return max(0, self.without_limits - self.reused)


@dataclass(frozen=True, slots=True)
class Account:
    """Tokens of one turn. ``shared``: common prefix with the earlier prompt (and its reply), ``reused``: what the
    server serves of it (see ``Served``), ``lost``: tokens of the earlier prompt outside the common prefix, ``again``: tokens of this
    prompt behind it that belong to items which the earlier request or its reply had too. ``intact``: the common prefix covers all
    items of the earlier prompt, so that at most its generation prompt differs.
    ``place``/``was``/``now``/``at``: where the prompts part, when they do.
    """

    prompt: int
    shared: int
    reused: int
    lost: int
    again: int
    intact: bool
    exact: bool
    served: Served | None = None
    place: str = ""
    was: str = ""
    now: str = ""
    at: int = 0


def render_turn(target: Target, view: View, before: Rendered | None, shared: int) -> Rendered | None:
    """Render a request; ``shared`` leading items equal those of ``before``. None when the target has no renderer.

    Raises ``InputError`` for a body that is none of its API and ``RenderError`` when the template refuses it.
    """
    renderer = target.renderer
    if renderer is None or view.prompt is not None:
        return None
    mapped = request_of(view, before.mapped if before is not None else None, shared)
    if before is None:
        return Rendered(mapped, renderer.render(mapped.request))
    return Rendered(mapped, renderer.render(mapped.request, before.prompt), user_starts=before.user_starts)


def serve(cache: CacheModel, rendered: Rendered, body: Mapping[str, Any]) -> Served:
    """Let the cache model serve a prompt and its reply; what it reuses of the prompt."""
    ids = rendered.prompt.token_ids
    slot, salt = body.get("id_slot"), body.get("cache_salt")
    arrival = Arrival(
        slot=slot if isinstance(slot, int) and slot >= 0 else None,
        cache_prompt=body.get("cache_prompt") is not False,
        user_starts=rendered.user_starts.of(rendered.prompt),
        salt=salt if isinstance(salt, str) else None,
    )
    predicted = cache.predict(ids, arrival)
    rounded = cache.without_limits(ids, arrival)
    cache.commit(ids, rendered.reply if rendered.reply is not None else ids[:0], arrival)
    reasons = {reason: tokens for reason, tokens in predicted.lost if reason in _CAUSES}
    most = max(reasons, key=reasons.__getitem__, default="")
    return Served(predicted.cached, rounded, _CAUSES.get(most, _UNEXPLAINED))


def add_reply(renderer: Renderer, rendered: Rendered, view: View, choices: Sequence[Sequence[Item]]) -> None:
    """Put the reply behind a rendered prompt, and its tokens; none where none was recorded or it can't be rendered."""
    rendered.said, rendered.reply = None, np.zeros(0, dtype=np.int32)
    try:
        rendered.said = reply_message(view, choices)
        if rendered.said is not None:
            rendered.reply = renderer.reply_ids(rendered.prompt, rendered.said)
    except (RenderError, InputError):
        pass


def account(before: Rendered, after: Rendered, served: Served | None = None) -> Account:
    """Compare a turn's prompt with the one before. ``served``: what the target's cache model says."""
    old, new = before.prompt.token_ids, after.prompt.token_ids
    shared = common_prefix_length(old, new)
    if shared == len(old) and before.reply is not None and len(before.reply):
        shared += common_prefix_length(before.reply, new[len(old) :])
    end = _content_end(before.prompt)
    intact = shared >= end
    place = was = now = ""
    at = 0
    if not intact:
        place, was, now, at = _parting(before, after)
    return Account(
        prompt=len(new),
        shared=shared,
        reused=served.reused if served is not None else shared,
        served=served,
        lost=max(0, len(old) - shared),
        again=0 if intact else _again(before, after, shared),
        intact=intact,
        exact=before.prompt.exact and after.prompt.exact,
        place=place,
        was=was,
        now=now,
        at=at,
    )


def _content_end(prompt: Prompt) -> int:
    """The token behind the last item's: what follows is the generation prompt."""
    for span in reversed(prompt.spans):
        if span.item is not None:
            return span.end
    return 0


def _again(before: Rendered, after: Rendered, shared: int) -> int:
    """Tokens behind the common prefix that were paid before: those of items that the earlier request had, of the reply to
    it, and of items that stand in place of one that it had.
    """
    said = () if before.said is None else (before.said,)
    old = [_meaning(message) for message in (*before.mapped.request.messages, *said)]
    kept = sent_again(old, [_meaning(message) for message in after.mapped.request.messages])
    total = 0
    for span in after.prompt.spans:
        if span.end > shared and span.item is not None and (span.zone == "tools" or kept[span.item]):
            total += span.end - max(span.start, shared)
    return total


def _meaning(message: Message) -> tuple[object, ...]:
    """What tells a message from others: its markers and the shape it came in don't, nor reasoning that was left out."""
    calls = tuple((call.name, call.arguments) for call in message.tool_calls)
    return message.role, message.text_with_notes, calls


def _parting(before: Rendered, after: Rendered) -> tuple[str, str, str, int]:
    """Where two prompts part: place in the later body, both texts, and the character."""
    old, new = before.prompt, after.prompt
    at = common_start(old.text, new.text)
    span = _span_at(old.spans, at)
    while span is not None and span.item is None:
        following = [
            other for other in old.spans if other.char_start >= span.char_end and other.item is not None
        ]
        span = following[0] if following else None
    if span is None or span.item is None:
        return "", old.text, new.text, at
    if span.zone == "tools":
        return f"tools[{span.item}]", old.text, new.text, at
    return place_of(before.mapped, span.item, span.field), old.text, new.text, at


def _span_at(spans: tuple[Span, ...], char: int) -> Span | None:
    low, high = 0, len(spans)
    while low < high:
        middle = (low + high) // 2
        if spans[middle].char_end <= char:
            low = middle + 1
        else:
            high = middle
    return spans[low] if low < len(spans) else None
