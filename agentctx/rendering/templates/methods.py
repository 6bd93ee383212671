"""Methods of built-in values, as far as a template may call them: checked, metered, traced."""

from __future__ import annotations

import types
from typing import Any

from jinja2.exceptions import SecurityError
from markupsafe import Markup

from agentctx.rendering.templates.comparing import charge_arguments
from agentctx.rendering.templates.formats import check_format
from agentctx.rendering.templates.limits import PIECE_BYTES, Meter, size_of, text_size
from agentctx.rendering.templates.loops import Messages
from agentctx.rendering.templates.operations import check_replace, current_run, listed
from agentctx.rendering.templates.tracing import Traced, changed, cut, leaves, located, searched

_PARTS = frozenset(("strip", "lstrip", "rstrip", "removeprefix", "removesuffix"))
_SPLITS = frozenset(("split", "rsplit", "splitlines", "partition", "rpartition"))
_REMADE = frozenset(
    (
        "upper",
        "lower",
        "capitalize",
        "title",
        "casefold",
        "swapcase",
        "replace",
        "center",
        "ljust",
        "rjust",
        "zfill",
    )
)
_ASKS = frozenset(
    (
        *(
            "startswith",
            "endswith",
            "find",
            "rfind",
            "index",
            "rindex",
            "count",
            "isalnum",
            "isalpha",
            "isascii",
        ),
        *(
            "isdecimal",
            "isdigit",
            "isidentifier",
            "islower",
            "isnumeric",
            "isprintable",
            "isspace",
            "istitle",
            "isupper",
        ),
    )
)
_METHODS: dict[type, frozenset[str]] = {
    str: _PARTS | _SPLITS | _REMADE | _ASKS | {"join", "format", "format_map"},
    dict: frozenset(("get", "items", "keys", "values", "copy", "update", "pop", "setdefault")),
    list: frozenset(("index", "count", "copy", "append", "extend", "insert", "pop", "remove", "reverse")),
    tuple: frozenset(("index", "count")),
    int: frozenset(("bit_length", "is_integer")),
    float: frozenset(("is_integer",)),
}


def metered_method(function: Any) -> Any:
    """A callable as a template may call it: methods of built-in values are checked and traced, others are left alone."""
    meter = current_run().meter
    meter.step()
    owner, name = _method(function)
    for kind, allowed in _METHODS.items():
        if isinstance(owner, kind):
            if name not in allowed:
                raise SecurityError(f"templates can't call {kind.__name__}.{name}")
            if isinstance(owner, str):
                text = owner
                return lambda *args, **kwargs: string_method(text, name, function, args, kwargs)
            return lambda *args, **kwargs: _container_method(owner, name, function, args, kwargs)
    if name and (owner is None or isinstance(owner, types.ModuleType | type)):
        raise SecurityError(f"templates can't call {name}")
    return _dict if function is dict else function


def _method(function: Any) -> tuple[Any, str]:
    """Whose method it is, and its name; the name is empty for what is no method of a built-in value."""
    if type(function) is types.BuiltinMethodType:
        return function.__self__, function.__name__
    wrapped = getattr(function, "__wrapped__", function)  # Jinja's own str.format
    if type(wrapped) is types.BuiltinMethodType:
        return wrapped.__self__, wrapped.__name__
    owner = getattr(wrapped, "__self__", None)
    return (owner, wrapped.__name__) if isinstance(owner, Markup) else (None, "")


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    charge_arguments(args, kwargs, current_run().meter)
    return dict(*args, **kwargs)


def _container_method(
    owner: Any, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A method of a list, tuple, dict or number."""
    meter = current_run().meter
    charge_arguments(args, kwargs, meter)
    if isinstance(owner, dict):
        meter.charge(size_of(owner) if name in ("copy", "update") else 8)
    elif isinstance(owner, list | tuple) and name not in ("append", "pop"):
        size = size_of(owner) if not isinstance(owner, Messages) else 8
        looks = name in ("index", "count", "remove") and any(
            isinstance(arg, list | tuple | dict) for arg in args
        )
        meter.charge(size + (len(owner) * text_size(args, meter) if looks else 0))
    return function(*args, **kwargs)


_BACKWARDS = frozenset(("rfind", "rindex", "rsplit", "rpartition"))


def _charge_string_method(
    owner: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], meter: Meter
) -> None:
    meter.number(*args, *kwargs.values())
    meter.charge(size_of(owner))
    if name == "replace":
        check_replace(meter, owner, args, kwargs)
    elif name in ("center", "ljust", "rjust", "zfill"):
        meter.charge(4 * max((value for value in args if isinstance(value, int)), default=0))
    elif name in ("format", "format_map"):
        given = dict(args[0]) if name == "format_map" and args and isinstance(args[0], dict) else kwargs
        check_format(owner, args, given, meter)
    elif name in ("split", "rsplit", "splitlines", "title"):
        meter.charge(PIECE_BYTES * _pieces(owner, name, args, kwargs))
    if name in _BACKWARDS:  # these search from the end, in time that grows with both lengths
        needle = args[0] if args and isinstance(args[0], str) else ""
        meter.charge(len(owner) * len(needle) >> 6)


def _pieces(owner: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Number of strings that a split makes, at most."""
    if name == "splitlines":
        return sum(map(owner.count, "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")) + 1
    separator = args[0] if args else kwargs.get("sep")
    most = args[1] if len(args) > 1 else kwargs.get("maxsplit", -1)
    count = owner.count(separator) if isinstance(separator, str) and separator else len(owner) // 2
    return min(count, most) + 1 if isinstance(most, int) and most >= 0 else count + 1


def string_method(owner: str, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A method of a string."""
    meter = current_run().meter
    charge_arguments(args if name != "join" else (), kwargs, meter)
    _charge_string_method(owner, name, args, kwargs, meter)
    if name == "join":
        items = listed(args[0]) if args else []
        meter.charge(text_size(items, meter) + size_of(owner) * len(items))
        text = function(items)
        return searched(text, leaves(items)) if type(text) is str else text
    result = function(*args, **kwargs)
    if type(owner) is not Traced:
        if type(result) is str and name in ("format", "format_map"):
            return searched(result, leaves([*args, *kwargs.values()]))
        return result
    if name in _PARTS:
        return _part(owner, name, result)
    if name in _SPLITS:
        pieces = located(owner, result)
        return tuple(pieces) if isinstance(result, tuple) else pieces
    if name in _REMADE and type(result) is str:
        return changed(owner, result)
    return result


def _part(owner: Traced, name: str, result: str) -> str:
    """The origin of a stripped string: where it begins is known, so no search can go wrong."""
    if name in ("lstrip", "removeprefix"):
        start = len(owner) - len(result)
    elif name in ("rstrip", "removesuffix"):
        start = 0
    else:
        return located(owner, (result,))[0]
    return cut(owner, start, start + len(result))
