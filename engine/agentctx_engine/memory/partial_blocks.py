"""PartialBlocks: which cached blocks follow a given prefix, so that a block can be reused in part."""

from __future__ import annotations

from dataclasses import dataclass

from .token_bytes import TOKEN_BYTES, common_tokens


@dataclass(frozen=True, slots=True)
class PartialHit:
    """The first ``num_tokens`` tokens of ``block`` continue the hit; the block must be copied before it is written."""

    block: int
    num_tokens: int


class PartialBlocks:
    """Tokens of each cached block, by the hash of the block before it.

    Costs some 300 bytes a cached block, so it exists only where token-granular reuse is asked for.
    """

    __slots__ = ("_followers", "_parent_of")

    def __init__(self) -> None:
        self._followers: dict[bytes, dict[int, bytes]] = {}
        self._parent_of: dict[int, bytes] = {}

    def add(self, block: int, parent: bytes, tokens: bytes, extra: bytes) -> None:
        """``block`` is cached and holds ``tokens`` (packed int32) behind ``parent``. ``extra``: its extra hash bytes."""
        key = parent + extra
        self._parent_of[block] = key
        self._followers.setdefault(key, {})[block] = tokens

    def discard(self, block: int) -> None:
        """``block`` can't be found any more."""
        key = self._parent_of.pop(block, None)
        if key is None:
            return
        followers = self._followers[key]
        del followers[block]
        if not followers:
            del self._followers[key]

    def longest(self, parent: bytes, extra: bytes, tokens: bytes) -> PartialHit | None:
        """The cached block behind ``parent`` that shares the most leading tokens with ``tokens``; the oldest of equals."""
        best: PartialHit | None = None
        for block, held in self._followers.get(parent + extra, {}).items():
            shared = common_tokens(held, tokens)
            if shared > (best.num_tokens if best else 0):
                best = PartialHit(block, shared)
        return best

    def num_tokens(self, block: int) -> int:
        """Tokens that ``block`` is known by; 0 if it isn't cached."""
        key = self._parent_of.get(block)
        return 0 if key is None else len(self._followers[key][block]) // TOKEN_BYTES

    def clear(self) -> None:
        self._followers.clear()
        self._parent_of.clear()

    def blocks(self) -> set[int]:
        """Every block that is held. O(blocks): for tests."""
        return set(self._parent_of)
