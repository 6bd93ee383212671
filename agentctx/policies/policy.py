"""Policy: what turns a History into the Request of this turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agentctx.messages import Message, Request

if TYPE_CHECKING:
    from agentctx.history import History

CountTokens = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Dropped:
    """A message that the request leaves out or replaces.

    ``index`` is its place in the whole log (``History.messages``, system message first); ``tokens`` what it held.
    """

    index: int
    tokens: int
    how: str  # "removed", "cleared", "summarized", "offloaded"


@dataclass(frozen=True, slots=True)
class SideRequest:
    """A request that a policy made on its own, such as for a summary, and the reply. Its tokens are paid too.

    ``asking`` is ``own-prefix`` when the request extends the conversation's last one, so that the same cache serves it, or
    ``fresh``. With ``stand_in`` nothing was sent: the reply was made without a model, and the request says what would
    have been.
    """

    request: Request
    reply: Message
    asking: str
    stand_in: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """A policy's answer for one turn.

    ``dropped``: everything of the log that is not in the request as it was appended, by ascending index.
    ``rewrites_at``: index of the first message of the previous request that this one changes or moves, or
    ``None`` when the request extends the previous one.
    ``rewritten``: tokens that are paid again for it: what stands from there on, the turn's own new messages left out.
    ``compacted``: this turn opened a new epoch. ``stand_in``: a summary in the request is a deterministic stand-in.
    ``problem``: why a compaction that was due did not happen (a summarizer failed); the request is as without it.
    ``asked``: requests for summaries that this turn made before its own.
    """

    request: Request
    dropped: tuple[Dropped, ...] = ()
    rewrites_at: int | None = None
    rewritten: int = 0
    compacted: bool = False
    stand_in: bool = False
    problem: str | None = None
    asked: tuple[SideRequest, ...] = ()


class Policy(Protocol):
    """Decides what of the history the model reads this turn. One instance serves one conversation."""

    @property
    def name(self) -> str: ...

    def turn(self, history: History, count: CountTokens) -> Turn:
        """The request for the next model call. ``count`` gives the tokens of a text."""
        ...

    async def aturn(self, history: History, count: CountTokens) -> Turn:
        """The same for asynchronous callers: a policy that asks a model for a summary may wait for it."""
        ...
