"""CacheModel: what a given server would reuse of a prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from agentctx.rendering.prompt import TokenIds


@dataclass(frozen=True, slots=True)
class Prediction:
    """Tokens that a server would reuse, and what became of the others.

    ``cached`` + the sum of ``lost`` = the prompt's tokens. ``lost`` maps a reason (``first-difference``,
    ``block-rounding``, ``whole-prompt``, ``evicted``, ``window``, ``no-checkpoint``, ``salt``, ``pool-full``,
    ``slot-taken``, ``expired``, ``below-minimum``, …) to tokens. ``slot`` is the slot that served the turn, where the server has slots.
    """

    cached: int
    lost: tuple[tuple[str, int], ...]
    slot: int | None = None


@dataclass(frozen=True, slots=True)
class Arrival:
    """What a server knows of a turn besides its tokens.

    ``slot``/``cache_prompt``: llama-server's request fields. ``user_starts``: token positions at which user messages
    start (context checkpoints are placed there). ``salt``: texts under different salts never meet.
    ``at``: when it arrives, in seconds of the caller's clock; ``None``: unknown, and nothing is taken to have expired.
    ``blocks`` are the token ends of its content blocks, ``markers`` those of the marked ones with the life that each asks for
    (providers with cache markers).
    """

    slot: int | None = None
    cache_prompt: bool = True
    user_starts: tuple[int, ...] = ()
    salt: str | None = None
    at: float | None = None
    blocks: tuple[int, ...] = ()
    markers: tuple[tuple[int, str | None], ...] = ()


PLAIN = Arrival()


class CacheModel(Protocol):
    """One server's cache, advanced request by request."""

    @property
    def name(self) -> str: ...

    def predict(self, token_ids: TokenIds, arrival: Arrival = PLAIN) -> Prediction:
        """What the server would reuse if this prompt came now. Changes nothing."""
        ...

    def without_limits(self, token_ids: TokenIds, arrival: Arrival = PLAIN) -> int:
        """Tokens that the same rules would reuse if the server had never lost anything: no eviction, no taken slot,
        no lifetime. What lies between this and the prediction is the server's doing, what lies above it is rounding.
        """
        ...

    def commit(self, token_ids: TokenIds, reply_ids: TokenIds, arrival: Arrival = PLAIN) -> Prediction:
        """Serve the prompt and its reply; the last reply token is sampled but never read, so never cached."""
        ...
