"""Times of logs, in seconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any


def seconds(value: Any) -> float | None:
    """ISO 8601 text (UTC where it names no zone), or a number of seconds, milli-, micro- or nanoseconds.

    ``None`` for anything else.
    """
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        return _from_text(value.strip())
    if not isinstance(value, (int, float)) or not 0 <= value < 1e20:
        return None
    # 1e11 seconds lie in the year 5138: larger numbers count a smaller unit.
    for limit, unit in ((1e11, 1.0), (1e14, 1e3), (1e17, 1e6)):
        if value < limit:
            return float(value) / unit
    return float(value) / 1e9


def _from_text(text: str) -> float | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            return seconds(float(text))
        except ValueError:
            return None
    try:
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (OverflowError, ValueError):
        return None
