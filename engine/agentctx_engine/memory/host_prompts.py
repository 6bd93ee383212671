"""llama-server's host cache: contents that left a slot, with their memory and checkpoints, in host RAM.

Source: ``server_prompt_cache`` in ``tools/server/server-task.cpp``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agentctx_engine.memory.slot_memory import SavedState
from agentctx_engine.memory.slot_prompt import SlotPrompt
from agentctx_engine.memory.token_bytes import TOKEN_BYTES

_KEEP_AT_LEAST = np.float32(0.25)  # an entry of which less would be used is left alone


@dataclass(frozen=True, slots=True)
class HostEntry:
    """One saved content."""

    prompt: SlotPrompt
    state: SavedState

    @property
    def num_bytes(self) -> int:
        return self.state.num_bytes + sum(kept.state.num_bytes for kept in self.prompt.checkpoints)


def ratio(part: int, whole: int) -> np.float32:
    """``part / whole`` in the single precision that the server computes in: comparisons then tie where the server's do."""
    return np.float32(part) / np.float32(whole)


class HostPrompts:
    """Entries, oldest first. ``limit_bytes`` ``None``: no limit of bytes, and at most ``limit_tokens`` tokens."""

    def __init__(self, limit_bytes: int | None, limit_tokens: int) -> None:
        self.limit_bytes = limit_bytes
        self.limit_tokens = limit_tokens
        self.entries: list[HostEntry] = []

    def copy(self) -> HostPrompts:
        other = HostPrompts(self.limit_bytes, self.limit_tokens)
        other.entries = list(self.entries)
        return other

    @property
    def num_bytes(self) -> int:
        return sum(entry.num_bytes for entry in self.entries)

    @property
    def num_tokens(self) -> int:
        return sum(entry.prompt.num_tokens for entry in self.entries)

    def save(self, entry: HostEntry) -> list[HostEntry]:
        """Keep a content; returns what was dropped for want of room (the new one itself if it alone is too large).

        A content that an entry already begins with is not saved again; entries that are its beginnings are replaced.
        """
        text = entry.prompt.text
        if any(kept.prompt.text.startswith(text) for kept in self.entries):
            return []
        if self.limit_bytes is not None and entry.num_bytes > self.limit_bytes:
            return [entry]
        self.entries = [kept for kept in self.entries if not text.startswith(kept.prompt.text)]
        dropped: list[HostEntry] = []
        if self.limit_bytes is not None:
            while self.entries and self.num_bytes + entry.num_bytes > self.limit_bytes:
                dropped.append(self.entries.pop(0))
        self.entries.append(entry)
        return dropped

    def best(self, prompt: SlotPrompt, text: bytes) -> HostEntry | None:
        """The entry that serves ``text`` better than ``prompt`` does: more of the entry is used *and* more of the text."""
        num_tokens = len(text) // TOKEN_BYTES
        common = prompt.common(text)
        kept = ratio(common, prompt.num_tokens) if prompt.num_tokens else np.float32(-1)
        similar = ratio(common, num_tokens)
        found: HostEntry | None = None
        for entry in self.entries:
            common = entry.prompt.common(text)
            entry_kept, entry_similar = ratio(common, entry.prompt.num_tokens), ratio(common, num_tokens)
            if entry_kept >= _KEEP_AT_LEAST and kept < entry_kept and similar < entry_similar:
                found, kept, similar = entry, entry_kept, entry_similar
        return found

    def take(self, entry: HostEntry) -> None:
        """Remove an entry: it moves into a slot."""
        self.entries = [kept for kept in self.entries if kept is not entry]

    def trim(self) -> list[HostEntry]:
        """Drop the oldest entries until the limits hold; returns them."""
        dropped: list[HostEntry] = []
        if self.limit_bytes is not None:
            while self.entries and self.num_bytes > self.limit_bytes:
                dropped.append(self.entries.pop(0))
        limit = self.limit_tokens
        if self.limit_bytes is not None:
            per_token = max(1.0, self.num_bytes / max(1, self.num_tokens))
            limit = max(limit, int(self.limit_bytes / per_token))
        while self.entries and self.num_tokens > limit:
            dropped.append(self.entries.pop(0))
        return dropped
