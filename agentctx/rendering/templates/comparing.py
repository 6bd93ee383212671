"""Comparisons and keys that can't run away.

Lists that hold the same list twice, forty levels deep, are small in memory, but comparing two of them or hashing a tuple of
them takes 2⁴⁰ steps inside one operation of the interpreter. So values with parts are sized as a tree before they are compared or hashed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from jinja2.runtime import Undefined

from agentctx.rendering.templates.limits import Meter, size_of, text_size

_PARTS = (list, tuple, dict, set, frozenset)


def _contains(left: Any, right: Any) -> bool:
    return left in right


def _lacks(left: Any, right: Any) -> bool:
    return left not in right


COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
    "in": _contains,
    "notin": _lacks,
}


def charge_comparison(left: Any, right: Any, meter: Meter) -> None:
    """Charge for comparing the two, or for looking for one in the other."""
    meter.step()
    if isinstance(left, _PARTS):
        if not isinstance(right, _PARTS):
            return  # unequal at a glance
        meter.charge(text_size(left, meter) * max(1, len(right) if _looks_inside(left, right) else 1))
    elif isinstance(right, list | tuple | str):
        meter.charge(size_of(right) >> 3)


def _looks_inside(left: Any, right: Any) -> bool:
    """Whether elements of ``right`` can be compared with all of ``left``."""
    return any(isinstance(item, _PARTS) for item in right) if len(right) <= 64 else True


def compare(left: Any, operation: str, right: Any, meter: Meter) -> Any:
    """One comparison of the template."""
    charge_comparison(left, right, meter)
    return COMPARISONS[operation](left, right)


def charge_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any], meter: Meter) -> None:
    """Charge for arguments with parts: a function may compare them, hash them or write them into an error."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, _PARTS):
            meter.charge(text_size(value, meter))


def surely_equal(old: Any, new: Any, budget: int = 10_000) -> bool:
    """Whether two values are equal, as far as a bounded walk can tell: ``False`` when it would take longer."""
    pairs = [(old, new)]
    while pairs:
        left, right = pairs.pop()
        budget -= 1
        if left is right:
            continue
        if budget <= 0 or type(left) is not type(right):
            return False
        if isinstance(left, list | tuple):
            if len(left) != len(right) or len(left) > budget:
                return False
            pairs.extend(zip(left, right, strict=True))
        elif isinstance(left, dict):
            if len(left) != len(right) or len(left) > budget or list(left) != list(right):
                return False
            pairs.extend(zip(left.values(), right.values(), strict=True))
        elif not isinstance(left, Undefined) and (not isinstance(left, str | int | float) or left != right):
            return False
    return True
