"""Lining up two message lists behind their first difference: was an item edited, inserted, removed or replaced?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

from agentctx.diagnosis.texts import (
    equal_json,
    json_difference,
    looks_like_summary,
    quotes,
    retells,
    shared_share,
)
from agentctx.diagnosis.views import Item, answered_ids, call_ids, calls_of, role_of, text_of

MoveKind = Literal["edited", "inserted", "removed", "replaced", "branch"]

# Behind this many items the search for a common continuation gives up: a break that far is a replacement.
_REACH = 4096
_ALIKE = 0.5
_ASKING = frozenset({"user", "tool"})  # who speaks last in a request
_TELLING = 32  # characters of a message that is hardly said twice


@dataclass(frozen=True, slots=True)
class Move:
    """What happened at item ``at``: ``gone`` items of the earlier list gave way to ``come`` items of the later.

    ``branch``: the later list goes another way from here and repeats nothing behind it; nothing is paid again.
    """

    kind: MoveKind
    at: int
    gone: int = 0
    come: int = 0


def movement(
    before: Sequence[Item],
    before_keys: Sequence[int],
    after: Sequence[Item],
    after_keys: Sequence[int],
    at: int,
    sent: int,
) -> Move:
    """How ``after`` goes on from item ``at``, the first that differs from ``before``.

    ``before`` is the earlier request's items and then the server's reply, which begins at ``sent``. The keys are
    those of ``views.key_of``, one for each item.
    """
    a, b = before_keys[at : at + _REACH], after_keys[at : at + _REACH]
    if not b:
        return Move("branch", at, gone=len(before) - at)
    if not a or a[0] == b[0]:
        return Move("edited", at, 1, 1)
    gone, come = _meeting(a, b, before[at:], after[at:])
    if gone == 0 and come > 0:
        return Move("inserted", at, come=come)
    if come == 0 and gone > 0:
        return Move("removed", at, gone=gone)
    if gone > 0:
        pairs = zip(before[at : at + gone], after[at : at + come], strict=False)
        if gone == come and all(role_of(old) == role_of(new) for old, new in pairs):
            return Move("edited", at, gone, come)
        return Move("replaced", at, gone, come)
    return _no_meeting(before, after, at, sent)


def _meeting(
    a: Sequence[int], b: Sequence[int], items: Sequence[Item], others: Sequence[Item]
) -> tuple[int, int]:
    """The nearest pair of offsets at which both lists go on alike; (-1, -1) when they never do.

    ``items`` are those of ``a``, ``others`` those of ``b``.
    """
    places: dict[int, list[int]] = {}
    for j, key in enumerate(b):
        places.setdefault(key, []).append(j)
    best = (-1, -1)
    nearest = len(a) + len(b)
    for i, key in enumerate(a):
        if i >= nearest:
            break
        for j in places.get(key, ()):
            if i + j >= nearest:
                break
            if _goes_on(a, b, i, j, items[i], others[j]):
                best, nearest = (i, j), i + j
                break
    return best


def _goes_on(a: Sequence[int], b: Sequence[int], i: int, j: int, item: Item, other: Item) -> bool:
    """Whether equal items at ``i`` and ``j`` are the same history and no chance.

    Two in a row are. One at an end is when it says something of its own, not just "ok" or "go on", and when it is the
    very same call, or the result of it.
    """
    if i + 1 < len(a) and j + 1 < len(b):
        return a[i + 1] == b[j + 1]
    if len(text_of(item)) >= _TELLING or not item:
        return True
    ids = (call_ids(item), answered_ids(item))
    return any(ids) and ids == (call_ids(other), answered_ids(other))


def _no_meeting(before: Sequence[Item], after: Sequence[Item], at: int, sent: int) -> Move:
    dropped = before[at:sent]
    # First: a newer summary in place of an older one is much like it.
    for count, item in enumerate(after[at : at + 4], start=1):
        text = text_of(item)
        if role_of(item) not in ("assistant", "tool") and len(dropped) >= 2 and _sums_up(text, dropped):
            return Move("replaced", at, len(before) - at, count)
    old, new = before[at], after[at]
    last = at == sent - 1 and at == len(after) - 1 and role_of(new) in _ASKING
    if role_of(old) == role_of(new) and alike(old, new) and not last:
        return Move("edited", at, 1, 1)
    # The newest message of both, too: nothing stood behind it that could be sent again.
    return Move("branch", at, len(before) - at, len(after) - at)


def _sums_up(text: str, dropped: Sequence[Item]) -> bool:
    if looks_like_summary(text):
        return True
    if len(text) < 200 or len(dropped) < 4:
        return False
    said = "\n".join(map(text_of, dropped))
    return retells(text, said) and not quotes(text, said)


def sent_again(old: Sequence[Hashable], new: Sequence[Hashable]) -> list[bool]:
    """Which items of the later list were paid before: those of the earlier one, and edited ones.

    An item counts as often as it stood in the earlier list. Edited are unknown items in front of a known one, as many
    as the earlier list's items that are gone.
    """
    left = Counter(old)
    kept = []
    for item in new:
        known = left[item] > 0
        left[item] -= known
        kept.append(known)
    gone = left.total()
    last = max((index for index, known in enumerate(kept) if known), default=-1)
    for index in range(last):
        if gone and not kept[index]:
            kept[index], gone = True, gone - 1
    return kept


def same_calls(old: Item, new: Item) -> bool:
    """Whether both items make the same tool calls: by identifier, or by name and meaning of the arguments."""
    calls, others = list(calls_of(old)), list(calls_of(new))
    if not calls or [name for name, _ in calls] != [name for name, _ in others]:
        return False
    ids = call_ids(old)
    if ids and ids == call_ids(new):
        return True
    return all(
        equal_json(left, right) or json_difference(left if isinstance(left, str) else "", right) is not None
        if isinstance(right, str)
        else equal_json(left, right)
        for (_, left), (_, right) in zip(calls, others, strict=True)
    )


def alike(old: Item, new: Item) -> bool:
    """Whether one item is another version of the other: the same calls or results, or mostly the same text."""
    if same_calls(old, new):
        return True
    answers = answered_ids(old)
    if answers and answers == answered_ids(new):
        return True
    left, right = text_of(old).strip(), text_of(new).strip()
    if not left or not right:
        return False
    if shared_share(left, right) >= _ALIKE:
        return True
    # A part was added to or cut from the text.
    shorter, longer = sorted((left, right), key=len)
    return len(shorter) >= 24 and shorter in longer
