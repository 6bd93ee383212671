"""Everything a conversation has put in front of a model, as one tree of token sequences."""

from __future__ import annotations

from agentctx.rendering.prompt import TokenIds
from agentctx_engine.memory.radix_tree import Namespace, RadixTree
from agentctx_engine.memory.token_bytes import pack

_ALL = Namespace()


class SeenPrefixes:
    """An unlimited radix tree of sent sequences: what a cache that never forgets and never rounds could reuse."""

    def __init__(self) -> None:
        self._tree = RadixTree()

    def longest_prefix(self, token_ids: TokenIds) -> int:
        """Tokens of the longest common prefix with any earlier sequence."""
        return self._tree.find(pack(token_ids), _ALL).equal_tokens

    def add(self, token_ids: TokenIds) -> None:
        """Remember a sequence."""
        self._tree.insert(pack(token_ids), None, _ALL)
