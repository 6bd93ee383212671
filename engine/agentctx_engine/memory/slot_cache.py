"""SlotCache: llama-server's slots. A slot keeps the last prompt and reply it served, and reuses their longest common prefix."""

from __future__ import annotations

from dataclasses import dataclass

from agentctx_engine.memory.prefix_cache import CacheStats, Lease, Lost, Match, TokenIds
from agentctx_engine.memory.token_bytes import TOKEN_BYTES, common_tokens, pack


@dataclass(slots=True)
class SlotLease:
    """What one admitted request holds until it is released."""

    match: Match
    text: bytes


class SlotCache:
    """One slot."""

    def __init__(self) -> None:
        self._content = b""
        self._requests = self._prompt_tokens = self._hit_tokens = 0

    def match(self, token_ids: TokenIds, *, salt: str | None = None) -> Match:
        """The longest reusable prefix of a prompt, and why it stops there. Changes nothing."""
        return self._match(pack(token_ids))

    def _match(self, text: bytes) -> Match:
        num_tokens = len(text) // TOKEN_BYTES
        if not num_tokens:
            return Match(0)
        equal = common_tokens(self._content, text)
        whole_prompt = int(equal == num_tokens)
        lost = ((Lost.WHOLE_PROMPT, whole_prompt), (Lost.FIRST_DIFFERENCE, num_tokens - equal))
        stop = Lost.WHOLE_PROMPT if whole_prompt else Lost.FIRST_DIFFERENCE
        return Match(equal - whole_prompt, tuple(item for item in lost if item[1]), stop)

    def commit(self, token_ids: TokenIds, *, salt: str | None = None) -> SlotLease:
        """Admit a prompt."""
        text = pack(token_ids)
        match = self._match(text)
        self._requests += 1
        self._prompt_tokens += len(text) // TOKEN_BYTES
        self._hit_tokens += match.hit_tokens
        return SlotLease(match, text)

    def release(self, lease: Lease, output_ids: TokenIds = ()) -> None:
        """End a request: the slot holds its prompt and its output but the last token."""
        assert isinstance(lease, SlotLease)
        self._content = lease.text + pack(output_ids[:-1])

    def stats(self) -> CacheStats:
        return CacheStats(
            self._requests, self._prompt_tokens, self._hit_tokens, len(self._content) // TOKEN_BYTES, None, 0
        )
