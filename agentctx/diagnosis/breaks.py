"""The first break between two requests of one conversation: its place, its cause, what stood there.

The order is the one in which the model reads: model, tools, system, messages, other parameters. The reference is
the earlier request followed by the reply that the server gave to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agentctx.common_ends import common_start
from agentctx.diagnosis import classify
from agentctx.diagnosis.align import Move, movement
from agentctx.diagnosis.breakpoints import misplaced
from agentctx.diagnosis.classify import Setting
from agentctx.diagnosis.compare import (
    MISSING,
    Change,
    item_change,
    same_ordered,
    text_change,
    tools_change,
)
from agentctx.diagnosis.views import Item, View, key_of, role_of, text_of

# Parameters that enter the prompt or choose the cache, in the order in which they are compared. Sampling, limits,
# streaming and bookkeeping are none of them.
PARAMETERS = (
    "tool_choice", "parallel_tool_calls", "thinking", "reasoning", "reasoning_effort", "response_format", "text",
    "verbosity", "service_tier", "speed", "prompt_cache_key", "chat_template_kwargs", "output_config",
    "chat_template", "documents", "function_call", "cache_salt", "json_schema", "guided_json", "cache_prompt",
    "lora", "id_slot",
)  # fmt: skip
_DEFAULTS: dict[str, Any] = {
    "cache_prompt": True,
    "id_slot": -1,
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "service_tier": "auto",
    "response_format": {"type": "text"},
    "text": {},
    "thinking": {"type": "disabled"},
    "verbosity": "medium",
}
"""What a parameter that is left out means."""
_INNER_DEFAULTS: dict[str, dict[str, Any]] = {
    "text": {"format": {"type": "text"}, "verbosity": "medium"},
    "tool_choice": {"disable_parallel_tool_use": False},
}


@dataclass(frozen=True, slots=True)
class Break:
    """A difference that ends reuse.

    ``place`` is the path in the later body (``@n`` the character), ``zone`` where it lies, ``word`` the cause.
    ``item`` is the first item (or tool, or system block) behind which nothing is reused, ``offset`` the character
    in its text. ``was``/``now`` are the texts there and ``at`` the first character in them that differs.
    ``also`` are other places that differ. ``returned``: it lies in the server's reply, which was never sent. ``move`` says what happened to the messages, where they are concerned.
    """

    word: str
    place: str
    zone: str
    was: str = ""
    now: str = ""
    at: int = 0
    item: int = 0
    marker: str | None = None
    underlying: str | None = None
    also: tuple[str, ...] = ()
    move: Move | None = None
    text_edit: bool = False
    returned: bool = False


@dataclass(frozen=True, slots=True)
class Reference:
    """The earlier request with the reply to it: what the later request should extend.

    ``keys`` are those of the view's items. ``choices`` are the replies that the server gave, usually one.
    """

    view: View
    choices: tuple[tuple[Item, ...], ...] = ()
    keys: Sequence[int] = field(default=(), repr=False)


Leading = tuple[int, Change | None]
"""How many leading items of two lists give the same prompt, and the change in the next (None where a list ends)."""


def find_break(
    before: Reference,
    after: View,
    elapsed: float | None = None,
    leading: Leading | None = None,
    *,
    follows: bool = False,
) -> Break | None:
    """The first break, or None when ``after`` extends, repeats or branches off from ``before``.

    ``follows``: it is known to follow, so that there is no branching off: it has to extend or repeat.

    ``elapsed``: seconds between the two requests, where known; it tells a clock from a date that was edited.
    ``leading``: what ``leading_equal`` says of the items of both, where that was asked before.
    """
    old = before.view
    found: Break | None = None
    also: list[str] = []
    for step in (_model_break, _tools_break, _system_break):
        hit = step(old, after, elapsed)
        if hit is not None and found is None:
            found = hit
        elif hit is not None:
            also.append(hit.place)
    items = _items_break(before, after, elapsed, leading)
    if items is None and follows:
        items = _leaving(before, after, elapsed, leading)
    if items is not None and found is not None:
        also.append(items.place)
    found = found or items
    parameters = _parameter_breaks(old, after)
    if found is None and parameters:
        found, parameters = parameters[0], parameters[1:]
    if found is None:
        return None
    also.extend(hit.place for hit in parameters)
    if found.word in ("volatile_text", "random_value", "message_edited"):
        marker = misplaced(old, after, found.place)
        if marker is not None:
            found = replace(found, word="breakpoint_misplaced", underlying=found.word, marker=marker.path)
    return replace(found, also=tuple(also))


def turn_off(before: Reference, after: View) -> Break | None:
    """Where a request leaves the earlier one although nothing behind that place is sent again: no break, but a server
    has to go back there. None when the earlier request is whole.
    """
    old, new = before.view.items, after.items
    at, change = leading_equal(old, new, after.path)
    if change is not None:
        return _break_from(change, "branch", "messages", at)
    if at < len(old):
        return Break("branch", f"{after.path}[{at}]", "messages", item=at)
    return None


def carries_reply(before: Reference, after: View) -> bool:
    """Whether a request goes on with an assistant's message right behind what was sent before."""
    sent = len(before.view.items)
    return len(after.items) > sent and role_of(after.items[sent]) == "assistant"


def _model_break(old: View, new: View, elapsed: float | None) -> Break | None:
    if old.model == new.model or old.model is None or new.model is None:
        return None
    return Break("model_changed", "params.model", "model", old.model, new.model)


def _tools_break(old: View, new: View, elapsed: float | None) -> Break | None:
    if not old.tools and not new.tools:
        return None
    change = tools_change(old.tools, new.tools)
    if change is None:
        return None
    word = classify.schema_cause(change, Setting(head=True, elapsed=elapsed))
    at = common_start(change.old, change.new) if change.kind == "order" else _first_index(change.path)
    return _break_from(change, word, "tools", at)


def _system_break(old: View, new: View, elapsed: float | None) -> Break | None:
    change = text_change(old.system, new.system, new.system_path)
    if change is None:
        return None
    elsewhere = (*old.items, *new.items)
    word = classify.system_cause(change, Setting(head=True, elapsed=elapsed), elsewhere)
    return _break_from(change, word, "system", _first_index(change.path))


def _first_index(path: str) -> int:
    _, bracket, rest = path.partition("[")
    digits = rest.partition("]")[0]
    return int(digits) if bracket and digits.isdigit() else 0


def _break_from(change: Change, word: str, zone: str, item: int, move: Move | None = None) -> Break:
    was, now = _shown(change.old), _shown(change.new)
    at = change.offset if change.offset is not None else common_start(was, now)
    return Break(
        word=word,
        place=change.place,
        zone=zone,
        was=was,
        now=now,
        at=at,
        item=item,
        move=move,
        text_edit=change.kind == "text",
    )


def _shown(value: Any) -> str:
    if value is MISSING:
        return ""
    return value if isinstance(value, str) else classify.repr_json(value)


def leading_equal(old: Sequence[Item], new: Sequence[Item], path: str) -> Leading:
    """How many leading items give the same prompt, and the change in the next one (None where a list ends)."""
    limit = min(len(old), len(new))
    for index in range(limit):
        change = item_change(old[index], new[index], f"{path}[{index}]")
        if change is not None:
            return index, change
    return limit, None


def _items_break(
    before: Reference, after: View, elapsed: float | None, leading: Leading | None
) -> Break | None:
    old, new = before.view.items, after.items
    at, change = leading or leading_equal(old, new, after.path)
    if change is None and at == len(new):
        return None  # the same request again, or an earlier one: nothing behind the shared part is sent
    if change is None:
        return _reply_break(before, after, elapsed)
    reply = before.choices[0] if before.choices else ()
    keys = [*before.keys, *map(key_of, reply)] if before.keys else ()
    return _judge_items([*old, *reply], keys, at, change, len(old), after, elapsed)


def _leaving(before: Reference, after: View, elapsed: float | None, leading: Leading | None) -> Break | None:
    """Where a request that should extend the earlier one leaves it instead, and repeats nothing behind that place."""
    old = before.view.items
    at, change = leading or leading_equal(old, after.items, after.path)
    if at == len(old):
        return None
    if change is None:
        zone = _zone_at(after, at)
        move = Move("removed", at, gone=len(old) - at)
        return Break("message_removed", f"{after.path}[{at}]", zone, text_of(old[at]), item=at, move=move)
    return _edited(old[at], after, at, change, Move("edited", at, 1, 1), elapsed)


def _edited(old: Item, after: View, at: int, change: Change, move: Move, elapsed: float | None) -> Break:
    """The break of an item that stands where it stood, and is another."""
    setting = Setting(
        head=role_of(old) in ("system", "developer") and at <= after.lead,
        result=_is_result(old),
        elapsed=elapsed,
    )
    word = classify.edit_cause(change, old, after.items[at], setting)
    return _break_from(change, word, _zone_at(after, at), at, move)


def _zone_at(after: View, at: int) -> str:
    return "system" if at < after.lead else "messages"


def _reply_break(before: Reference, after: View, elapsed: float | None) -> Break | None:
    """The later request extends what was sent; does it also carry the reply as the server gave it?"""
    sent = len(before.view.items)
    parted: list[tuple[int, tuple[Item, ...]]] = []
    for reply in before.choices:
        at, change = leading_equal(reply, after.items[sent:], after.path)
        if change is None:
            return None
        parted.append((at, reply))
    # Of several replies the one that it carries furthest; one that it doesn't go on from at all shows no break.
    for at, reply in sorted(parted, key=lambda pair: -pair[0]):
        found = _altered_reply(before, reply, sent + at, after, elapsed)
        if found is not None:
            return found
    return None


def _altered_reply(
    before: Reference, reply: tuple[Item, ...], at: int, after: View, elapsed: float | None
) -> Break | None:
    """The break at item ``at``, where the later request parts from a reply; None where it doesn't go on from it."""
    sent = len(before.view.items)
    change = item_change(reply[at - sent], after.items[at], f"{after.path}[{at}]")
    if change is None:
        return None
    reference = [*before.view.items, *reply]
    keys = [*before.keys, *map(key_of, reply)] if before.keys else ()
    return _judge_items(reference, keys, at, change, sent, after, elapsed)


def _judge_items(
    old: Sequence[Item],
    old_keys: Sequence[int],
    at: int,
    change: Change,
    sent: int,
    after: View,
    elapsed: float | None,
) -> Break | None:
    new = after.items
    before_keys = old_keys if len(old_keys) == len(old) else list(map(key_of, old))
    move = movement(old, before_keys, new, list(map(key_of, new)), at, sent)
    if move.kind == "branch":
        return None
    if move.kind == "edited":
        return replace(_edited(old[at], after, at, change, move, elapsed), returned=at >= sent)
    zone = _zone_at(after, at)
    word = classify.move_cause(move, old, new, after.lead, sent)
    if move.kind == "replaced":
        return _break_from(change, word, zone, at, move)
    whole = Change(f"{after.path}[{at}]", "item", MISSING, MISSING)
    was = text_of(old[at]) if move.kind == "removed" else ""
    now = text_of(new[at]) if move.kind == "inserted" else ""
    return replace(_break_from(whole, word, zone, at, move), was=was, now=now, at=0)


def _is_result(item: Item) -> bool:
    if role_of(item) == "tool":
        return True
    content = item.get("content")
    return isinstance(content, list) and any(
        isinstance(part, dict) and part.get("type") == "tool_result" for part in content
    )


def _parameter_breaks(old: View, new: View) -> list[Break]:
    found = []
    for name in PARAMETERS:
        a, b = old.body.get(name), new.body.get(name)
        if same_ordered(_meant(name, a), _meant(name, b)):
            continue
        if name == "text" and new.api != "openai.responses":
            continue
        path = _deep_path(a, b, f"params.{name}")
        if path is not None:
            was, now = (_DEFAULTS.get(name) if value is None else value for value in (a, b))
            found.append(Break("parameter_changed", path, "params", _shown(was), _shown(now)))
    return found


def _meant(name: str, value: Any) -> Any:
    """A parameter's value as a server takes it: its default where it is left out, or where it is spelled out."""
    if value is None:
        return _DEFAULTS.get(name)
    if not isinstance(value, dict):
        return value
    defaults = _INNER_DEFAULTS.get(name, {})
    said = {
        key: inner
        for key, inner in value.items()
        if inner is not None and inner != defaults.get(key, MISSING)
    }
    if name == "tool_choice" and said == {"type": "auto"}:
        return "auto"
    return said


def _deep_path(old: Any, new: Any, path: str) -> str | None:
    """The path of the first value that differs inside two objects; key order is no difference here."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in (*old, *(key for key in new if key not in old)):
            a, b = old.get(key), new.get(key)
            if a is None and b is None:
                continue
            if a is None or b is None:
                return f"{path}.{key}"
            deeper = _deep_path(a, b, f"{path}.{key}")
            if deeper is not None:
                return deeper
        return None
    return None if old == new and isinstance(old, bool) == isinstance(new, bool) else path
