"""Hosted providers' caches: markers and look-back (Anthropic), or whole steps of the longest known prefix (the others).

The rules are data (``data/providers.json``, each with its page and date); what is here is how they work. No clock: the caller
says when a prompt arrives (``Arrival.at``), and where it doesn't, nothing expires. One conversation after another is modelled, on
a route that always finds its entries: what a provider loses besides is an observation, not a prediction.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from agentctx.caches.model import PLAIN, Arrival, Prediction
from agentctx.caches.providers import Provider
from agentctx.rendering.prompt import TokenIds
from agentctx_engine.memory.token_bytes import TOKEN_BYTES, common_tokens, pack


def _lost(*parts: tuple[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple((reason, tokens) for reason, tokens in parts if tokens > 0)


@dataclass(slots=True)
class _Text:
    """A text that was sent, and until when it is kept."""

    text: bytes
    salt: str | None
    until: float


class AutomaticCache:
    """A provider that caches by itself: of the longest prefix that it has seen, whole steps from a minimum on.

    A text lives for the provider's usual life after its last use (``life`` names another one of the data file). Tokens that the
    provider is known to keep out of its count are left out here too.
    """

    def __init__(
        self,
        provider: Provider,
        model: str | None = None,
        *,
        life: str | None = None,
        name: str | None = None,
    ) -> None:
        self.name = name or provider.id
        self.provider = provider
        self._minimum = provider.minimum_for(model)
        self._life = provider.ttl_s.get(life or provider.ttl_default or "", float("inf"))
        self._texts: list[_Text] = []

    def predict(self, token_ids: TokenIds, arrival: Arrival = PLAIN) -> Prediction:
        return self._prediction(pack(token_ids), arrival)

    def without_limits(self, token_ids: TokenIds, arrival: Arrival = PLAIN) -> int:
        return self._prediction(pack(token_ids), replace(arrival, at=None)).cached

    def commit(self, token_ids: TokenIds, reply_ids: TokenIds, arrival: Arrival = PLAIN) -> Prediction:
        text = pack(token_ids)
        prediction = self._prediction(text, arrival)
        # The prompt alone: whether replies can be read is not documented.
        self._texts = [
            known for known in self._texts if known.salt != arrival.salt or not text.startswith(known.text)
        ]
        until = float("inf") if arrival.at is None else arrival.at + self._life
        self._texts.append(_Text(text, arrival.salt, until))
        return prediction

    def _prediction(self, text: bytes, arrival: Arrival) -> Prediction:
        total = len(text) // TOKEN_BYTES
        known = alive = 0
        for other in self._texts:
            if other.salt == arrival.salt:
                equal = common_tokens(other.text, text)
                known = max(known, equal)
                if arrival.at is None or arrival.at <= other.until:
                    alive = max(alive, equal)
        cached = self._counted(min(alive, max(0, total - 1)))
        expired = max(0, self._counted(min(known, max(0, total - 1))) - cached)
        short = 0 < known < self._minimum
        rest = max(0, known - cached - expired)
        return Prediction(
            cached,
            _lost(
                ("expired", expired),
                ("below-minimum" if short else "block-rounding", rest),
                ("first-difference", total - cached - expired - rest),
            ),
        )

    def _counted(self, tokens: int) -> int:
        """What the provider reports for a prefix of so many known tokens."""
        if tokens < self._minimum:
            return 0
        return max(0, tokens - tokens % self.provider.step_tokens - self.provider.hidden_tokens)


@dataclass(slots=True)
class _Entry:
    """A prefix that was written at a marker."""

    tokens: int
    life: float
    until: float


class MarkedCache:
    """A provider whose entries are written where the request has markers, and found by looking back from markers (Anthropic).

    An entry is the whole prefix up to a marked block, tools before system before messages, so a change in one zone takes
    everything behind it along. From each marker the provider looks at the block that carries it and at those before it, ``lookback_blocks``
    in all, for an entry. Reading renews an entry's life. Prefixes shorter than the model's minimum are neither written nor read.

    ``Arrival.blocks`` are the token ends of the content blocks, ``Arrival.markers`` the marked ones; a prompt without markers
    is neither read nor written. Where the caller knows no blocks, the prompt counts as marked at its end by a client that
    keeps its markers in reach. ``Arrival.salt`` separates what else decides (the model, the workspace).
    """

    def __init__(self, provider: Provider, model: str | None = None, *, name: str | None = None) -> None:
        self.name = name or provider.id
        self.provider = provider
        self._minimum = provider.minimum_for(model)
        self._entries: dict[bytes, _Entry] = {}

    def predict(self, token_ids: TokenIds, arrival: Arrival = PLAIN) -> Prediction:
        arrival = self._placed(token_ids, arrival)
        return self._prediction(len(token_ids), self._digests(token_ids, arrival), arrival)

    def _prediction(self, total: int, blocks: list[tuple[int, bytes]], arrival: Arrival) -> Prediction:
        cached = self._read(blocks, arrival)
        found = self._read(blocks, replace(arrival, at=None))
        known = max((end for end, digest in blocks if digest in self._entries), default=0)
        return Prediction(
            cached,
            _lost(
                ("expired", found - cached),
                ("no-marker-in-reach", max(0, known - found)),
                ("first-difference", total - max(known, found)),
            ),
        )

    def without_limits(self, token_ids: TokenIds, arrival: Arrival = PLAIN) -> int:
        arrival = self._placed(token_ids, replace(arrival, at=None))
        return self._read(self._digests(token_ids, arrival), arrival)

    def commit(self, token_ids: TokenIds, reply_ids: TokenIds, arrival: Arrival = PLAIN) -> Prediction:
        arrival = self._placed(token_ids, arrival)
        blocks = self._digests(token_ids, arrival)
        prediction = self._prediction(len(token_ids), blocks, arrival)
        digests = dict(blocks)
        now = arrival.at
        if prediction.cached:
            entry = self._entries[digests[prediction.cached]]
            entry.until = float("inf") if now is None else now + entry.life
        for end, life in arrival.markers[: self.provider.max_markers]:
            if end < self._minimum or end not in digests:
                continue
            seconds = self.provider.ttl_s.get(life or self.provider.ttl_default or "", float("inf"))
            known = self._entries.get(digests[end])
            seconds = max(seconds, known.life) if known is not None else seconds
            until = float("inf") if now is None else now + seconds
            self._entries[digests[end]] = _Entry(end, seconds, until)
        return prediction

    def _placed(self, token_ids: TokenIds, arrival: Arrival) -> Arrival:
        """The arrival with a marker at the end, and blocks where entries end, if the caller named no blocks."""
        total = len(token_ids)
        if arrival.blocks or not total:
            return arrival
        ends = {entry.tokens for entry in self._entries.values() if entry.tokens < total}
        return replace(arrival, blocks=(*sorted(ends), total), markers=((total, None),))

    def _digests(self, token_ids: TokenIds, arrival: Arrival) -> list[tuple[int, bytes]]:
        """(token end, digest of the prefix) of every block: a prefix is the same entry only if all of it is equal."""
        running = hashlib.sha256((arrival.salt or "").encode() + b"\0")
        text = memoryview(pack(token_ids))
        found = []
        start = 0
        for end in arrival.blocks:
            running.update(text[start * TOKEN_BYTES : end * TOKEN_BYTES])
            start = end
            found.append((end, running.digest()))
        return found

    def _read(self, blocks: list[tuple[int, bytes]], arrival: Arrival) -> int:
        """Tokens of the longest entry that a marker finds. Without a time none has expired."""
        places = {end: index for index, (end, _) in enumerate(blocks)}
        reach = self.provider.lookback_blocks or 1
        best = 0
        for end, _ in arrival.markers[: self.provider.max_markers]:
            last = places.get(end)
            if last is None:
                continue
            for tokens, digest in reversed(blocks[max(0, last + 1 - reach) : last + 1]):
                entry = self._entries.get(digest)
                if entry is not None and (arrival.at is None or arrival.at <= entry.until):
                    best = max(best, tokens)
                    break
        return best


def provider_cache(
    provider: Provider, model: str | None, life: str | None, name: str
) -> AutomaticCache | MarkedCache:
    """The cache model of a provider of the data file."""
    if provider.automatic:
        return AutomaticCache(provider, model, life=life, name=name)
    return MarkedCache(provider, model, name=name)
