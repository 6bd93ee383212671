"""Cache models over the engine's own memory manager: paged blocks, a radix tree, one slot."""

from __future__ import annotations

from agentctx.caches.model import PLAIN, Arrival, Prediction
from agentctx.errors import AgentctxError
from agentctx.rendering.prompt import TokenIds
from agentctx_engine.memory.prefix_cache import CacheStats, Match, PrefixCache


def prediction_of(match: Match, slot: int | None = None) -> Prediction:
    """A memory manager's answer as a prediction."""
    lost = tuple((reason.value, tokens) for reason, tokens in match.lost)
    return Prediction(match.hit_tokens, lost, slot=slot)


class PrefixCacheModel:
    """A CacheModel that runs a :class:`PrefixCache`: the code that predicts is the code that the engine runs."""

    def __init__(self, name: str, cache: PrefixCache, *, unlimited: PrefixCache | None = None) -> None:
        self._name = name
        self._cache = cache
        # A second cache of the same rules with no capacity limit tells eviction from rounding.
        self._unlimited = unlimited

    @property
    def name(self) -> str:
        return self._name

    def predict(self, token_ids: TokenIds, arrival: Arrival = PLAIN) -> Prediction:
        return prediction_of(self._cache.match(token_ids, salt=arrival.salt))

    def without_limits(self, token_ids: TokenIds, arrival: Arrival = PLAIN) -> int:
        return (self._unlimited or self._cache).match(token_ids, salt=arrival.salt).hit_tokens

    def commit(self, token_ids: TokenIds, reply_ids: TokenIds, arrival: Arrival = PLAIN) -> Prediction:
        """As every model does. Raises ``AgentctxError``, and changes nothing, where the cache is too small for the prompt."""
        try:
            lease = self._cache.commit(token_ids, salt=arrival.salt)
        except MemoryError as error:
            raise AgentctxError(
                f"the cache {self._name} is too small for a prompt of {len(token_ids):,} tokens; give it a larger capacity"
            ) from error
        self._cache.release(lease, reply_ids)
        if self._unlimited is not None:
            self._unlimited.release(self._unlimited.commit(token_ids, salt=arrival.salt), reply_ids)
        return prediction_of(lease.match)

    def stats(self) -> CacheStats:
        """Counters of the cache since it was made."""
        return self._cache.stats()
