"""From a model and a config to a core: sizes the pool, picks the prefix cache."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from agentctx_engine.runtime.block_directory import BlockDirectory
from agentctx_engine.runtime.config import EngineConfig
from agentctx_engine.runtime.core import EngineCore
from agentctx_engine.runtime.decode_graphs import GraphSettings, can_record, recorder_for
from agentctx_engine.runtime.errors import EngineMemoryError
from agentctx_engine.runtime.kv_store import KvStore
from agentctx_engine.runtime.memory_budget import DeviceMemory, num_blocks
from agentctx_engine.runtime.model_runner import (
    DecoderModel,
    ModelRunner,
    block_bytes,
    packing_of,
    reads_packed,
)
from agentctx_engine.runtime.paged_store import PagedStore, Windows
from agentctx_engine.runtime.radix_store import RadixStore
from agentctx_engine.runtime.scheduler import Scheduler
from agentctx_engine.runtime.snapshots import identity
from agentctx_engine.runtime.tiers import TierCopier, Tiers
from agentctx_engine.runtime.window_pools import memory_bytes, pool_sizes, windows_of

_log = logging.getLogger(__name__)


def build_core(model: DecoderModel, config: EngineConfig) -> EngineCore:
    """Raises ``EngineMemoryError`` when the pool can't be had or is too small for ``config.max_context``."""
    windows = windows_of(model.config, config)
    blocks = num_blocks(model, config, windows, DeviceMemory.of(model.device))
    pools = blocks if windows is None else pool_sizes(blocks, config, windows)
    try:
        runner = ModelRunner(
            model,
            num_blocks=pools,
            block_size=config.block_size,
            deterministic=config.deterministic,
            kv_kind=config.kv_kind,
            graphs=_graphs(model, config, blocks, windows),
        )
    except MemoryError as error:
        raise EngineMemoryError(f"{error}; lower num_blocks or kv_memory_bytes") from error
    kv = _kv_store(model, config, pools, windows, _tiers(model, config, runner, windows))
    max_context = _max_context(model, config, kv.capacity_tokens)
    scheduler = Scheduler(
        kv,
        max_step_tokens=config.max_step_tokens,
        max_samples=config.max_samples,
        max_chunk_tokens=config.max_chunk_tokens,
    )
    core = EngineCore(
        kv,
        runner,
        scheduler,
        max_context=max_context,
        block_bytes=block_bytes(model, config.block_size, config.kv_kind),
        async_scheduling=runner.can_run_ahead
        and (model.device.type == "cuda" if config.async_scheduling is None else config.async_scheduling),
        kv_bytes=memory_bytes(blocks, model, config, windows),
    )
    _log.info("%s", core.state().kv_memory)
    return core


def _graphs(
    model: DecoderModel, config: EngineConfig, blocks: int, windows: Windows | None
) -> GraphSettings | None:
    """Whether, and how, decode steps are recorded. Raises ``ValueError`` if they are to be and can't."""
    packing = packing_of(model, config.block_size, config.kv_kind)
    possible = can_record(model) and (packing is None or reads_packed(model, packing))
    if config.cuda_graphs and not possible:
        quantized = " and quantized KV memory" if config.kv_kind else ""
        raise ValueError(
            f"cuda_graphs=True can't be had with this model's attention{quantized}: take the attention backend 'triton', "
            "or drop it"
        )
    wanted = model.device.type == "cuda" if config.cuda_graphs is None else config.cuda_graphs
    if config.deterministic or not (wanted and possible):
        return None
    most = min(model.config.max_context, config.max_context or model.config.max_context)
    if windows is None:
        most = min(most, blocks * config.block_size)
    return GraphSettings(config.max_samples, most, recorder_for(model.device))


def _kv_store(
    model: DecoderModel,
    config: EngineConfig,
    pools: int | Sequence[int],
    windows: Windows | None,
    tiers: Tiers | None,
) -> KvStore:
    groups = len(model.config.layer_groups)
    if config.prefix_cache == "radix":
        assert isinstance(pools, int)
        return RadixStore(num_blocks=pools, block_size=config.block_size, groups=groups)
    return PagedStore(
        num_blocks=pools,
        block_size=config.block_size,
        groups=groups,
        windows=windows,
        reuse=config.prefix_cache == "hash",
        token_granular=config.token_granular,
        tiers=tiers,
    )


def _tiers(
    model: DecoderModel, config: EngineConfig, runner: ModelRunner, windows: Windows | None
) -> Tiers | None:
    if not config.host_blocks:
        return None
    caches = [runner.kv_caches] if windows is None else runner.caches_by_group
    directory, disk_blocks, files = None, 0, []
    if config.disk_dir is not None:
        shapes = {g: (len(group), 2, *group[0].shape[2:]) for g, group in enumerate(caches)}
        known = identity(model, config.block_size)
        known |= {"groups": str(len(caches)), "kv": config.kv_kind or "as computed"}
        directory = BlockDirectory(Path(config.disk_dir), known, shapes, caches[0][0].dtype)
        disk_blocks = config.disk_bytes // directory.block_bytes
        if not disk_blocks:
            raise EngineMemoryError(
                f"disk_bytes={config.disk_bytes:,} holds no block: a file takes {directory.block_bytes:,} bytes"
            )
        files = directory.trim(disk_blocks)
    try:
        copier = TierCopier(caches, config.host_blocks, directory)
    except MemoryError as error:
        raise EngineMemoryError(f"{error}; lower host_blocks") from error
    return Tiers(config.host_blocks, disk_blocks, copier, files)


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
