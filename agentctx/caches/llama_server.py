"""llama-server's slots as a CacheModel: slot choice, host cache, windows and checkpoints, by the server's own rules."""

from __future__ import annotations

from agentctx.caches.model import PLAIN, Arrival, Prediction
from agentctx.caches.prefix import prediction_of
from agentctx.rendering.prompt import TokenIds
from agentctx_engine.memory.host_prompts import HostEntry
from agentctx_engine.memory.slot_cache import SlotCache
from agentctx_engine.memory.slot_settings import ONE_SLOT, ModelMemory, ServerSettings
from agentctx_engine.memory.token_bytes import unpack
from agentctx_engine.memory.unlimited_cache import UnlimitedCache


class LlamaServerModel:
    """Predicts slot and ``cache_n`` of a llama-server that only this process talks to.

    ``settings`` are the server's switches, ``memory`` says what its model's layers remember. One request at a time: what
    overlapping requests do to each other's batches is not modelled.
    """

    def __init__(
        self,
        settings: ServerSettings = ONE_SLOT,
        memory: ModelMemory | None = None,
        *,
        name: str = "llama-server",
    ) -> None:
        self.name = name
        self._cache = SlotCache(settings, memory)
        # What the same rules would reuse with every text still in a slot: all but the last token of a known prefix.
        self._roomy = UnlimitedCache()

    def predict(self, token_ids: TokenIds, arrival: Arrival = PLAIN) -> Prediction:
        match = self._cache.match(
            token_ids,
            id_slot=arrival.slot,
            cache_prompt=arrival.cache_prompt,
            user_starts=arrival.user_starts,
        )
        return prediction_of(match)

    def without_limits(self, token_ids: TokenIds, arrival: Arrival = PLAIN) -> int:
        if not arrival.cache_prompt:
            return 0
        return self._roomy.match(token_ids).hit_tokens

    def commit(self, token_ids: TokenIds, reply_ids: TokenIds, arrival: Arrival = PLAIN) -> Prediction:
        self._roomy.release(self._roomy.commit(token_ids), reply_ids)
        lease = self._cache.serve(
            token_ids,
            reply_ids,
            id_slot=arrival.slot,
            cache_prompt=arrival.cache_prompt,
            user_starts=arrival.user_starts,
        )
        return prediction_of(lease.match, lease.answer.slot)

    def save(self, slot: int) -> HostEntry:
        """The server was told to save a slot: what its file holds."""
        return self._cache.save(slot)

    def restore(self, slot: int, saved: HostEntry) -> None:
        """The server was told to restore a slot from a file, be it in another process. Raises ``MemoryError`` where there is no room."""
        self._cache.restore(slot, saved)
        self._roomy.release(self._roomy.commit(unpack(saved.prompt.text)))

    def erase(self, slot: int) -> int:
        """The server was told to erase a slot; returns the tokens that went."""
        return self._cache.erase(slot)
