"""Whether two requests that open alike are of one conversation.

An opening alone shows nothing: the same first message goes to helpers that judge it or give it a title, to other models,
to several samples, and it comes from other users and on other days.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agentctx.diagnosis.align import alike
from agentctx.diagnosis.breaks import Reference, leading_equal
from agentctx.diagnosis.compare import text_change, tools_change
from agentctx.diagnosis.texts import shared_share
from agentctx.diagnosis.views import Item, View, call_ids, key_of, role_of, text_of, texts_of

_ALIKE = 0.5


class Kinship(NamedTuple):
    """What ties a request to an earlier one; of two earlier ones it goes on from the greater.

    ``session``: the log names one conversation for both, ``other_session`` two. ``reply``: the request carries the
    reply to the earlier one. ``head``: model, tools and system prompt are the same. ``reworded``: it carries that reply
    in other words.
    """

    session: bool = False
    reply: bool = False
    head: bool = False
    reworded: bool = False
    other_session: bool = False


def is_opening(shared: Sequence[Item]) -> bool:
    """Whether shared messages hold no answer: then anyone may have sent them."""
    return not any(role_of(item) == "assistant" for item in shared)


def kinship(before: Reference | None, after: View, shared: int, same_session: bool | None) -> Kinship:
    """What ties a request to an earlier one with which it shares ``shared`` leading messages.

    ``same_session``: whether the log gives both the same name; None where it names one of them at most.
    """
    session, other = same_session is True, same_session is False
    if before is None:
        return Kinship(session=session, other_session=other)
    answer = _answer(after.talk[shared:])
    return Kinship(
        session=session,
        reply=any(_is_among(answer, reply) for reply in before.choices),
        head=same_head(before.view, after),
        reworded=any(alike(old, new) for reply in before.choices for old in reply for new in answer),
        other_session=other,
    )


def may_follow(before: Reference, after: View, shared: int, kin: Kinship) -> bool:
    """Whether a request that has no more than an opening in common with an earlier one may go on from it."""
    if kin.reply:
        return True
    if kin.other_session and is_opening(after.talk[:shared]):
        return False
    if kin.head:
        return True
    if len(after.talk) == shared:
        return False  # the same opening under another head
    if before.choices:
        return kin.reworded
    return _likely_head(before.view, after)


def same_head(old: View, new: View) -> bool:
    """Whether the same stands before all messages: model, tools and system prompt, markers left out."""
    if old.model != new.model or tools_change(old.tools, new.tools) is not None:
        return False
    if old.lead != new.lead or text_change(old.system, new.system, "") is not None:
        return False
    return leading_equal(old.items[: old.lead], new.items[: new.lead], "")[1] is None


def _likely_head(old: View, new: View) -> bool:
    """Whether a later request of one conversation may have this head: one thing about it changed, not everything."""
    before, after = _head_text(old), _head_text(new)
    if before == after:
        return True
    return old.model == new.model and shared_share(before, after) >= _ALIKE


def _head_text(view: View) -> str:
    return "\n".join([*texts_of(view.system), *map(text_of, view.items[: view.lead])])


def _answer(added: Sequence[Item]) -> list[Item]:
    """The items of the assistant's turn with which a request goes on."""
    answer: list[Item] = []
    for item in added:
        if role_of(item) == "assistant":
            answer.append(item)
        elif answer:
            break
    return answer


def _is_among(answer: Sequence[Item], reply: Sequence[Item]) -> bool:
    """Whether an answer holds an item of a reply: the same text, or calls with the same identifiers."""
    keys = {key_of(item) for item in reply}
    ids = {ident for item in reply for ident in call_ids(item)}
    return any(key_of(item) in keys or not ids.isdisjoint(call_ids(item)) for item in answer)
