"""The first difference between two items, two tool lists or two system prompts, and its place in the body.

What never reaches a prompt is no difference: cache markers, empty fields that come and go, ``status``. Objects of
the protocol (messages, parts, calls) have no key order; schemas and arguments have one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentctx.common_ends import common_start
from agentctx.diagnosis.views import Item, texts_of


class _Missing:
    def __repr__(self) -> str:
        return "(absent)"


MISSING: Any = _Missing()
"""Stands for a value that one side doesn't have."""

MARKERS = frozenset({"cache_control", "prompt_cache_breakpoint", "cachePoint"})
_NO_PROMPT = MARKERS | {
    "status", "annotations", "logprobs", "citations", "index", "refusal", "audio", "caller", "object",
}  # fmt: skip

# In this order the fields of an item are compared: the first that differs is the place.
_ITEM_FIELDS = (
    "id", "call_id", "name", "reasoning_content", "reasoning", "reasoning_details", "thinking_blocks", "content",
    "tool_calls", "function_call", "tool_call_id", "encrypted_content", "arguments", "input", "output", "summary",
    "action",
)  # fmt: skip
_PART_FIELDS = (
    "id", "tool_use_id", "name", "thinking", "signature", "data", "text", "input", "content", "image_url", "image",
    "source", "file", "file_id", "input_audio", "title", "context", "is_error", "encrypted_content",
)  # fmt: skip
_REASONING_FIELDS = frozenset({"reasoning_content", "reasoning", "reasoning_details", "thinking_blocks"})
_TEXT_FIELDS = frozenset(
    {"text", "thinking", "reasoning_content", "reasoning", "arguments", "output", "input"}
)
_MEDIA_FIELDS = frozenset({"image_url", "image", "source", "file", "file_id", "input_audio"})
MEDIA_TYPES = frozenset(
    {"image", "image_url", "input_image", "document", "file", "input_file", "input_audio", "audio", "video"}
)


@dataclass(frozen=True, slots=True)
class Change:
    """The first difference inside an item.

    ``path`` is the place in the body, ``offset`` the character in the text there, if it is a text.
    ``kind`` says what differs: ``text``, ``arguments``, ``id``, ``name``, ``reasoning``, ``shape``, ``part``,
    ``media``, ``role``, ``field`` or ``item``. ``old`` and ``new`` are the values there, or ``MISSING``.
    """

    path: str
    kind: str
    old: Any
    new: Any
    offset: int | None = None

    @property
    def place(self) -> str:
        return self.path if self.offset is None else f"{self.path}@{self.offset}"


def _filled(value: Any) -> bool:
    return value is not None and value != [] and value != ""


def same_ordered(left: Any, right: Any) -> bool:
    """Whether two JSON values would be written alike: key order and number types count, markers don't."""
    if type(left) is not type(right):
        return False
    if isinstance(left, Mapping):
        if left.keys() & MARKERS or right.keys() & MARKERS:
            left = {key: value for key, value in left.items() if key not in MARKERS}
            right = {key: value for key, value in right.items() if key not in MARKERS}
        return list(left) == list(right) and all(same_ordered(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same_ordered, left, right))
    return bool(left == right)


def item_change(old: Item, new: Item, path: str) -> Change | None:
    """The first difference between two items at ``path``; None when they give the same prompt."""
    if old is new or old == new:
        return _order_change(old, new, path)
    if old.get("role") != new.get("role") and not _implied(old, new, "role"):
        return Change(path, "role", old, new)
    if old.get("type", "message") != new.get("type", "message"):
        return Change(path, "item", old, new)
    responses_item = "type" in old or "type" in new
    for field in _ITEM_FIELDS:
        if field == "id" and not (responses_item and _filled(old.get(field)) and _filled(new.get(field))):
            continue  # ids of messages are bookkeeping; those of items count when both sides have one
        change = _field_change(old, new, field, path)
        if change is not None:
            return change
    return None


def _implied(old: Item, new: Item, key: str) -> bool:
    """Items of the Responses API may leave the role out where the type implies it."""
    return "type" in old and "type" in new and (key not in old or key not in new)


def _order_change(old: Item, new: Item, path: str) -> Change | None:
    """Equal items whose argument objects may still differ in key order or number type."""
    content, calls = old.get("content"), old.get("tool_calls")
    for index, part in enumerate(content if isinstance(content, list) else ()):
        if isinstance(part, Mapping) and isinstance(part.get("input"), Mapping):
            other = new["content"][index]["input"]
            if not same_ordered(part["input"], other):
                return Change(f"{path}.content[{index}].input", "arguments", part["input"], other)
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping) and isinstance(function.get("arguments"), Mapping):
            return _calls_change(calls, new["tool_calls"], f"{path}.tool_calls")
    return None


def _field_change(old: Item, new: Item, field: str, path: str) -> Change | None:
    a, b = old.get(field), new.get(field)
    if not _filled(a) and not _filled(b):
        return None
    here = f"{path}.{field}"
    if field in _REASONING_FIELDS:
        return _reasoning_change(old, new, field, here)
    if field == "content":
        return content_change(a, b, here)
    if field == "tool_calls":
        return _calls_change(a, b, here)
    if _filled(a) != _filled(b):
        kind = "id" if field.endswith("id") else "part" if field == "output" else "field"
        return Change(here, kind, a if _filled(a) else MISSING, b if _filled(b) else MISSING)
    if same_ordered(a, b):
        return None
    if field == "arguments" and isinstance(a, str) and isinstance(b, str):
        return Change(here, "arguments", a, b, common_start(a, b))
    if field in _TEXT_FIELDS and isinstance(a, str) and isinstance(b, str):
        return Change(here, "text", a, b, common_start(a, b))
    if field == "output" and isinstance(a, list) and isinstance(b, list):
        return content_change(a, b, here)
    if field in ("arguments", "input"):
        return Change(here, "arguments", a, b)
    if field == "output" and _joined(a) == _joined(b):
        return Change(here, "shape", a, b)
    if field.endswith("id"):
        return Change(here, "id", a, b)
    return Change(here, "name" if field == "name" else "field", a, b)


def _reasoning_change(old: Item, new: Item, field: str, here: str) -> Change | None:
    a, b = old.get(field), new.get(field)
    if isinstance(a, str) and isinstance(b, str) and a and b:
        return None if a == b else Change(here, "text", a, b, common_start(a, b))
    if _filled(a) == _filled(b):
        return None if same_ordered(a, b) else Change(here, "field", a, b)
    # Gateways give the same reasoning under two names; one that moved to the other name isn't gone.
    if any(_filled(old.get(other)) and _filled(new.get(other)) for other in _REASONING_FIELDS):
        return None
    return Change(here, "reasoning", a if _filled(a) else MISSING, b if _filled(b) else MISSING)


def _calls_change(old: Any, new: Any, here: str) -> Change | None:
    a = old if isinstance(old, list) else []
    b = new if isinstance(new, list) else []
    if not a or not b:
        return Change(here, "part", old if a else MISSING, new if b else MISSING)
    return _first_change(a, b, here, _call_change)


def _first_change(
    old: Sequence[Any], new: Sequence[Any], path: str, compare: Callable[[Any, Any, str], Change | None]
) -> Change | None:
    """The first difference between two lists, item by item; an item that only one of them has is a part."""
    for index in range(max(len(old), len(new))):
        here = f"{path}[{index}]"
        if index >= len(old) or index >= len(new):
            return Change(
                here,
                "part",
                old[index] if index < len(old) else MISSING,
                new[index] if index < len(new) else MISSING,
            )
        change = compare(old[index], new[index], here)
        if change is not None:
            return change
    return None


def _call_change(old: Any, new: Any, at: str) -> Change | None:
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return None if old == new else Change(at, "part", old, new)
    if old.get("id") != new.get("id"):
        return Change(f"{at}.id", "id", old.get("id", MISSING), new.get("id", MISSING))
    key = next((key for key in ("function", "custom") if key in old or key in new), None)
    if key is None:
        return None if same_ordered(old, new) else Change(at, "part", old, new)
    f, g = old.get(key), new.get(key)
    if not isinstance(f, Mapping) or not isinstance(g, Mapping):
        return None if f == g else Change(f"{at}.{key}", "field", f, g)
    if f.get("name") != g.get("name"):
        return Change(f"{at}.{key}.name", "name", f.get("name", MISSING), g.get("name", MISSING))
    name = "arguments" if "arguments" in f or "arguments" in g else "input"
    a, b = f.get(name, ""), g.get(name, "")
    if same_ordered(a, b):
        return None
    offset = common_start(a, b) if isinstance(a, str) and isinstance(b, str) else None
    return Change(f"{at}.{key}.{name}", "arguments", a, b, offset)


def _joined(value: Any) -> str:
    return "".join(texts_of(value))


def content_change(old: Any, new: Any, path: str) -> Change | None:
    """The first difference between two contents: strings or lists of parts."""
    if isinstance(old, str) and isinstance(new, str):
        return None if old == new else Change(path, "text", old, new, common_start(old, new))
    if not _filled(old) or not _filled(new):
        if not _filled(old) and not _filled(new):
            return None
        return Change(path, "part", old if _filled(old) else MISSING, new if _filled(new) else MISSING)
    if not isinstance(old, list) or not isinstance(new, list):
        if isinstance(old, Mapping) and isinstance(new, Mapping) and same_ordered(old, new):
            return None
        return Change(path, "shape" if _joined(old) == _joined(new) else "part", old, new)
    a, b = _parts(old), _parts(new)
    return _first_change(a, b, path, _part_change)


def _parts(content: Iterable[Any]) -> list[Any]:
    """The parts that enter a prompt: a part that is only a marker (Bedrock's ``cachePoint``) doesn't."""
    return [part for part in content if not (isinstance(part, Mapping) and part and part.keys() <= MARKERS)]


def _part_change(old: Any, new: Any, path: str) -> Change | None:
    if old == new and not (isinstance(old, Mapping) and isinstance(old.get("input"), Mapping)):
        return None
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return Change(path, "part", old, new)
    if old.get("type") != new.get("type"):
        return Change(path, "part", old, new)
    for field in _PART_FIELDS:
        change = _part_field_change(old, new, field, path)
        if change is not None:
            return change
    return None


def _part_field_change(old: Item, new: Item, field: str, path: str) -> Change | None:
    a, b = old.get(field), new.get(field)
    if not _filled(a) and not _filled(b):
        return None
    here = f"{path}.{field}"
    if field == "content":
        return content_change(a, b, here)
    if same_ordered(a, b):
        return None
    if field in _MEDIA_FIELDS:
        return Change(here, "media", a, b)
    if not _filled(a) or not _filled(b):
        if field == "is_error" and not a and not b:
            return None
        kind = "id" if field in ("id", "tool_use_id") else "field"
        return Change(here, kind, a if _filled(a) else MISSING, b if _filled(b) else MISSING)
    if field in ("text", "thinking") and isinstance(a, str) and isinstance(b, str):
        return Change(here, "text", a, b, common_start(a, b))
    if field == "input":
        return Change(here, "arguments", a, b)
    kinds = {"id": "id", "tool_use_id": "id", "name": "name"}
    return Change(here, kinds.get(field, "field"), a, b)


def text_change(old: Any, new: Any, path: str) -> Change | None:
    """The first difference between two system prompts: texts, lists of blocks or absent."""
    if not _filled(old) and not _filled(new):
        return None
    if isinstance(old, list) and isinstance(new, list):
        return content_change(old, new, path)
    if not _filled(old) or not _filled(new):
        return Change(path, "part", old if _filled(old) else MISSING, new if _filled(new) else MISSING)
    return content_change(old, new, path)


def tool_name(tool: Item) -> str:
    """The name under which a tool is declared, in any API."""
    function = tool.get("function")
    source = function if isinstance(function, Mapping) else tool
    name = source.get("name")
    return name if isinstance(name, str) else str(tool.get("type", ""))


def tools_change(old: Sequence[Item], new: Sequence[Item]) -> Change | None:
    """The first difference between two tool lists.

    ``kind`` is ``order``, ``added``, ``removed``, ``text`` (a description), ``schema`` or ``field``.
    """
    if old is new:
        return None
    before, after = [tool_name(tool) for tool in old], [tool_name(tool) for tool in new]
    if before != after:
        return _tool_names_change(before, after)
    for index, (a, b) in enumerate(zip(old, new, strict=True)):
        change = _tool_change(a, b, f"tools[{index}]")
        if change is not None:
            return change
    return None


def _tool_names_change(before: list[str], after: list[str]) -> Change:
    if sorted(before) == sorted(after):
        return Change("tools (order)", "order", before, after)
    index = next(
        (i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b),
        min(len(before), len(after)),
    )
    gone = [name for name in before if name not in after]
    come = [name for name in after if name not in before]
    if gone and come:
        # Both: the one that stands at the first difference names the change.
        removed = index < len(before) and before[index] in gone
    else:
        removed = bool(gone) or len(after) < len(before)
    if not gone and not come:
        gone, come = before, after  # a name that is declared twice
    return Change(f"tools[{index}]", "removed" if removed else "added", gone or MISSING, come or MISSING)


def _tool_change(old: Item, new: Item, path: str) -> Change | None:
    if same_ordered(old, new):
        return None
    a, b = old.get("function"), new.get("function")
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        path = f"{path}.function"
    else:
        a, b = old, new
    before, after = a.get("description"), b.get("description")
    if (before or after) and before != after:
        if isinstance(before, str) and isinstance(after, str):
            return Change(f"{path}.description", "text", before, after, common_start(before, after))
        return Change(f"{path}.description", "schema", before, after)
    for field in ("parameters", "input_schema"):
        if not same_ordered(a.get(field), b.get(field)):
            return Change(f"{path}.{field}", "schema", a.get(field, MISSING), b.get(field, MISSING))
    # What remains: another field of the declaration, or the order of the declaration's own fields.
    x, y = ({key: value for key, value in side.items() if _filled(value)} for side in (a, b))
    return None if same_ordered(x, y) else Change(path, "schema", x, y)
