"""From a difference to its cause: pure rules, no state, no knowledge of any single case.

Each rule needs evidence in both versions; where none fits, an earlier message was simply edited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentctx.diagnosis.align import Move
from agentctx.diagnosis.compare import MEDIA_TYPES, MISSING, Change
from agentctx.diagnosis.texts import (
    equal_json,
    fragment_at,
    in_labelled_line,
    json_difference,
    looks_like_stub,
    looks_like_summary,
    same_but_whitespace,
    without_thinking,
)
from agentctx.diagnosis.times import moves_with
from agentctx.diagnosis.views import Item, role_of, text_of, texts_of

_REASONING_TYPES = frozenset({"thinking", "redacted_thinking", "reasoning"})
_SYSTEM_ROLES = frozenset({"system", "developer"})


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a text stands, and how long ago the earlier version was sent.

    ``head``: in front of the conversation (system prompt, tool description), where a text should never change.
    ``result``: in the result of a tool. ``elapsed``: seconds between the two requests, None when unknown.
    """

    head: bool = False
    result: bool = False
    elapsed: float | None = None


def text_cause(old: str, new: str, at: int, setting: Setting) -> str:
    """The cause word for a text that differs from character ``at`` on."""
    if same_but_whitespace(old, new):
        return "whitespace"
    difference = json_difference(old, new)
    if difference is not None:
        return "json_key_order" if difference == "key_order" else "argument_serialisation"
    stripped = without_thinking(old)
    if stripped != old and stripped.strip() == new.strip():
        return "reasoning_removed"
    if not setting.head and was_cleared(old, new, setting.result):
        return "compaction"
    if setting.head and new.startswith(old) and len(new) - len(old) >= 16:
        # Text that grows at the end of the system prompt is what should have been appended as a message.
        return "system_moved"
    fragment = fragment_at(old, new, at)
    if fragment.kind == "random":
        return "random_value"
    if fragment.kind == "time":
        if setting.head or moves_with(fragment.old, fragment.new, setting.elapsed, assume=fragment.clock):
            return "volatile_text"
        return "message_edited"
    live = setting.head and (fragment.kind == "number" or in_labelled_line(old, new, at))
    return "volatile_text" if live else "message_edited"


def was_cleared(old: str, new: str, result: bool) -> bool:
    """Whether a text was replaced by a short stand-in to save room."""
    if looks_like_stub(new) and not looks_like_stub(old) and (len(new) < len(old) or result):
        return True
    if not result or len(old) < 200:
        return False
    if len(new) <= 0.25 * len(old):
        return True
    # Cut short: the start is kept and what follows says so.
    return len(new) < 0.8 * len(old) and looks_like_stub(new[-120:])


def edit_cause(change: Change, old: Item, new: Item, setting: Setting) -> str:
    """The cause word for an item that was changed in its place."""
    if change.kind == "id":
        return "id_regenerated"
    if change.kind == "reasoning":
        return "reasoning_removed" if change.new is MISSING else "message_edited"
    if change.kind == "shape":
        return "content_shape"
    if change.kind == "media":
        return "image_changed"
    if change.kind == "part":
        return _part_cause(change, old, new, setting)
    if change.kind == "arguments":
        return _arguments_cause(change.old, change.new)
    if change.kind == "role":
        moved = _SYSTEM_ROLES & {role_of(old), role_of(new)} and text_of(old) == text_of(new)
        return "system_moved" if moved else "message_edited"
    if change.kind == "text" and isinstance(change.old, str) and isinstance(change.new, str):
        if "".join(texts_of(old)) == "".join(texts_of(new)):
            return "content_shape"  # the same text, cut into other parts
        return text_cause(change.old, change.new, change.offset or 0, setting)
    return "message_edited"


def _arguments_cause(old: Any, new: Any) -> str:
    if isinstance(old, str) and isinstance(new, str):
        difference = json_difference(old, new)
        if difference is not None:
            return "json_key_order" if difference == "key_order" else "argument_serialisation"
        if same_but_whitespace(old, new):
            return "argument_serialisation"
        return "compaction" if was_cleared(old, new, result=False) else "message_edited"
    if equal_json(old, new):
        return "argument_serialisation" if _has_number_change(old, new) else "json_key_order"
    if isinstance(old, str) != isinstance(new, str):
        text, value = (old, new) if isinstance(old, str) else (new, old)
        return "argument_serialisation" if json_difference(text, repr_json(value)) else "message_edited"
    return "message_edited"


def repr_json(value: Any) -> str:
    """JSON text of a value, for comparing meanings only."""
    import json

    return json.dumps(value, ensure_ascii=False, default=str)


def _has_number_change(old: Any, new: Any) -> bool:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return any(_has_number_change(old[key], new[key]) for key in old if key in new)
    if isinstance(old, list) and isinstance(new, list):
        return any(_has_number_change(a, b) for a, b in zip(old, new, strict=False))
    return type(old) is not type(new)


def _kind(part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    return kind if isinstance(kind, str) else ""


def holds_media(value: Any) -> bool:
    """Whether a content or part is or contains an image, file or sound."""
    if isinstance(value, Mapping):
        return _kind(value) in MEDIA_TYPES or holds_media(value.get("content"))
    return isinstance(value, list) and any(map(holds_media, value))


def _part_cause(change: Change, old: Item, new: Item, setting: Setting) -> str:
    before, after = change.old, change.new
    if _kind(before) in _REASONING_TYPES and _kind(after) not in _REASONING_TYPES:
        return "reasoning_removed"
    if holds_media(before) != holds_media(after):
        return "image_changed"
    left, right = "".join(texts_of(old)), "".join(texts_of(new))
    if left and left == right and text_of(old) == text_of(new):
        return "content_shape"
    inside_result = role_of(old) == "tool" or change.path.count(".content") > 1
    if after is MISSING and inside_result and len(left) > len(right):
        return "compaction"  # a result was emptied
    if before is not MISSING and after is not MISSING:
        was, now = "\n".join(texts_of(before)), "\n".join(texts_of(after))
        if was and now and setting.result and was_cleared(was, now, result=True):
            return "compaction"
        if was and now and same_but_whitespace(was, now):
            return "whitespace"
    return "message_edited"


def move_cause(
    move: Move, before: Sequence[Item], after: Sequence[Item], lead: int, sent: int | None = None
) -> str:
    """The cause word for items that were inserted, removed or replaced. ``lead``: leading system messages; ``sent``:
    how many of ``before`` were sent, the rest came back.
    """
    gone = before[move.at : move.at + move.gone]
    come = after[move.at : move.at + move.come]
    if _compactions(after) > _compactions(before[:sent]):
        return "compaction"  # an item that says so itself
    if move.kind == "inserted":
        return "system_moved" if move.at <= lead and _all_system(come) else "message_inserted"
    if move.kind == "removed":
        return _removal_cause(move, before, after, gone, lead)
    text = "\n".join(map(text_of, come[:4]))
    prompts = [text_of(item).strip() for item in gone if role_of(item) in _SYSTEM_ROLES]
    if prompts and all(prompt and prompt in text for prompt in prompts):
        return "system_moved"
    if looks_like_stub(text) and "message" in text.lower() and not looks_like_summary(text):
        return "history_trimmed"
    if looks_like_summary(text) or (len(gone) > len(come) and len(gone) >= 2):
        return "compaction"
    return "message_edited"


def _compactions(items: Sequence[Item]) -> int:
    return sum(_kind(item) == "compaction" for item in items)


def _all_system(items: Sequence[Item]) -> bool:
    return bool(items) and all(role_of(item) in _SYSTEM_ROLES for item in items)


def _removal_cause(
    move: Move, before: Sequence[Item], after: Sequence[Item], gone: Sequence[Item], lead: int
) -> str:
    if all(_kind(item) in _REASONING_TYPES for item in gone):
        return "reasoning_removed"
    if _all_system(gone) and move.at < lead:
        return "system_moved"
    head = lead
    while head < len(before) and role_of(before[head]) == "user":
        head += 1
    answered = any(role_of(item) == "assistant" for item in gone)
    if move.at == lead:
        # From the very start: old history, unless what stays begins with a user's message of its own.
        cut_open = move.at < len(after) and role_of(after[move.at]) in ("assistant", "tool")
        return "history_trimmed" if answered or cut_open else "message_removed"
    # Behind the opening messages, which windows often pin, whole exchanges are old history.
    return "history_trimmed" if answered and move.at <= head else "message_removed"


def schema_cause(change: Change, setting: Setting) -> str:
    """The cause word for a tool list that differs (see ``compare.tools_change``)."""
    if change.kind in ("order", "added", "removed"):
        return f"tool_{change.kind}"
    if change.kind == "text" and isinstance(change.old, str) and isinstance(change.new, str):
        word = text_cause(change.old, change.new, change.offset or 0, setting)
        return word if word in ("volatile_text", "random_value", "whitespace") else "tool_schema_changed"
    return (
        "json_key_order"
        if equal_json(_unordered(change.old), _unordered(change.new))
        else "tool_schema_changed"
    )


def _unordered(schema: Any) -> Any:
    """A schema with its ``required`` lists sorted: their order means nothing."""
    if isinstance(schema, Mapping):
        return {
            key: sorted(value, key=str)
            if key == "required" and isinstance(value, list)
            else _unordered(value)
            for key, value in schema.items()
        }
    if isinstance(schema, list):
        return [_unordered(value) for value in schema]
    return schema


def system_cause(change: Change, setting: Setting, elsewhere: Sequence[Item]) -> str:
    """The cause word for a system prompt that differs. ``elsewhere``: messages where its text may now or before stand."""
    if change.kind == "text" and isinstance(change.old, str) and isinstance(change.new, str):
        return text_cause(change.old, change.new, change.offset or 0, setting)
    if change.kind == "shape":
        return "content_shape"
    if change.kind == "media":
        return "image_changed"
    if change.kind == "part":
        was = "" if change.old is MISSING else "\n".join(texts_of(change.old))
        now = "" if change.new is MISSING else "\n".join(texts_of(change.new))
        if was and now and same_but_whitespace(was, now):
            return "whitespace"
        if not was:
            return "system_moved"  # a block that joined the system prompt while the conversation went on
        if not now and any(was.strip() and was.strip() in text_of(item) for item in elsewhere):
            return "system_moved"
    return "message_edited"
