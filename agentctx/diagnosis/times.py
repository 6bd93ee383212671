"""Whether two written times differ by as much as passed between two requests."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_DAY = 86_400.0
_TIME = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2})(?:[.,]\d+)?)?\s?([ap])?", re.IGNORECASE)
_EPOCH = re.compile(r"1\d{9}(\d{3})?")
_AGO = re.compile(r"(\d+(?:[.,]\d+)?)\s?(ms|sec|min|hr|hour|day)", re.IGNORECASE)
_SECONDS = {"ms": 0.001, "sec": 1.0, "min": 60.0, "hr": 3600.0, "hour": 3600.0, "day": _DAY}


def _instant(text: str) -> tuple[float, float, bool] | None:
    """(seconds, precision in seconds, whether the day is known) of a written time."""
    try:
        moment = datetime.fromisoformat(text.strip().replace("_", "T"))
    except ValueError:
        pass
    else:
        if ":" in text or "T" in text.upper():
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            return moment.timestamp(), 1.0 if text.count(":") >= 2 else 60.0, True
    if match := _EPOCH.fullmatch(text.strip()):
        return float(text) / (1000 if match.group(1) else 1), 1.0, True
    if match := _AGO.match(text):
        unit = match.group(2).lower()
        return float(match.group(1).replace(",", ".")) * _SECONDS[unit], _SECONDS[unit], True
    if match := _TIME.search(text):
        hour, minute = int(match.group(1)), int(match.group(2))
        if (match.group(4) or "").lower() == "p" and hour < 12:
            hour += 12
        seconds = hour * 3600 + minute * 60 + int(match.group(3) or 0)
        return float(seconds), 1.0 if match.group(3) else 60.0, False
    return None


def moves_with(old: str, new: str, elapsed: float | None, *, assume: bool) -> bool:
    """Whether the text follows the clock: it advanced by about ``elapsed`` seconds.

    Where ``elapsed`` or the written time is unknown, the answer is ``assume``.
    """
    before, after = _instant(old), _instant(new)
    if elapsed is None or before is None or after is None:
        return assume
    passed = after[0] - before[0]
    if not (before[2] and after[2]):
        passed %= _DAY
        elapsed %= _DAY
    slack = max(before[1], after[1]) * 1.5 + 5 + 0.2 * elapsed
    return abs(passed - elapsed) <= slack
