"""Which conversation a request continues, found from its content alone.

Every conversation keeps its last requests as *states* that a later request may continue: extend, repeat, change, or
branch off from. Only the newest bodies are kept (``KeptBodies``); of older states remain the keys of their messages,
which still tell where a continuation changed, though not what.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from agentctx.common_ends import common_start
from agentctx.diagnosis.align import alike, movement
from agentctx.diagnosis.breakpoints import Marker
from agentctx.diagnosis.breaks import Reference, leading_equal
from agentctx.diagnosis.kinship import Kinship, is_opening, kinship, may_follow
from agentctx.diagnosis.likeness import likeness
from agentctx.diagnosis.prompts import find_prompt_break, is_question, shares_an_answer
from agentctx.diagnosis.texts import looks_like_summary, quotes, retells
from agentctx.diagnosis.views import Item, View, key_of, role_of, text_of
from agentctx.usage import Usage

Relation = Literal["new", "extends", "repeats", "changed", "branch"]

_TELLING = 24  # characters of a reply that is hardly given twice
_WHOLE = 3.0  # a prompt that stands whole at the start of another outranks all that is only much like it
_RECENT = 16  # states tried for a plain extension before any key is computed
_MAX_STATES = 2_000
_MAX_KEYS = 200_000
_MAX_CHARS = 12_000_000  # of kept bodies; as Python objects they take two to five bytes a character
_MAX_RENDERED = 5_000_000  # characters of requests whose prompts are kept, at five to seven bytes a character


@dataclass(slots=True)
class State:
    """The last request of a conversation (or of a branch of it).

    ``keys`` and ``sizes`` (characters) belong to the view's items; ``head`` is the size of tools and system prompt.
    ``reads`` is the largest cached count that the server ever reported here. ``known`` pairs the number of items of
    earlier requests, all of them still a prefix of this one, with their prompt tokens. ``tokens`` is the prompt under a
    target; the oldest are given up, and made again when they are needed.
    ``session`` is the conversation that the log itself names. ``opening`` counts the talk's items that were there when
    the conversation began. ``sent`` is how many times the very same request went out; ``continued``: one of the answers
    to it was gone on with already.
    """

    id: int
    conversation: int
    index: int
    at: float | None
    endpoint: str
    reference: Reference | None
    keys: array[int]
    sizes: array[int]
    head: int
    usage: Usage | None = None
    reply: str | Sequence[int] = ""
    reply_keys: tuple[int, ...] = ()
    markers: list[Marker] = field(default_factory=list)
    reads: int = 0
    lead: int = 0
    api: str = ""
    summary: str = ""
    session: str | None = None
    opening: int = 0
    sent: int = 1
    continued: bool = False
    known: list[tuple[int, int]] = field(default_factory=list)
    tokens: object = None

    @property
    def chars(self) -> int:
        """Characters of the whole request, as far as a model reads them."""
        return self.head + sum(self.sizes)


@dataclass(frozen=True, slots=True)
class Match:
    """The state that a request continues, and how. ``shared``: leading items that both have in common."""

    relation: Relation
    state: State | None = None
    shared: int = 0
    keys: array[int] | None = None


NEW = Match("new")


def keys_of(items: Iterable[Item]) -> array[int]:
    """The keys of items as an array of 64-bit numbers."""
    return array("q", map(key_of, items))


class Conversations:
    """All states of a log, found by content. Memory is bounded whatever the number of requests."""

    def __init__(
        self, max_states: int = _MAX_STATES, max_keys: int = _MAX_KEYS, max_chars: int = _MAX_CHARS
    ) -> None:
        self._states: OrderedDict[int, State] = OrderedDict()
        self._by_key: dict[int, int] = {}
        self._by_response: OrderedDict[str, int] = OrderedDict()
        self._limits = (max_states, max_keys, max_chars)
        self._kept_keys = 0
        self._kept_chars = 0
        self._bodies: OrderedDict[int, None] = OrderedDict()
        self._rendered: OrderedDict[int, int] = OrderedDict()
        self._next_state = 0
        self._next_conversation = 0

    def __len__(self) -> int:
        return len(self._states)

    @property
    def count(self) -> int:
        """Conversations seen so far."""
        return self._next_conversation

    @property
    def kept_bodies(self) -> int:
        """Requests whose whole body is kept."""
        return len(self._bodies)

    @property
    def kept_chars(self) -> int:
        """Characters of the kept bodies."""
        return self._kept_chars

    @property
    def kept_keys(self) -> int:
        """Keys of messages over all states."""
        return self._kept_keys

    def find(self, view: View, session: str | None = None) -> Match:
        """The state that this request continues, ``new`` when it continues none. ``session``: its name in the log."""
        linked = view.body.get("previous_response_id")
        if isinstance(linked, str) and linked in self._by_response:
            state = self._states.get(self._by_response[linked])
            if state is not None:
                return Match("extends", state, len(state.keys))
        if view.prompt is not None:
            return self._find_prompt(view, view.prompt)
        if not view.talk:
            return NEW
        return self._find_recent(view, session) or self._find_by_keys(view, session)

    def others_since(self, state: State) -> int:
        """Other conversations that used the same endpoint after this state's request."""
        return len(
            {
                other.conversation
                for other in self._states.values()
                if other.index > state.index
                and other.conversation != state.conversation
                and other.endpoint == state.endpoint
            }
        )

    # -- finding ---------------------------------------------------------------------------------------------

    def _recent(self, api: str) -> Iterable[State]:
        seen = 0
        for state in reversed(self._states.values()):
            if state.api == api:
                yield state
                seen += 1
                if seen >= _RECENT:
                    return

    def _find_recent(self, view: View, session: str | None) -> Match | None:
        """A recent state whose messages all stand at the start of this request, one turn earlier."""
        talk = view.talk
        longest: list[State] = []
        length = 0
        for state in self._recent(view.api):
            if state.reference is None:
                continue
            old = state.reference.view.talk
            if not length <= len(old) <= len(talk) or not old:
                continue
            if text_of(old[-1]) != text_of(talk[len(old) - 1]):
                continue
            shared, change = leading_equal(old, talk, "")
            if change is not None or shared < len(old) or not _one_turn(talk[shared:]):
                continue
            if not self._follows(state, view, shared, session):
                continue
            longest = [*longest, state] if shared == length else [state]
            length = shared
        return self._nearest(longest, view, length, session)

    def _find_by_keys(self, view: View, session: str | None) -> Match:
        keys = keys_of(view.talk)
        candidates = self._candidates(keys, view.api)
        longest: list[State] = []
        length = 1
        for state in candidates:
            talk = state.keys[state.lead :]
            if not length <= len(talk) <= len(keys) or keys[: len(talk)] != talk:
                continue
            if state.continued and not _one_turn(view.talk[len(talk) :]):
                continue
            if not self._follows(state, view, len(talk), session):
                continue
            longest = [*longest, state] if len(talk) == length else [state]
            length = len(talk)
        match = self._nearest(longest, view, length, session)
        if match is not None:
            return replace(match, keys=keys)
        best = self._closest(view, keys, candidates, session)
        return best or self._retold(view, keys, session) or replace(NEW, keys=keys)

    def _nearest(self, states: Sequence[State], view: View, shared: int, session: str | None) -> Match | None:
        """Of states with equally many messages the one that the request goes on from; the newest where it's all one."""
        if not states:
            return None
        state = states[0]
        if len(states) > 1:
            state = max(states, key=lambda other: _kinship(other, view, shared, session))
        return Match("repeats" if len(view.talk) == shared else "extends", state, shared)

    @staticmethod
    def _follows(state: State, view: View, shared: int, session: str | None) -> bool:
        """Whether a request may go on from a state with which it shares its leading messages."""
        if state.reference is None or not is_opening(view.talk[state.opening : shared]):
            return True
        return may_follow(state.reference, view, shared, _kinship(state, view, shared, session))

    def _candidates(self, keys: array[int], api: str) -> list[State]:
        ids = OrderedDict.fromkeys(self._by_key[key] for key in reversed(keys) if key in self._by_key)
        states = (self._states.get(number) for number in ids)
        return [state for state in states if state is not None and state.api == api]

    def _closest(
        self, view: View, keys: array[int], candidates: Sequence[State], session: str | None
    ) -> Match | None:
        """The candidate that has most in common with the request, and whether it was changed or branched off."""
        here = set(keys)
        best: Match | None = None
        best_weight = 0
        for state in candidates:
            old = state.keys[state.lead :]
            weights = [min(size, 400) + 8 for size in state.sizes[state.lead :]]
            weight = sum(w for key, w in zip(old, weights, strict=True) if key in here)
            weight += sum(64 for key in state.reply_keys if key in here)
            if weight <= best_weight:
                continue
            relation, shared = self._relation(view, keys, state)
            if relation is None:
                continue
            match = Match(relation, state, shared, keys)
            if self._belongs(state, view, match, session):
                best, best_weight = match, weight
        return best

    def _relation(self, view: View, keys: array[int], state: State) -> tuple[Relation | None, int]:
        old = state.keys[state.lead :]
        shared = 0
        for a, b in zip(old, keys, strict=False):
            if a != b:
                break
            shared += 1
        before: Sequence[Item]
        if state.reference is not None:
            reply = state.reference.choices[0] if state.reference.choices else ()
            before = [*state.reference.view.talk, *reply]
        else:
            before = ({},) * (len(old) + len(state.reply_keys))
        move = movement(before, [*old, *state.reply_keys], view.talk, keys, shared, len(old))
        if move.kind != "branch":
            return "changed", shared
        # A branch belongs to the conversation when it shares more than the opening question.
        answered = any(role_of(item) == "assistant" for item in view.talk[:shared])
        return ("branch", shared) if answered or shared == len(keys) else (None, shared)

    def _belongs(self, state: State, view: View, match: Match, session: str | None) -> bool:
        """Whether a request that isn't a plain extension is of the state's conversation: it has one of its answers."""
        keys = match.keys or ()
        said = {*state.keys[state.lead + state.opening :], *state.reply_keys}
        items = zip(view.talk, keys, strict=True)
        if any(key in said and role_of(item) == "assistant" for item, key in items):
            return True
        if match.relation == "branch" and not _kinship(state, view, match.shared, session).head:
            return state.reference is None
        return self._follows(state, view, match.shared, session)

    def _retold(self, view: View, keys: array[int], session: str | None) -> Match | None:
        """No message is the same: an edited opening, or a history that gave way to a summary."""
        talk = view.talk
        for state in self._recent(view.api):
            if state.reference is None:
                continue
            old = state.reference.view.talk
            if not old:
                continue
            if len(talk) > len(old) and alike(old[0], talk[0]) and role_of(old[0]) == role_of(talk[0]):
                if len(old) <= 2 and not state.reference.choices and self._follows(state, view, 0, session):
                    return Match("changed", state, 0, keys)
                if len(old) > 2 and alike(old[1], talk[1]):
                    return Match("changed", state, 0, keys)
            if len(old) >= 3 and self._summarised(old, state.reference.view, view):
                return Match("changed", state, 0, keys)
        return None

    @staticmethod
    def _summarised(old: Sequence[Item], before: View, after: View) -> bool:
        now = after.items[before.lead :]  # a summary may stand in a system message, too
        if len(now) > len(old) or before.model != after.model or before.lead > after.lead:
            return False
        for item in now[:3]:
            text = text_of(item)
            if role_of(item) == "assistant" or len(text) < 80:
                continue
            told = "\n".join(map(text_of, old))
            if len(text) >= 0.8 * len(told) or quotes(text, told):
                continue
            if looks_like_summary(text):
                if retells(text, told, 0.5):
                    return True
            elif len(text) >= 400 and retells(text, told):
                return True
        return False

    # -- finished prompts ------------------------------------------------------------------------------------

    def _find_prompt(self, view: View, prompt: str | Sequence[int]) -> Match:
        best: State | None = None
        best_score: tuple[float, ...] = (0.0,)
        for state in self._recent_prompts(view):
            old = state.reference.view.prompt if state.reference is not None else None
            if old is None or type(old) is not type(prompt) or not old:
                continue
            if prompt[: len(old)] == old:
                score: tuple[float, ...] = (_WHOLE, len(old))
            elif best_score[0] < _WHOLE:
                score = _prompt_score(old, state.reply, prompt)
            else:
                continue
            if score > best_score:
                best, best_score = state, score
        if best is None:
            return NEW
        if best_score[0] == _WHOLE:
            same = best.reference is not None and best.reference.view.prompt == prompt
            return Match("repeats" if same else "extends", best)
        if best.reference is None:
            return Match("changed", best)
        found = find_prompt_break(best.reference.view, best.reply, view)
        if found is not None and is_question(view) and found.word != "compaction":
            return NEW
        if found is not None:
            return Match("changed", best)
        return Match("branch", best) if shares_an_answer(best.reference.view, view) else NEW

    def _recent_prompts(self, view: View) -> Iterable[State]:
        return [state for state in reversed(self._states.values()) if state.api == view.api][:64]

    # -- keeping ---------------------------------------------------------------------------------------------

    def open_conversation(self) -> int:
        """A number for a conversation that begins."""
        self._next_conversation += 1
        return self._next_conversation

    def put(self, state: State, replaces: State | None, response_id: str | None) -> None:
        """Keep a state; ``replaces`` is the one that it extends or changes, which is forgotten."""
        if replaces is not None and replaces.id in self._states:
            self._forget(replaces, keep=set(state.keys))
        self._states[state.id] = state
        self._kept_keys += len(state.keys)
        for key in (*state.keys[state.lead :], *state.reply_keys):
            self._by_key[key] = state.id
        if state.reference is not None:
            self._bodies[state.id] = None
            self._kept_chars += state.chars
        self.keep_tokens(state, state.tokens)
        if response_id:
            self._by_response[response_id] = state.id
            if len(self._by_response) > self._limits[0]:
                self._by_response.popitem(last=False)
        self._shrink(state)

    def keep_tokens(self, state: State, tokens: object) -> None:
        """Keep a state's prompt as the newest one, and give up the oldest where there are too many."""
        state.tokens = tokens
        if tokens is None or state.id not in self._states:
            return
        self._rendered[state.id] = state.chars
        self._rendered.move_to_end(state.id)
        while sum(self._rendered.values()) > _MAX_RENDERED and len(self._rendered) > 1:
            self._states[self._rendered.popitem(last=False)[0]].tokens = None

    def new_id(self) -> int:
        """A number for a state."""
        self._next_state += 1
        return self._next_state

    def _forget(self, state: State, keep: set[int]) -> None:
        del self._states[state.id]
        self._kept_keys -= len(state.keys)
        self._drop_body(state)
        for key in (*state.keys, *state.reply_keys):
            if key not in keep and self._by_key.get(key) == state.id:
                del self._by_key[key]

    def _drop_body(self, state: State) -> None:
        self._rendered.pop(state.id, None)
        if state.id in self._bodies:
            del self._bodies[state.id]
            self._kept_chars -= state.chars
            state.reference = None
            state.tokens = None

    def _shrink(self, newest: State) -> None:
        max_states, max_keys, max_chars = self._limits
        while self._kept_chars > max_chars and len(self._bodies) > 1:
            oldest = next(iter(self._bodies))
            self._drop_body(self._states[oldest])
        while len(self._states) > 1 and (len(self._states) > max_states or self._kept_keys > max_keys):
            oldest = next(iter(self._states))
            if oldest == newest.id:
                break
            self._forget(self._states[oldest], keep=set())


def _kinship(state: State, view: View, shared: int, session: str | None) -> Kinship:
    named = None if session is None or state.session is None else session == state.session
    return kinship(state.reference, view, shared, named)


def _prompt_score(
    old: str | Sequence[int], reply: str | Sequence[int], new: str | Sequence[int]
) -> tuple[float, ...]:
    """How much speaks for a prompt's going on from an earlier one that doesn't stand at its start.

    First the reply to it, then how much of it is repeated, then how far both begin alike.
    """
    score = likeness(old, new)
    if not score or not isinstance(old, str) or not isinstance(new, str):
        return (score,)
    carried = isinstance(reply, str) and len(reply) >= _TELLING and reply in new
    return 1.0 + carried, round(score, 3), common_start(old, new)


def _one_turn(added: Sequence[Item]) -> bool:
    """Whether the added items hold at most one turn of the assistant: nothing was skipped in between."""
    turns = 0
    inside = False
    for item in added:
        answering = role_of(item) == "assistant"
        turns += answering and not inside
        inside = answering
    return turns <= 1
