"""PrefixStats: what lookups asked for and got, counted once per admitted request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class PrefixStats:
    """Since the start or the last reset. A request that is refused and tried again counts when it is admitted.

    Requests that come back after a preemption count apart: their hits are the manager's doing, not the client's.
    """

    requests: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    host_hit_tokens: int = 0  # of hit_tokens, those that had to be brought back from the host
    resumed_requests: int = 0
    resumed_prompt_tokens: int = 0
    resumed_hit_tokens: int = 0

    @property
    def hit_rate(self) -> float | None:
        """Share of prompt tokens found, 0 … 1; None before the first request, which is not the same as 0."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else None

    def record(self, prompt_tokens: int, hit_tokens: int, host_hit_tokens: int, *, resumed: bool) -> None:
        """Count one admitted request."""
        if resumed:
            self.resumed_requests += 1
            self.resumed_prompt_tokens += prompt_tokens
            self.resumed_hit_tokens += hit_tokens
        else:
            self.requests += 1
            self.prompt_tokens += prompt_tokens
            self.hit_tokens += hit_tokens
            self.host_hit_tokens += host_hit_tokens
