"""Request: what a caller asked for. Sample: one of its n answers on its way. Both with their counters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt

from agentctx_engine.memory.prefix_cache import Match
from agentctx_engine.runtime.kv_store import StoredSequence, TokenArray
from agentctx_engine.runtime.sampler import SampledToken
from agentctx_engine.runtime.sampling_params import SamplingParams

StopHook = Callable[[int, Sequence[int]], bool]
"""Called after each token with (sample index, that sample's output so far); ``True`` ends the sample. Runs between
two steps on the engine's thread, so it must be quick; the output is the engine's own list and must not be changed."""


class FinishReason(Enum):
    STOP = "stop"  # a stop token id
    HOOK = "hook"  # the request's stop hook said so
    LENGTH = "length"  # max_tokens, or the end of the context
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class Request:
    """One call: a prompt, how to go on from it, and what has been counted so far.

    ``cached_tokens`` + ``computed_tokens`` = the prompt's tokens once the prompt has been read. Both are
    counted as it happens. A token that preemption threw away and that was computed again counts once as
    computed (if it is the prompt's) and each further time as recomputed.
    """

    id: int
    prompt: TokenArray
    params: SamplingParams
    seed: int
    cache_salt: str | None = None
    stop_hook: StopHook | None = None
    reuse: bool = True  # False: reads no cached prefix, though it leaves one
    keep_logits: bool = False
    arrival: float = 0.0  # seconds of the engine's clock, as are the next three
    admitted: float | None = None
    first_token: float | None = None
    finished: float | None = None
    match: Match | None = None  # of the first admission
    cached_tokens: int = 0
    host_tokens: int = 0  # of cached_tokens, at the first admission
    disk_tokens: int = 0
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    preemptions: int = 0
    error: Exception | None = None
    samples: list[Sample] = field(default_factory=list)  # one until the prompt has been read, then n

    @property
    def done(self) -> bool:
        return all(sample.finish_reason is not None for sample in self.samples)

    def count_hit(self, sample: Sample, match: Match) -> None:
        """The sample was admitted, its first ``match.hit_tokens`` tokens lie in blocks already."""
        hit = match.hit_tokens
        if self.match is None:
            self.match = match
            self.host_tokens, self.disk_tokens = sample.kv.loaded_tokens
        # When a sample comes back, most of its hit is what it once computed itself.
        sample.counted_hit = max(0, min(hit, self.num_prompt) - sample.high_water)
        sample.high_water_before = sample.high_water
        self.cached_tokens += sample.counted_hit
        sample.num_computed = sample.hit_tokens = hit
        sample.high_water = max(sample.high_water, hit)

    def take_back_hit(self, sample: Sample) -> None:
        """The hit counted last was none; nothing was computed since."""
        self.cached_tokens -= sample.counted_hit
        sample.num_computed, sample.high_water = 0, sample.high_water_before
        if not sample.high_water:
            self.match, self.host_tokens, self.disk_tokens = None, 0, 0

    def count_computed(self, sample: Sample, count: int) -> None:
        """A step ran the sample's next ``count`` tokens."""
        start, end = sample.num_computed, sample.num_computed + count
        again = max(0, min(end, sample.high_water) - start)
        first_time_from = max(start, sample.high_water)
        self.recomputed_tokens += again
        self.computed_tokens += max(0, min(end, self.num_prompt) - first_time_from)
        sample.num_computed = end
        sample.high_water = max(sample.high_water, end)

    @property
    def num_prompt(self) -> int:
        return len(self.prompt)


class Sample:
    """One answer: its text and blocks (``kv``), and how much of the text is computed."""

    __slots__ = (
        "_seen", "counted_hit", "finish_reason", "high_water", "high_water_before", "hit_tokens", "index", "kv", "logits", "num_computed",
        "output", "request", "running", "sampled",
    )  # fmt: skip

    def __init__(self, request: Request, kv: StoredSequence, index: int = 0) -> None:
        self.request = request
        self.kv = kv  # owns prompt and output as one text
        self.index = index
        self.running = False  # True: it holds blocks for all its tokens but, at most, the last
        self.num_computed = 0  # tokens whose keys and values lie in its blocks
        self.hit_tokens = self.counted_hit = self.high_water_before = 0  # of the last admission
        self.high_water = 0  # the most that num_computed has ever been
        self.output: list[int] = []
        self.sampled: list[SampledToken] = []  # parallel to output
        self.logits: list[npt.NDArray[np.float32]] = []  # parallel to output, if the request keeps them
        self.finish_reason: FinishReason | None = None
        self._seen: dict[int, None] | None = None

    def __repr__(self) -> str:
        place = "running" if self.running else "waiting"
        state = self.finish_reason.value if self.finish_reason is not None else place
        return f"<Sample {self.request.id}.{self.index} {state} {self.num_computed}/{self.num_tokens}>"

    @property
    def order(self) -> tuple[int, int]:
        """First come, first served: requests are numbered in the order of their arrival."""
        return self.request.id, self.index

    @property
    def num_tokens(self) -> int:
        """Prompt and output."""
        return self.kv.num_tokens

    @property
    def remaining(self) -> int:
        """Tokens to compute before the next one can be sampled: 1 while decoding."""
        return self.kv.num_tokens - self.num_computed

    @property
    def has_run(self) -> bool:
        """Some of it was computed since it was admitted, or forked from one that had run."""
        return self.num_computed > self.hit_tokens

    @property
    def decoding(self) -> bool:
        """Only the token sampled last is missing, for which there may be no room yet."""
        return self.remaining == 1 and bool(self.output)

    def take(self, token: SampledToken) -> None:
        """A sampled token: the caller has appended it to the text."""
        self.output.append(token.token_id)
        self.sampled.append(token)
        if self._seen is not None:
            self._seen[token.token_id] = None

    def seen_ids(self) -> Sequence[int]:
        """Distinct token ids of prompt and output. Costs the whole context once, then one entry a token."""
        if self._seen is None:
            self._seen = dict.fromkeys(self.kv.tokens.tolist())
        return list(self._seen)
