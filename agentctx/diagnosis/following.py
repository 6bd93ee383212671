"""A request that is known to follow another has to extend it: there is no going another way.

In a log a request that leaves the one before it and repeats nothing behind that place is taken as a branch, because another
conversation may begin there. A caller who says that the two belong together leaves no such doubt.
"""

from __future__ import annotations

from agentctx.diagnosis.breaks import Reference, find_break, turn_off
from agentctx.diagnosis.excerpt import excerpt
from agentctx.diagnosis.exchange import RecordedCall
from agentctx.diagnosis.findings import Finding
from agentctx.diagnosis.views import reply_items, view_of


def left_off(previous: RecordedCall, current: RecordedCall, *, turn: int, target: str) -> Finding | None:
    """The finding for a request that leaves an earlier one in a way that a log's diagnosis calls a branch; else None.

    ``turn`` is the later request's index, for the finding.
    """
    old, new = view_of(previous), view_of(current)
    if old.prompt is not None or new.prompt is not None:
        return None
    reference = Reference(old, reply_items(previous))
    if find_break(reference, new) is not None:
        return None
    found = turn_off(reference, new)
    if found is None:
        return None
    gone = len(new.items) <= found.item
    return Finding(
        cause="message_removed" if gone else "message_edited",
        verdict="broken",
        conversation=1,
        turn=turn,
        place=found.place,
        zone=found.zone,
        was=excerpt(found.was, found.at),
        now=excerpt(found.now, found.at),
        line=current.line,
        file=current.file,
        target=target,
        turns=[turn],
    )
