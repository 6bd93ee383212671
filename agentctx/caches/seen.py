"""Everything a conversation has put in front of a model, as one tree of token sequences."""

from __future__ import annotations

from agentctx.rendering.prompt import TokenIds
from agentctx_engine.memory import RadixTree


class SeenPrefixes:
    """An unlimited radix tree of sent sequences: what an ideal cache could reuse."""

    def __init__(self) -> None:
        self._tree = RadixTree()

    def longest_prefix(self, token_ids: TokenIds) -> int:
        """Tokens that the longest common prefix with any earlier sequence has."""
        return self._tree.longest_prefix(token_ids)

    def add(self, token_ids: TokenIds) -> None:
        """Remember a sequence."""
        self._tree.add(token_ids)
