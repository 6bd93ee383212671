"""How far two texts or two sequences are the same, from their beginning or from their end."""

from __future__ import annotations

from collections.abc import Sequence


def common_start(left: Sequence[object], right: Sequence[object], known: int = 0) -> int:
    """How many leading elements (characters of a text) are equal. ``known``: at least so many are.

    Both are of one kind: ``str``, ``tuple`` or ``list``. Slices are compared, so identical elements cost what memory costs.
    """
    if known == 0 and isinstance(left, str) and isinstance(right, str) and right.startswith(left):
        return len(left)  # what mostly happens, and nothing has to be copied
    limit = min(len(left), len(right))
    start, step = known, 64
    while start < limit and left[start : start + step] == right[start : start + step]:
        start, step = start + step, step * 2
    low, high = start, min(start + step, limit) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return min(low, limit)


def common_end(left: str, right: str, limit: int | None = None) -> int:
    """Number of equal characters at the end of both texts, at most ``limit``."""
    longest = min(len(left), len(right)) if limit is None else min(limit, len(left), len(right))
    end, step = 0, 64
    while end < longest:
        more = min(step, longest - end)
        if (
            left[len(left) - end - more : len(left) - end]
            != right[len(right) - end - more : len(right) - end]
        ):
            break
        end, step = end + more, step * 2
    else:
        return end
    low, high = end, end + more
    while high - low > 1:
        middle = (low + high) // 2
        if left[len(left) - middle : len(left) - end] == right[len(right) - middle : len(right) - end]:
            low = middle
        else:
            high = middle
    return low
