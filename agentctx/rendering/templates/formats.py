"""``%`` and ``format``: what they may write is bounded before they write it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from string import Formatter
from typing import Any

from agentctx.rendering.templates.limits import LimitError, Meter, size_of, text_size
from agentctx.rendering.templates.tracing import leaves, searched

_WIDTH = re.compile(r"\d{5,}|\*")
_WIDEST = 10_000  # a width or precision of four digits
_NO_FIXED_WIDTH = "a format in the template has a width that is too large or not fixed"


def percent(form: str, values: Any, meter: Meter) -> Any:
    """``form % values`` with no unbounded width."""
    if _WIDTH.search(form):
        raise LimitError(_NO_FIXED_WIDTH)
    count, size = form.count("%"), text_size(values, meter)
    # A name may be used as often as the form likes, a value of a tuple only once.
    meter.charge(
        size_of(form) + count * _WIDEST + size * (max(count, 1) if isinstance(values, Mapping) else 1)
    )
    text = form % values
    return searched(text, leaves(values)) if type(text) is str else text


def check_format(form: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], meter: Meter) -> None:
    """Charge what ``form.format(*args, **kwargs)`` writes. Raises ``LimitError`` for a width that isn't fixed."""
    fields = 0
    wide = 0
    try:
        for _, field, spec, _ in Formatter().parse(form):
            if field is None:
                continue
            fields += 1
            if spec:
                if "{" in spec or _WIDTH.search(spec):
                    raise LimitError(_NO_FIXED_WIDTH)
                wide += 1
            if fields % 1024 == 0:
                meter.step()
    except ValueError:
        return  # format itself says what is wrong
    meter.charge(fields * (text_size(args, meter) + text_size(kwargs, meter)) + wide * _WIDEST)
