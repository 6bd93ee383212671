"""Turn: one call of a log together with the state that it continues, and where it leaves that state's request."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from agentctx.diagnosis.breakpoints import Marker
from agentctx.diagnosis.breaks import (
    Break,
    Leading,
    Reference,
    carries_reply,
    find_break,
    leading_equal,
    turn_off,
)
from agentctx.diagnosis.conversations import Match, State, keys_of
from agentctx.diagnosis.exchange import RecordedCall
from agentctx.diagnosis.findings import Conversation
from agentctx.diagnosis.prompts import carries_prompt_reply, find_prompt_break, prompt_turn_off
from agentctx.diagnosis.server import Server
from agentctx.diagnosis.views import Item, View, behind, is_linked, text_of, texts_of
from agentctx.usage import Usage


@dataclass(frozen=True, slots=True)
class Turn:
    """One call with all that is known of it before it is judged.

    ``index`` counts the log's calls from 0. ``leading`` is how many leading items the call shares with the state's
    request, and the change behind them; None where there is nothing to compare. ``choices``: the replies that the server
    gave. ``known``: it is known to follow that request, not found to.
    """

    call: RecordedCall
    index: int
    view: View
    match: Match
    markers: list[Marker]
    usage: Usage | None
    server: Server
    conversation: Conversation
    choices: tuple[tuple[Item, ...], ...] = ()
    leading: Leading | None = None
    known: bool = False

    @property
    def before(self) -> State | None:
        """The state that the call continues."""
        return self.match.state

    @property
    def elapsed(self) -> float | None:
        """Seconds since that state's request, None when unknown."""
        before = self.before
        if before is None or before.at is None or self.call.at is None:
            return None
        return self.call.at - before.at

    @property
    def name(self) -> str:
        """File and line, for messages."""
        return f"{self.call.file or 'request'}:{self.call.line or self.index + 1}"


def follow(state: State, view: View) -> Match:
    """The match of a request that is known to follow a state."""
    if state.reference is None or view.prompt is not None:
        return Match("changed", state)
    old = state.reference.view.talk
    shared, change = leading_equal(old, view.talk, "")
    whole = change is None and shared == len(old)
    return Match("extends" if whole else "changed", state, shared)


def whole_view(match: Match, view: View) -> View:
    """The view with the history that the server keeps for it, where the request names it and the log holds it."""
    state = match.state
    if state is None or state.reference is None or not is_linked(view) or match.relation != "extends":
        return view
    reply = state.reference.choices[0] if state.reference.choices else ()
    return behind(view, (*state.reference.view.items, *reply))


def leading_of(state: State | None, view: View) -> Leading | None:
    """What a request and a state's request have in common at their start, items only."""
    if state is None or state.reference is None or view.prompt is not None:
        return None
    return leading_equal(state.reference.view.items, view.items, view.path)


def break_of(turn: Turn) -> Break | None:
    """The first break between a call and the one before it in its conversation."""
    state = turn.before
    if state is None:
        return None
    if state.reference is None:
        return _break_by_keys(turn)
    if turn.view.prompt is not None:
        return find_prompt_break(state.reference.view, state.reply, turn.view, turn.elapsed)
    if is_linked(turn.view) or turn.match.relation == "branch":
        # The history lies with the server, or is left on purpose: only what stands before it can break.
        return find_break(_head_only(state.reference), _without_items(turn.view), turn.elapsed)
    return find_break(state.reference, turn.view, turn.elapsed, turn.leading, follows=turn.known)


def _head_only(reference: Reference) -> Reference:
    return Reference(_without_items(reference.view))


def _without_items(view: View) -> View:
    """The view with nothing but model, tools, system prompt and parameters."""
    return View(
        api=view.api,
        body=view.body,
        model=view.model,
        tools=view.tools,
        system=view.system,
        system_path=view.system_path,
        items=view.items[: view.lead],
        path=view.path,
        lead=view.lead,
    )


def _break_by_keys(turn: Turn) -> Break | None:
    """The break of a conversation whose earlier body isn't kept any more: item and kind, without the text."""
    if turn.match.relation != "changed":
        return None
    index = turn.match.shared + turn.view.lead
    place = f"{turn.view.path}[{index}]"
    return Break("message_edited", place, "messages", item=index)


def turned_off(state: State, view: View) -> Break | None:
    if state.reference is None:
        return None
    if view.prompt is not None:
        return prompt_turn_off(state.reference.view, view)
    return turn_off(state.reference, view)


def goes_on_with_reply(state: State, view: View) -> bool:
    if state.reference is None:
        return False
    if view.prompt is not None:
        return carries_prompt_reply(state.reference.view, state.reply, view)
    return carries_reply(state.reference, view)


def keys_and_sizes(match: Match, view: View) -> tuple[array[int], array[int]]:
    """Keys and sizes of the view's items; those of shared items are taken over."""
    state = match.state
    if view.prompt is not None:
        return array("q"), array("q", [len(view.prompt)])
    if (
        state is None
        or state.reference is None
        or match.relation not in ("extends", "repeats")
        or match.keys is not None
    ):
        talk = match.keys if match.keys is not None else keys_of(view.talk)
        keys = keys_of(view.items[: view.lead]) + talk
        return keys, array("q", (len(text_of(item)) for item in view.items))
    keys = keys_of(view.items[: view.lead]) + state.keys[state.lead :]
    sizes = array("q", (len(text_of(item)) for item in view.items[: view.lead])) + state.sizes[state.lead :]
    rest = view.items[len(keys) :]
    keys.extend(keys_of(rest))
    sizes.extend(len(text_of(item)) for item in rest)
    return keys, sizes


def head_size(view: View, before: State | None) -> int:
    if before is not None and before.reference is not None:
        old = before.reference.view
        if old.tools == view.tools and old.system == view.system:
            return before.head
    system = sum(map(len, texts_of(view.system))) if view.system else 0
    return system + sum(len(str(tool)) for tool in view.tools)
