"""The operations of the sandbox: what ``+``, filters, methods and loops do, metered and traced."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from functools import update_wrapper
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import SecurityError
from markupsafe import Markup

from agentctx.rendering.templates.limits import LimitError, size_of, text_size
from agentctx.rendering.templates.loops import Messages, Passes
from agentctx.rendering.templates.tracing import (
    Traced,
    changed,
    cut,
    joined,
    leaves,
    located,
    searched,
    traced_json,
)

if TYPE_CHECKING:
    from agentctx.rendering.templates.template import RenderRun

RUN: ContextVar[RenderRun] = ContextVar("agentctx_template_run")


def current_run() -> RenderRun:
    """The rendering that is going on in this context."""
    return RUN.get()


# -------------------------------------------------------------------------------------------------------------- operators
def binary(operator: str, left: Any, right: Any, plain: Callable[[Any, Any], Any]) -> Any:
    """A binary operator: sized before it is done."""
    meter = RUN.get().meter
    meter.step()
    if operator == "+":
        meter.charge(size_of(left) + size_of(right))
        if isinstance(left, str) and isinstance(right, str) and not isinstance(left, Markup):
            return joined((left, right)) if not isinstance(right, Markup) else plain(left, right)
        return plain(left, right)
    if operator == "*":
        for value, times in ((left, right), (right, left)):
            if isinstance(times, int) and not isinstance(value, int | float):
                meter.charge(max(size_of(value), 1) * max(times, 0))
            elif isinstance(times, int) and isinstance(value, int):
                meter.charge(size_of(value) + size_of(times))
        return plain(left, right)
    if operator == "**":
        meter.number(left, right)
        if isinstance(left, int) and isinstance(right, int):
            meter.charge(left.bit_length() * max(right, 0) >> 3)
        return plain(left, right)
    if operator == "%" and isinstance(left, str):
        return percent(left, right)
    return plain(left, right)


_WIDTH = re.compile(r"\d{5,}|\*")


def percent(form: str, values: Any) -> Any:
    """``form % values`` with no unbounded width."""
    meter = RUN.get().meter
    if _WIDTH.search(form):
        raise LimitError("a format in the template has a width that is too large or not fixed")
    meter.charge(size_of(form) + form.count("%") * 16_384 + text_size(values, meter))
    text = form % values
    return searched(text, leaves(values)) if type(text) is str else text


def output_joined(parts: Iterable[str]) -> str:
    """Joins what a macro or a block wrote. Also Jinja's own ``concat``."""
    run = RUN.get()
    strings = list(parts)
    run.meter.charge(sum(map(size_of, strings)))
    return joined(strings)


def join_operator(values: list[Any]) -> str:
    """``a ~ b``."""
    run = RUN.get()
    run.meter.step()
    strings = [written(value) for value in values]
    run.meter.charge(sum(map(size_of, strings)))
    return joined(strings)


def written(value: Any) -> str:
    """``str(value)``, sized first when the value has parts."""
    if isinstance(value, str):  # Markup stays Markup
        return value
    if not isinstance(value, int | float):
        text_size(value, RUN.get().meter)
    return str(value)


def stepped(value: Any) -> Any:
    """The result of a comparison."""
    RUN.get().meter.step()
    return value


def sliced(value: Any, start: Any, stop: Any, step: Any) -> Any:
    """``value[start:stop:step]``."""
    meter = RUN.get().meter
    meter.step()
    meter.charge(size_of(value) if not isinstance(value, Messages) else 8)
    part = value[slice(start, stop, step)]
    if type(value) is Traced and step in (None, 1):
        first, end, _ = slice(start, stop).indices(len(value))
        return cut(value, first, max(first, end))
    return part


# ------------------------------------------------------------------------------------------------------------------ loops
def iterate(values: Any) -> Passes:
    """The items of an inner loop."""
    run = RUN.get()
    return Passes(listed(values), run)


def listed(values: Any) -> list[Any]:
    """The items of an iterable, counted."""
    meter = RUN.get().meter
    meter.charge(size_of(values) * 8 if isinstance(values, str | range) else 0)
    items = list(values)
    meter.charge(8 * len(items))
    return items


def metered_generator(values: Iterator[Any]) -> Iterator[Any]:
    """What a lazy filter yields, item by item."""
    meter = RUN.get().meter
    for value in values:
        meter.step()
        meter.charge(size_of(value) if isinstance(value, list) else 8)
        yield value


def resume_loop(values: Any, number: int) -> Passes:
    """The items of top-level loop ``number``."""
    return RUN.get().begin_loop(number, listed(values))


# ---------------------------------------------------------------------------------------------------------------- filters
def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it: no HTML escapes, no ASCII escapes, key order kept."""
    run = RUN.get()
    meter = run.meter
    meter.step()
    meter.number(indent)
    options: dict[str, Any] = {
        "ensure_ascii": ensure_ascii,
        "indent": indent,
        "separators": separators,
        "sort_keys": sort_keys,
    }
    key = (id(value), ensure_ascii, indent, separators, sort_keys)
    known = run.json_texts.get(key)
    if known is not None:
        meter.charge(size_of(known))
        return known
    size = text_size(value, meter)
    meter.charge(6 * size * (1 + (indent or 0) // 4))
    if isinstance(value, Messages):
        value = list(value)
    text = json.dumps(value, **options, default=list if run.template.relaxed else None)
    made = traced_json(value, text, run.origins, options) if run.traced else text
    if id(value) in run.kept:
        run.json_texts[key] = made
    return made


def _check_indent(meter: Any, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    width = kwargs.get("width", args[0] if args else 4)
    extra = width if isinstance(width, int) else size_of(width)
    if isinstance(value, str):
        meter.charge((value.count("\n") + 1) * extra)


def _check_replace(meter: Any, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    old = args[0] if args else kwargs.get("old", "")
    new = args[1] if len(args) > 1 else kwargs.get("new", "")
    if isinstance(value, str) and isinstance(old, str) and isinstance(new, str):
        times = value.count(old) if old else len(value) + 1
        meter.charge(times * size_of(new))


def _check_join(meter: Any, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    separator = args[0] if args else kwargs.get("d", "")
    meter.charge(text_size(value, meter))
    meter.charge(size_of(separator) * size_of(value) // 8)


def _check_text(meter: Any, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    meter.charge(text_size(value, meter) + text_size(args, meter) + text_size(kwargs, meter))


_CHECKS: dict[str, Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], None]] = {
    "indent": _check_indent,
    "replace": _check_replace,
    "join": _check_join,
}
# Filters that write their value out as text, or keep a text of each item for sorting.
_WRITES = frozenset(
    (
        *(
            "string",
            "sum",
            "escape",
            "e",
            "forceescape",
            "urlencode",
            "safe",
            "groupby",
            "sort",
            "unique",
            "min",
            "max",
        ),
        *(
            "dictsort",
            "upper",
            "lower",
            "title",
            "capitalize",
            "trim",
            "center",
            "truncate",
            "wordcount",
            "striptags",
        ),
        *("indent", "replace", "filesizeformat"),
    )
)
_SAME = frozenset(
    ("default", "d", "first", "last", "min", "max", "attr", "string", "list", "items", "dictsort")
)
_CHANGES = frozenset(("upper", "lower", "title", "capitalize", "replace", "indent", "center", "truncate"))


def metered_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Jinja's filter with its cost checked first and the origin of its text kept."""
    check = _CHECKS.get(name)
    # Filters that take the context, the environment or the evaluation context get the value as second argument.
    lead = 1 if hasattr(function, "jinja_pass_arg") else 0

    def hooked(*args: Any, **kwargs: Any) -> Any:
        run = RUN.get()
        meter = run.meter
        meter.step()
        value, rest = args[lead] if len(args) > lead else None, args[lead + 1 :]
        meter.number(*rest, *kwargs.values())
        if name == "format":
            return percent(written(value), kwargs or rest)
        if (
            name == "join"
            and isinstance(value, Iterable)
            and not isinstance(value, str | dict | list | tuple)
        ):
            value = listed(value)
            args = (*args[:lead], value, *rest)
        if name in _WRITES and not (type(value) in (str, Traced) and not rest):
            _check_text(meter, value, rest, kwargs)
        if check is not None:
            check(meter, value, rest, kwargs)
        meter.charge(size_of(value) if not isinstance(value, Messages) else 8)
        result = function(*args, **kwargs)
        if isinstance(result, list):
            meter.charge(8 * len(result))
        elif isinstance(result, types.GeneratorType):
            return metered_generator(result)
        if name in _SAME or type(result) is not str or not run.traced:
            return result
        return _filter_origin(name, value, rest, kwargs, result)

    return update_wrapper(hooked, function)


def _filter_origin(name: str, value: Any, rest: tuple[Any, ...], kwargs: dict[str, Any], result: str) -> str:
    if type(value) is Traced:
        if name in ("trim", "strip"):
            return located(value, (result,))[0]
        return changed(value, result) if name in _CHANGES else searched(result, (value,))
    if name == "join" and isinstance(value, list | tuple):
        return searched(result, leaves(value))
    return result


# ---------------------------------------------------------------------------------------------------------------- methods
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
    RUN.get().meter.step()
    if type(function) is types.BuiltinMethodType:
        owner, name = function.__self__, function.__name__
    else:
        wrapped = getattr(function, "__wrapped__", None)
        if type(wrapped) is not types.BuiltinMethodType:
            return function
        owner, name = wrapped.__self__, wrapped.__name__  # Jinja's own str.format
    for kind, allowed in _METHODS.items():
        if isinstance(owner, kind):
            if name not in allowed:
                raise SecurityError(f"templates can't call {kind.__name__}.{name}")
            if isinstance(owner, str):
                text = owner
                return lambda *args, **kwargs: string_method(text, name, function, args, kwargs)
            return function
    if owner is None or isinstance(owner, types.ModuleType | type):
        raise SecurityError(f"templates can't call {name}")
    return function


def string_method(owner: str, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A method of a string."""
    meter = RUN.get().meter
    meter.number(*args, *kwargs.values())
    meter.charge(size_of(owner))
    if name == "replace":
        _check_replace(meter, owner, args, kwargs)
    elif name in ("center", "ljust", "rjust", "zfill"):
        meter.charge(4 * max((value for value in args if isinstance(value, int)), default=0))
    elif name == "join":
        items = listed(args[0]) if args else []
        meter.charge(text_size(items, meter) + size_of(owner) * len(items))
        text = function(items)
        return searched(text, leaves(items)) if type(text) is str else text
    elif name in ("format", "format_map"):
        if _WIDTH.search(owner):
            raise LimitError("a format in the template has a width that is too large or not fixed")
        meter.charge((text_size(args, meter) + text_size(kwargs, meter)) * max(1, owner.count("{")))
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
