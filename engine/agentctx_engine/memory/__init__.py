"""Memory manager: which block holds what, and what may be reused. No torch."""

from agentctx_engine.memory.radix_cache import RadixCache as RadixCache
from agentctx_engine.memory.slot_cache import SlotCache as SlotCache
