"""The operations of the sandbox: what ``+``, filters, methods and loops do, metered and traced."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Iterable, Iterator, Sized
from contextvars import ContextVar
from functools import lru_cache, update_wrapper
from typing import TYPE_CHECKING, Any

from jinja2.exceptions import SecurityError
from markupsafe import Markup

from agentctx.rendering.templates.comparing import (
    COMPARISONS,
    charge_arguments,
    charge_comparison,
    compare,
)
from agentctx.rendering.templates.formats import percent
from agentctx.rendering.templates.limits import PIECE_BYTES, LimitError, Meter, nesting, size_of, text_size
from agentctx.rendering.templates.loops import Messages, Passes, items_of
from agentctx.rendering.templates.tracing import (
    Traced,
    added,
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

_STRINGS = (str, Traced)  # what most operands are; Markup goes its own way

RUN: ContextVar[RenderRun] = ContextVar("agentctx_template_run")


def current_run() -> RenderRun:
    """The rendering that is going on in this context."""
    return RUN.get()


# -------------------------------------------------------------------------------------------------------------- operators
def binary(operator: str, left: Any, right: Any, plain: Callable[[Any, Any], Any]) -> Any:
    """A binary operator: sized before it is done."""
    meter = RUN.get().meter
    if operator == "+" and type(left) in _STRINGS and type(right) in _STRINGS:
        meter.spend(size_of(left) + size_of(right))
        return added(left, right)
    meter.step()
    if operator == "%" and isinstance(left, str):
        return percent(left, right, meter)
    meter.integer(left, right)
    if operator == "+":
        meter.charge(size_of(left) + size_of(right))
        if isinstance(left, str) and isinstance(right, str) and not isinstance(left, Markup):
            return joined((left, right)) if not isinstance(right, Markup) else plain(left, right)
    elif operator == "*":
        for value, times in ((left, right), (right, left)):
            if isinstance(times, int) and not isinstance(value, int | float):
                meter.charge(max(size_of(value), 1) * max(times, 0))
    elif operator == "**" and isinstance(left, int) and isinstance(right, int):
        meter.number(right)
        if left.bit_length() * right > 2 * meter.limits.bits:
            raise LimitError(f"a power in the template has more than {2 * meter.limits.bits} bits")
    return plain(left, right)


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
        if isinstance(value, _NAMELESS) or _shows_address(type(value)):
            raise SecurityError(
                f"templates can't print a {type(value).__name__}: its text differs in every process"
            )
        text_size(value, RUN.get().meter)
    return str(value)


def _shows_address(kind: Any) -> bool:
    return kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__


_NAMELESS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.GeneratorType,
)


def escaped_later(value: Any) -> str:
    """``str(value)`` that will be escaped: that may make five characters of one."""
    text = written(value)
    RUN.get().meter.charge(5 * size_of(text))
    return text


def compared(left: Any, operation: str, right: Any) -> Any:
    """One comparison."""
    meter = RUN.get().meter
    if type(left) in _STRINGS and type(right) in _STRINGS:
        meter.spend(size_of(right) >> 3)  # as ``charge_comparison``
        return COMPARISONS[operation](left, right)
    return compare(left, operation, right, meter)


def bounded(value: Any) -> Any:
    """An operand of a chain of comparisons, or a key."""
    meter = RUN.get().meter
    meter.step()
    charge_arguments((value,), {}, meter)
    return value


def followed(value: Any, site: int) -> Any:
    """A site of a template that is followed."""
    run = RUN.get()
    return run.template.took(site, value, run.chars, written)


def metered_test(function: Callable[..., Any]) -> Callable[..., Any]:
    """A test (``is …``) whose operands are sized first."""
    lead = 1 if hasattr(function, "jinja_pass_arg") else 0

    def hooked(*args: Any, **kwargs: Any) -> Any:
        meter = RUN.get().meter
        values = args[lead:]
        charge_arguments(values[1:], kwargs, meter)
        if len(values) > 1:
            charge_comparison(values[0], values[1], meter)
        else:
            meter.step()
        return function(*args, **kwargs)

    return update_wrapper(hooked, function)


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
    run = RUN.get()
    if not isinstance(values, Messages):
        return run.begin_loop(number, listed(values), -1)
    items = items_of(values)
    run.meter.charge(8 * len(items))
    return run.begin_loop(number, items, values.offset)


# ---------------------------------------------------------------------------------------------------------------- filters
def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """JSON as transformers writes it: no HTML escapes, no ASCII escapes, key order kept."""
    run = RUN.get()
    meter = run.meter
    meter.step()
    if isinstance(separators, list):
        separators = tuple(separators)
    _check_json_options(meter, indent, separators)
    key = (id(value), ensure_ascii, indent, separators, sort_keys)
    known = run.json_texts.get(key)
    if known is not None:
        meter.charge(size_of(known))
        return known
    size = text_size(value, meter)
    wide = _separator_bytes(separators) + (indent or 0) * (nesting(value, meter) if indent else 0)
    meter.charge(size * (6 + wide // 4))
    if isinstance(value, Messages):
        value = list(value)
    # Separators are the template's own and may be large: nothing keeps them.
    writer = _json_writer if separators is None else _json_writer.__wrapped__
    write = writer(bool(ensure_ascii), indent, separators, bool(sort_keys), run.template.relaxed)
    text = write(value)
    made = traced_json(value, text, run.origins, write, sort_keys) if run.traced else text
    if id(value) in run.kept:
        run.json_texts[key] = made
    return made


@lru_cache(maxsize=64)
def _json_writer(
    ensure_ascii: bool, indent: int | None, separators: tuple[str, str] | None, sort_keys: bool, relaxed: bool
) -> Callable[[Any], str]:
    """``json.dumps`` with these options. ``relaxed``: what JSON doesn't have is written as a list, if it can be one."""
    return json.JSONEncoder(
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=list if relaxed else None,
    ).encode


def _check_json_options(meter: Meter, indent: object, separators: object) -> None:
    if indent is not None and not isinstance(indent, int):
        raise TypeError("the indent of tojson has to be a number")
    meter.number(indent)
    pair = separators if isinstance(separators, tuple) else ()
    if separators is not None and (len(pair) != 2 or not all(isinstance(each, str) for each in pair)):
        raise TypeError("the separators of tojson have to be two strings")


def _separator_bytes(separators: tuple[str, str] | None) -> int:
    return sum(map(size_of, separators)) if separators else 4


def _check_indent(meter: Any, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    width = kwargs.get("width", args[0] if args else 4)
    extra = width if isinstance(width, int) else size_of(width)
    if isinstance(value, str):
        meter.charge((value.count("\n") + 1) * (extra + PIECE_BYTES))


def check_replace(meter: Any, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Charge what replacing writes."""
    old = args[0] if args else kwargs.get("old", "")
    new = args[1] if len(args) > 1 else kwargs.get("new", "")
    if isinstance(value, str) and isinstance(old, str) and isinstance(new, str):
        times = value.count(old) if old else len(value) + 1
        meter.charge(times * size_of(new))


def _check_join(meter: Any, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    separator = args[0] if args else kwargs.get("d", "")
    meter.charge(text_size(value, meter))
    meter.charge(size_of(separator) * size_of(value) // 8)


def _check_escape(meter: Any, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    meter.charge(5 * size_of(value))


def _check_words(meter: Any, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Word by word: each one becomes a string of its own."""
    meter.charge(PIECE_BYTES // 2 * size_of(value) if isinstance(value, str) else 8)


def _check_sort(meter: Any, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Each item gets a key of its own."""
    meter.charge(
        PIECE_BYTES * len(value) if isinstance(value, Sized) and not isinstance(value, Messages) else 8
    )


def _check_tags(meter: Any, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Each comment that is cut out copies the whole text."""
    if isinstance(value, str):
        meter.charge(value.count("<") * size_of(value) >> 3)


def _check_items(meter: Any, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Items that don't exist before: characters, numbers of a range."""
    if isinstance(value, str | range):
        meter.charge(PIECE_BYTES * len(value))


def _check_text(meter: Any, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    meter.charge(text_size(value, meter) + text_size(args, meter) + text_size(kwargs, meter))


_CHECKS: dict[str, Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], None]] = {
    "indent": _check_indent,
    "replace": check_replace,
    "join": _check_join,
    **dict.fromkeys(("e", "escape", "forceescape", "urlencode"), _check_escape),
    **dict.fromkeys(("wordcount", "title"), _check_words),
    **dict.fromkeys(("list", "batch", "slice", "reverse", "map"), _check_items),
    **dict.fromkeys(("sort", "unique", "groupby", "dictsort"), _check_sort),
    "striptags": _check_tags,
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
        charge_arguments(rest, kwargs, meter)
        if name == "format":
            return percent(written(value), kwargs or rest, meter)
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
        if isinstance(result, str):
            meter.charge(size_of(result))
        elif isinstance(result, int):
            meter.integer(result)
        elif isinstance(result, list):
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
