"""Whether a finished prompt goes on from an earlier one, told by what of it still stands there."""

from __future__ import annotations

from collections.abc import Sequence

from agentctx.common_ends import common_start
from agentctx.diagnosis.texts import looks_like_summary, retells

_PROBES = 9


def likeness(old: str | Sequence[int], new: str | Sequence[int]) -> float:
    """How much of an earlier prompt a later one repeats, 0 to below 1; 0 when too little to be the same conversation."""
    if not isinstance(old, str) or not isinstance(new, str):
        left, right = _as_text(old), _as_text(new)
        return likeness(left, right) if left is not None and right is not None else 0.0
    shared = common_start(old, new)
    rest = len(old) - shared
    if rest < 400 and shared >= 0.9 * len(old):
        return 0.99 * shared / len(old)
    head = shared >= 0.1 * len(old)
    if not head and new.find(old[:64], 1) > 0:
        return 0.0  # the earlier prompt stands in the later one from its start: it is quoted
    # Behind the first difference: do pieces of the earlier prompt still stand in the later one? Where even the head
    # differs, they must stand about where they stood: a prompt that only quotes a conversation is another one.
    drift = len(new) if head else 256
    found = []
    for number in range(_PROBES):
        start = shared + (rest - 64) * (2 * number + 1) // (2 * _PROBES)
        if rest >= 64:
            low = max(0, start - drift, shared - 8)
            found.append(new.find(old[start : start + 64], low, start + 64 + drift) >= 0)
    if 2 * sum(found) > len(found) or (head and sum(found) > 1 and any(found[-2:])):
        # Most of it, or behind a common head the newest of it: the older part was dropped.
        return 0.9 * (shared + rest * sum(found) / _PROBES) / len(old)
    told = new[shared : shared + 4_000]
    if head and looks_like_summary(told) and retells(told[:600], old[shared:], 0.5):
        return 0.9 * shared / len(old)
    return 0.0


def _as_text(ids: str | Sequence[int]) -> str | None:
    """Token ids as the characters of those numbers, so that they can be compared as texts are; None for other lists."""
    if isinstance(ids, str):
        return None
    try:
        return "".join(map(chr, ids))
    except (TypeError, ValueError, OverflowError):
        return None
