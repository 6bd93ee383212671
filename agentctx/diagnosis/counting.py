"""Counting: each turn's prompt rendered under a target that has a renderer, and served by its cache model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentctx.diagnosis.conversations import Conversations, State
from agentctx.diagnosis.targets import Target
from agentctx.diagnosis.tokens import Account, Rendered, Served, account, add_reply, render_turn, serve
from agentctx.diagnosis.turns import Turn
from agentctx.diagnosis.views import Item, View
from agentctx.errors import InputError, RenderError

_MAX_NOTES = 50


@dataclass(frozen=True, slots=True)
class Counts:
    """A turn's tokens. ``account`` compares it with the turn before it, ``served`` is what the cache model says, if there is one."""

    rendered: Rendered
    account: Account | None = None
    served: Served | None = None

    @property
    def prompt(self) -> int:
        """Tokens of the prompt."""
        return len(self.rendered.prompt)

    @property
    def reused(self) -> int:
        """Tokens that are reused: as the cache model says, else what the prompt has in common with the one before it."""
        if self.served is not None:
            return self.served.reused
        return self.account.reused if self.account is not None else 0


class Counting:
    """Counts the turns of a log. ``notes`` name those that could not be counted."""

    def __init__(self, target: Target, conversations: Conversations) -> None:
        self._target = target
        self._conversations = conversations
        self._cache = target.cache() if target.cache is not None else None
        self.notes: list[str] = []

    def count(self, turn: Turn) -> Counts | None:
        """The tokens of a turn; None for a finished prompt, and for a request that the renderer refuses."""
        shared = turn.leading[0] if turn.leading is not None else 0
        try:
            before = self._before(turn.before)
            rendered = self._with_reply(turn.view, before, shared, turn.choices)
        except (RenderError, InputError) as error:
            if len(self.notes) < _MAX_NOTES:
                self.notes.append(
                    f"{turn.name}: not counted, the renderer {self._target.name} refused it: {error}"
                )
            return None
        if rendered is None:
            return None
        served = serve(self._cache, rendered, turn.view.body) if self._cache is not None else None
        return Counts(rendered, account(before, rendered, served) if before is not None else None, served)

    def _with_reply(
        self, view: View, before: Rendered | None, shared: int, choices: Sequence[Sequence[Item]]
    ) -> Rendered | None:
        rendered = render_turn(self._target, view, before, shared)
        if rendered is not None and self._target.renderer is not None:
            add_reply(self._target.renderer, rendered, view, choices)
        return rendered

    def _before(self, state: State | None) -> Rendered | None:
        """The prompt of the request before; made again where it was given up to save memory."""
        if state is None:
            return None
        if state.tokens is None and state.reference is not None:
            made = self._with_reply(state.reference.view, None, 0, state.reference.choices)
            self._conversations.keep_tokens(state, made)
        return state.tokens if isinstance(state.tokens, Rendered) else None
