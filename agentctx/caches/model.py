"""CacheModel: what a given server would reuse of a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from agentctx.rendering.prompt import TokenIds


@dataclass(frozen=True, slots=True)
class Prediction:
    """Tokens that a server would reuse, and what became of the others.

    ``cached`` + the sum of ``lost`` = the prompt's tokens. ``lost`` maps a reason (``first-difference``,
    ``block-rounding``, ``whole-prompt``, ``evicted``, ``window``, ``no-checkpoint``, ``salt``, ``pool-full``) to tokens.
    """

    cached: int
    lost: tuple[tuple[str, int], ...]


class CacheModel(Protocol):
    """One server's cache, advanced request by request."""

    @property
    def name(self) -> str: ...

    def predict(self, token_ids: TokenIds) -> Prediction:
        """What the server would reuse if this prompt came now. Changes nothing."""
        ...

    def commit(self, token_ids: TokenIds, reply_ids: TokenIds) -> Prediction:
        """Serve the prompt and its reply; the last reply token is sampled but never read, so never cached."""
        ...
