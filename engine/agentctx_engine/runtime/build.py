"""From a model and a config to a core: sizes the pool, picks the prefix cache."""

from __future__ import annotations

from agentctx_engine.runtime.config import DEFAULT_KV_MEMORY, EngineConfig
from agentctx_engine.runtime.core import EngineCore
from agentctx_engine.runtime.errors import EngineMemoryError
from agentctx_engine.runtime.kv_store import KvStore
from agentctx_engine.runtime.model_runner import DecoderModel, ModelRunner, block_bytes
from agentctx_engine.runtime.paged_store import PagedStore
from agentctx_engine.runtime.radix_store import RadixStore
from agentctx_engine.runtime.scheduler import Scheduler


def build_core(model: DecoderModel, config: EngineConfig) -> EngineCore:
    """Raises ``EngineMemoryError`` when the pool can't be had or is too small for ``config.max_context``."""
    num_blocks = _num_blocks(model, config)
    try:
        runner = ModelRunner(
            model,
            num_blocks=num_blocks,
            block_size=config.block_size,
            deterministic=config.deterministic,
        )
    except MemoryError as error:
        raise EngineMemoryError(f"{error}; lower num_blocks or kv_memory_bytes") from error
    kv = _kv_store(model, config, num_blocks)
    max_context = _max_context(model, config, kv.capacity_tokens)
    scheduler = Scheduler(
        kv,
        max_step_tokens=config.max_step_tokens,
        max_samples=config.max_samples,
        max_chunk_tokens=config.max_chunk_tokens,
    )
    return EngineCore(
        kv,
        runner,
        scheduler,
        max_context=max_context,
        block_bytes=block_bytes(model, config.block_size),
    )


def _num_blocks(model: DecoderModel, config: EngineConfig) -> int:
    if config.num_blocks is not None:
        return config.num_blocks
    size = block_bytes(model, config.block_size)
    memory = config.kv_memory_bytes or DEFAULT_KV_MEMORY
    if memory < size:
        raise EngineMemoryError(
            f"kv_memory_bytes={memory:,} holds no block: one of {config.block_size} tokens takes {size:,} bytes"
        )
    return memory // size


def _kv_store(model: DecoderModel, config: EngineConfig, num_blocks: int) -> KvStore:
    groups = len(model.config.layer_groups)
    if config.prefix_cache == "radix":
        return RadixStore(num_blocks=num_blocks, block_size=config.block_size, groups=groups)
    return PagedStore(
        num_blocks=num_blocks,
        block_size=config.block_size,
        groups=groups,
        reuse=config.prefix_cache == "hash",
    )


def _max_context(model: DecoderModel, config: EngineConfig, capacity: int) -> int:
    """Tokens of one sample, prompt and answer: what the model, the pool and the config all allow."""
    limit = model.config.max_context
    wanted = config.max_context
    if wanted is None:
        return min(limit, capacity)
    if wanted > limit:
        raise ValueError(f"max_context={wanted}: the model's is {limit}")
    if wanted > capacity:
        raise EngineMemoryError(
            f"max_context={wanted} needs more than the pool's {capacity} tokens; raise num_blocks or kv_memory_bytes"
        )
    return wanted
