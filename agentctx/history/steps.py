"""A history's state and its file, kept in step: what is taken in memory is what stands in the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from agentctx.history import storage
from agentctx.history.journal import Journal
from agentctx.history.records import State, encode

if TYPE_CHECKING:
    from agentctx.history.history import History


class Steps:
    """The state of a history, and the steps that change it, each written down before it is taken.

    An interruption (Ctrl-C, say) may come at any point of a step. A step that is not in the file by then is not taken.
    One that is in the file, and not known here to be taken to its end, is taken from there before anyone reads the state.
    """

    def __init__(self, state: State, journal: Journal | None, history_of: Callable[[State], History]) -> None:
        """Begin with the state that ``journal``, if there is one, holds."""
        self._state, self._journal, self._history_of = state, journal, history_of
        self._taken = journal.records if journal else 0

    @property
    def state(self) -> State:
        """What the history knows. Inside a step use the state that :meth:`step` gives."""
        self._settle()
        return self._state

    @contextmanager
    def step(self, do: str, **values: object) -> Iterator[State]:
        """Write a step down, if there is a file, then let it be taken on the state that is given."""
        state = self.state
        if self._journal is not None:
            self._journal.write({"do": do, **{key: encode(value) for key, value in values.items()}})
        yield state
        if self._journal is not None:
            self._taken = self._journal.records

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._journal is None:
            return
        try:
            self._settle()
        finally:
            self._journal.close()

    def _settle(self) -> None:
        journal = self._journal
        if journal is not None and self._taken != journal.records:
            state = storage.replayed(journal, self._history_of)
            assert state is not None, "the first record was written before there was a history"
            self._state, self._taken = state, journal.records
