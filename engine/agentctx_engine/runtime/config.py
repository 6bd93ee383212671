"""EngineConfig: what an engine is given besides its model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentctx_engine.attention.quantized import KvKind
from agentctx_engine.memory.skipped_blocks import WindowRetention

PrefixCacheKind = Literal["hash", "radix", "none"]

DEFAULT_KV_MEMORY = 512 * 2**20
DEFAULT_GPU_MEMORY_UTILIZATION = 0.9


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Checked when made; errors name the field.

    Of ``num_blocks``, ``kv_memory_bytes`` and ``gpu_memory_utilization`` give one at most: the pool holds that many
    blocks, or as many as fit in that many bytes, or in that share of the GPU's memory beside all else that is there and
    what a step needs. With none it is 0.9 of a GPU, and 512 MiB elsewhere.
    """

    block_size: int = 16
    num_blocks: int | None = None
    kv_memory_bytes: int | None = None
    gpu_memory_utilization: float | None = None  # above 0, at most 1
    max_step_tokens: int = 512  # the budget of one step
    max_chunk_tokens: int | None = None  # one sample's share of it; None: all
    max_samples: int = 64  # running together
    max_context: int | None = None  # None: the model's, as far as the pool holds it
    prefix_cache: PrefixCacheKind = "hash"
    kv_kind: KvKind | None = (
        None  # quantize keys and values: "int8" or "fp8", a byte a number; slower, not exact
    )
    token_granular: bool = False  # a hit may end inside a block, which is then copied; for "hash"
    # Sliding-window layers keep the blocks of their window and of a few branch points (for "hash"); or all of them, as
    # radix does, at the price of memory.
    full_window_cache: bool = False
    window_checkpoints: int = 8  # branch points kept of a sequence, the newest ones
    window_checkpoint_spacing: int = 1024  # tokens from one to the next
    # Tiers that take evicted blocks and give them back on a hit (for "hash"): host memory, and below it files.
    host_blocks: int = 0
    disk_dir: str | Path | None = None
    disk_bytes: int = 2**30  # at most, for each kind of model that uses disk_dir
    snapshot_dir: str | Path | None = (
        None  # where Engine.save and restore keep the prefixes that are given by name
    )
    deterministic: bool = False  # bitwise the same logits whatever is cached, batched or chunked; slower
    # Decode steps are recorded, once for each of a few batch sizes, and run again from then on. None: on a GPU, if the
    # attention backend can. On a CPU True does everything but the recording.
    cuda_graphs: bool | None = None
    # The step that probably follows is launched before this one's tokens are known. None: on a GPU.
    async_scheduling: bool | None = None

    def __post_init__(self) -> None:
        for field in ("block_size", "max_step_tokens", "max_samples"):
            _require_positive(field, getattr(self, field))
        WindowRetention(self.window_checkpoints, self.window_checkpoint_spacing)
        for field in ("num_blocks", "kv_memory_bytes", "max_chunk_tokens", "max_context"):
            if getattr(self, field) is not None:
                _require_positive(field, getattr(self, field))
        sizes = (self.num_blocks, self.kv_memory_bytes, self.gpu_memory_utilization)
        if sum(size is not None for size in sizes) > 1:
            raise ValueError("give one of num_blocks, kv_memory_bytes and gpu_memory_utilization")
        if self.gpu_memory_utilization is not None and not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(
                f"gpu_memory_utilization={self.gpu_memory_utilization}: must be above 0 and at most 1"
            )
        if self.max_step_tokens < self.max_samples:
            raise ValueError(
                f"max_step_tokens={self.max_step_tokens} is less than max_samples={self.max_samples}: "
                "a step must have a token for every running sample; raise the one or lower the other"
            )
        if self.prefix_cache not in ("hash", "radix", "none"):
            raise ValueError(f"prefix_cache={self.prefix_cache!r}: must be 'hash', 'radix' or 'none'")
        if self.kv_kind not in (None, "int8", "fp8"):
            raise ValueError(f"kv_kind={self.kv_kind!r}: must be 'int8', 'fp8' or None")
        if self.kv_kind is not None and self.deterministic:
            raise ValueError("deterministic=True can't be had with a quantized KV memory: drop kv_kind")
        if self.cuda_graphs and self.deterministic:
            raise ValueError("deterministic=True runs in tiles, which aren't recorded: drop cuda_graphs")
        if self.async_scheduling and (self.deterministic or self.kv_kind is not None):
            raise ValueError(
                "async_scheduling=True can't be had with deterministic=True or kv_kind: a step that was run in vain must "
                "leave nothing behind"
            )
        for field in ("host_blocks", "disk_bytes"):
            if getattr(self, field) < 0:
                raise ValueError(f"{field}={getattr(self, field)}: must not be negative")
        if self.host_blocks and self.prefix_cache != "hash":
            raise ValueError(f"host_blocks needs prefix_cache='hash', not {self.prefix_cache!r}")
        if self.disk_dir is not None and not self.host_blocks:
            raise ValueError("disk_dir needs host_blocks: files take what host memory gives up")
        if self.token_granular and self.prefix_cache != "hash":
            raise ValueError(f"token_granular needs prefix_cache='hash', not {self.prefix_cache!r}")


def _require_positive(field: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{field}={value}: must be at least 1")
