"""PrefixCache: the one small interface through which the rest of the project reuses computed tokens.

Paged blocks, the radix tree and llama-server's slots implement it, and both the engine and prediction use
it, so that the two can't drift apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
import numpy.typing as npt

TokenIds = npt.NDArray[np.int32] | Sequence[int]


class Lost(Enum):
    """Why a token of the prompt is not reused."""

    FIRST_DIFFERENCE = "first-difference"  # no cached sequence continues with this token
    BLOCK_ROUNDING = "block-rounding"  # equal to cached text, but not a whole block or page
    WHOLE_PROMPT = "whole-prompt"  # the last token must be computed to get logits
    EVICTED = "evicted"  # was cached once, and its memory was taken
    WINDOW = "window"  # a sliding-window layer no longer holds what it needs
    NO_CHECKPOINT = "no-checkpoint"  # a memory that can't be rolled back has no state at this point
    SALT = "salt"  # the same text is cached under another salt, adapter or extra key
    POOL_FULL = "pool-full"  # no memory to bring it back or to hold it
    SLOT_TAKEN = "slot-taken"  # another conversation took the slot that held it
    DISABLED = "disabled"  # the request or the cache forbids reuse


@dataclass(frozen=True, slots=True)
class Match:
    """The answer to a lookup: ``hit_tokens`` + the sum of ``lost`` = the prompt's tokens.

    ``stop`` is the reason at the place where the hit ended (``None`` for an empty prompt).
    """

    hit_tokens: int
    lost: tuple[tuple[Lost, int], ...] = ()
    stop: Lost | None = None


@dataclass(frozen=True, slots=True)
class CacheStats:
    """Counters since the start or the last reset. Tokens and blocks are never mixed in one field."""

    requests: int
    prompt_tokens: int
    hit_tokens: int
    cached_tokens: int  # tokens that a lookup could find now
    capacity_tokens: int | None  # None: unlimited
    evicted_tokens: int


class Lease(Protocol):
    """What one admitted request holds until it is released."""

    @property
    def match(self) -> Match: ...


class PrefixCache(Protocol):
    """Match, commit, release, stats."""

    def match(self, token_ids: TokenIds, *, salt: str | None = None) -> Match:
        """The longest reusable prefix of a prompt, and why it stops there. Changes nothing."""
        ...

    def commit(self, token_ids: TokenIds, *, salt: str | None = None) -> Lease:
        """Admit a prompt: pin what it hits, take memory for the rest. Raises ``MemoryError`` if it can't fit, changing nothing."""
        ...

    def release(self, lease: Lease, output_ids: TokenIds = ()) -> None:
        """End a request that generated ``output_ids``. The last of them was sampled but never read, so it is never cached."""
        ...

    def stats(self) -> CacheStats: ...
