"""SamplingParams: how one request chooses its tokens and when it ends."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agentctx_engine.runtime.errors import RequestError

MAX_SEED = 2**64 - 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Checked when made: a value out of range raises ``RequestError`` that names the field.

    The order of the steps is fixed: repetition penalty, then temperature, then top-k, then top-p, then
    min-p, each over what the step before kept. ``temperature=0`` is greedy: the other three have no effect.

    ``seed`` makes a request repeatable: token ``i`` of sample ``s`` depends on (seed, s, i) and the
    logits only, never on what else is in the batch, on preemption, or on an earlier request. Without a seed one is drawn
    and reported in the result.
    """

    max_tokens: int = 128  # per sample; the context limit may end it earlier
    temperature: float = 0.0
    top_k: int = 0  # 0: no limit
    top_p: float = 1.0
    min_p: float = 0.0  # relative to the most likely token
    repetition_penalty: float = 1.0  # over prompt and output; > 1 discourages
    seed: int | None = None
    n: int = 1  # samples that share the prompt's blocks
    stop_token_ids: tuple[int, ...] | None = (
        None  # None: the model's; (): none. The token that stops is in the output
    )
    logprobs: int | None = (
        None  # None: none; k: the sampled token's and the k most likely ones', of the raw distribution
    )

    def __post_init__(self) -> None:
        if self.stop_token_ids is not None:
            object.__setattr__(self, "stop_token_ids", tuple(int(t) for t in self.stop_token_ids))
        checks = (
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("temperature", 0.0 <= self.temperature < float("inf"), "0 (greedy) or a positive number"),
            ("top_k", self.top_k >= 0, "0 (no limit) or a positive number"),
            ("top_p", 0.0 < self.top_p <= 1.0, "above 0 and at most 1"),
            ("min_p", 0.0 <= self.min_p <= 1.0, "between 0 and 1"),
            ("repetition_penalty", 0.0 < self.repetition_penalty < float("inf"), "a positive number"),
            ("n", 1 <= self.n <= 128, "between 1 and 128"),
            ("seed", self.seed is None or 0 <= self.seed <= MAX_SEED, "between 0 and 2**64 - 1"),
            ("logprobs", self.logprobs is None or 0 <= self.logprobs <= 128, "between 0 and 128, or None"),
        )
        for field, ok, wanted in checks:
            if not ok:
                raise RequestError(f"{field}={getattr(self, field)!r}: must be {wanted}")

    def with_stop_token_ids(self, token_ids: tuple[int, ...]) -> SamplingParams:
        return replace(self, stop_token_ids=token_ids)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalises(self) -> bool:
        """Whether the next token depends on which ones came before, beside the logits."""
        return self.repetition_penalty != 1.0
