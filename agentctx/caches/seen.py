"""Everything a conversation has put in front of a model, as texts of token ids."""

from __future__ import annotations

from agentctx.rendering.prompt import TokenIds
from agentctx_engine.memory.prompt_memory import NO_HINTS, PromptMemory
from agentctx_engine.memory.token_bytes import pack

_ALL = b""


class SeenPrefixes:
    """All sequences that were sent: what a cache that never forgets and never rounds could reuse."""

    def __init__(self) -> None:
        self._memory = PromptMemory(1, None)

    def longest_prefix(self, token_ids: TokenIds) -> int:
        """Tokens of the longest common prefix with any earlier sequence."""
        return self._memory.equal_tokens(pack(token_ids), _ALL)

    def add(self, token_ids: TokenIds, reply_ids: TokenIds) -> None:
        """Remember a prompt with its reply. What extends an earlier sequence takes its place: a conversation stays one run."""
        self._memory.insert(pack(token_ids) + pack(reply_ids), _ALL, [], NO_HINTS)
