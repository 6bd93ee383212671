"""Keeping a provider's JSON exactly: default forms, and a shape where an item differs from its default form.

Every API module knows one default form for each message, part, call and tool. An item that came in that form needs
nothing more. An item that came in another form (other key order, unknown fields, other block order) leaves its
*shape* in ``extra_json`` under ``KEY``: the item itself, with every value that agentctx has a name for replaced by a
reference. Filling the references gives the item back, byte for byte, and follows the value if it changed meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentctx.errors import InputError
from agentctx.messages import Message, Params, TextPart, Tool, ToolCall, canonical_json

KEY = "agentctx:wire"
_REFERENCE = "agentctx:ref"

Json = Any
Kept = Message | Tool | ToolCall | TextPart | Params


class Misfit(Exception):
    """A shape refers to something that its message has no longer: the default form is used instead."""


def ref(*path: str | int) -> dict[str, list[str | int]]:
    """A reference, to stand in a shape for the value at ``path``."""
    return {_REFERENCE: list(path)}


def fill(shape: Json, value_of: Callable[[list[Any]], Json]) -> Json:
    """The shape with every reference replaced by ``value_of(path)``, which raises ``Misfit`` when there is none."""
    if isinstance(shape, dict):
        if len(shape) == 1 and _REFERENCE in shape:
            return value_of(shape[_REFERENCE])
        return {key: fill(item, value_of) for key, item in shape.items()}
    if isinstance(shape, list):
        return [fill(item, value_of) for item in shape]
    return shape


def same(left: Json, right: Json) -> bool:
    """Whether two JSON values are equal to the last byte: key order, and 1 against 1.0 against true, included."""
    return canonical_json(left) == canonical_json(right)


def check_reserved(body: Json) -> None:
    """Raise ``InputError`` when a body uses a field name that marks references and hints here."""
    text = canonical_json(body)
    for name in (KEY, _REFERENCE):
        if f'"{name}":' in text:
            raise InputError(f"the field name {name!r} is reserved", field=name, remedy="rename the field")


def extras_of(item: Kept) -> dict[str, Any]:
    """All of ``extra_json``, parsed."""
    if item.extra_json is None:
        return {}
    value = json.loads(item.extra_json)
    return value if isinstance(value, dict) else {}


def hint_of(item: Kept, api: str) -> dict[str, Any]:
    """What this API's import left on the item; empty when another API's, or none, made it."""
    hint = extras_of(item).get(KEY, {})
    return hint if isinstance(hint, dict) and hint.get("api") == api else {}


def unknown_of(item: Kept, api: str) -> dict[str, Any]:
    """The fields of the source that agentctx has no name for, if they came from this API."""
    extras = extras_of(item)
    hint = extras.pop(KEY, None)
    return extras if isinstance(hint, dict) and hint.get("api") == api else {}


def packed(api: str, unknown: Mapping[str, Any], **hint: Any) -> str | None:
    """``extra_json`` for unknown fields and a hint; ``None`` when there is neither."""
    if not unknown and not hint:
        return None
    return canonical_json({**unknown, KEY: {"api": api, **hint}})


def without(item: Mapping[str, Any], *known: str) -> dict[str, Any]:
    """The fields of an object that are not among ``known``."""
    return {key: value for key, value in item.items() if key not in known}


def need_object(value: Json, where: str) -> dict[str, Any]:
    """The value, which must be an object. Raises ``InputError`` naming ``where``."""
    if not isinstance(value, dict):
        raise InputError(f"an object is expected, not {kind_of(value)}", field=where)
    return value


def need_list(value: Json, where: str) -> list[Any]:
    """The value, which must be a list. Raises ``InputError`` naming ``where``."""
    if not isinstance(value, list):
        raise InputError(f"a list is expected, not {kind_of(value)}", field=where)
    return value


def need_text(value: Json, where: str) -> str:
    """The value, which must be a string. Raises ``InputError`` naming ``where``."""
    if not isinstance(value, str):
        raise InputError(f"a string is expected, not {kind_of(value)}", field=where)
    return value


def kind_of(value: Json) -> str:
    """The JSON name of a value's type."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def ordered(body: Mapping[str, Any], keys: Sequence[str] | None) -> dict[str, Any]:
    """The body with its keys in the given order; keys not named keep their place at the end."""
    if keys is None:
        return dict(body)
    return {key: body[key] for key in keys if key in body} | {
        key: value for key, value in body.items() if key not in keys
    }
