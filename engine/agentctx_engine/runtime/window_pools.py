"""How many blocks the layers of each group get: windowed ones need far fewer than those that see everything."""

from __future__ import annotations

from agentctx_engine.memory.layer_groups import FullAttention, SlidingWindow
from agentctx_engine.memory.skipped_blocks import WindowRetention
from agentctx_engine.models.config import ModelConfig
from agentctx_engine.runtime.config import EngineConfig
from agentctx_engine.runtime.model_runner import DecoderModel, layer_block_bytes
from agentctx_engine.runtime.paged_store import Windows

_CACHED_SHARE = 4  # of the full pool's blocks, a quarter as many keep windows that no running sample holds


def windows_of(model: ModelConfig, config: EngineConfig) -> Windows | None:
    """The layer groups that get pools of their own, or None where one block table serves all layers."""
    if config.prefix_cache == "radix" or config.full_window_cache or not any(model.windows):
        return None
    if config.token_granular:
        raise ValueError("token_granular needs full_window_cache=True on a model with sliding windows")
    groups = [FullAttention() if g.window is None else SlidingWindow(g.window) for g in model.layer_groups]
    chunk = min(config.max_step_tokens, config.max_chunk_tokens or config.max_step_tokens)
    retention = WindowRetention(config.window_checkpoints, config.window_checkpoint_spacing)
    return Windows(tuple(groups), retention, chunk)


def pool_sizes(num_blocks: int, config: EngineConfig, windows: Windows) -> list[int]:
    """Blocks of each group's pool, where full attention has ``num_blocks``; the null block is in them.

    A windowed pool has room for every running sample's window and chunk, and for cached windows besides; never for more
    than it would hold without a window.
    """
    null = 1
    sizes = []
    for group in windows.groups:
        if isinstance(group, FullAttention):
            sizes.append(num_blocks)
            continue
        running = -(-(group.window - 1 + windows.chunk_tokens) // config.block_size) + 2
        wanted = config.max_samples * running + num_blocks // _CACHED_SHARE
        sizes.append(min(num_blocks, wanted) + null)
    return sizes


def memory_bytes(num_blocks: int, model: DecoderModel, config: EngineConfig, windows: Windows | None) -> int:
    """Bytes of all KV memory when full attention has ``num_blocks``."""
    layers = [len(group.layers) for group in model.config.layer_groups]
    sizes = [num_blocks] * len(layers) if windows is None else pool_sizes(num_blocks, config, windows)
    blocks = sum(count * size for count, size in zip(layers, sizes, strict=True))
    return blocks * layer_block_bytes(model, config.block_size, config.kv_kind)
