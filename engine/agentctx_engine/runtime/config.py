"""EngineConfig: what an engine is given besides its model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PrefixCacheKind = Literal["hash", "radix", "none"]

DEFAULT_KV_MEMORY = 512 * 2**20


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Checked when made; errors name the field.

    Of ``num_blocks`` and ``kv_memory_bytes`` give one at most: the pool holds that many blocks, or as many as fit in that
    many bytes (512 MiB with neither).
    """

    block_size: int = 16
    num_blocks: int | None = None
    kv_memory_bytes: int | None = None
    max_step_tokens: int = 512  # the budget of one step
    max_chunk_tokens: int | None = None  # one sample's share of it; None: all
    max_samples: int = 64  # running together
    max_context: int | None = None  # None: the model's, as far as the pool holds it
    prefix_cache: PrefixCacheKind = "hash"
    deterministic: bool = False  # bitwise the same logits whatever is cached, batched or chunked; slower

    def __post_init__(self) -> None:
        for field in ("block_size", "max_step_tokens", "max_samples"):
            _require_positive(field, getattr(self, field))
        for field in ("num_blocks", "kv_memory_bytes", "max_chunk_tokens", "max_context"):
            if getattr(self, field) is not None:
                _require_positive(field, getattr(self, field))
        if self.num_blocks is not None and self.kv_memory_bytes is not None:
            raise ValueError("give num_blocks or kv_memory_bytes, not both")
        if self.max_step_tokens < self.max_samples:
            raise ValueError(
                f"max_step_tokens={self.max_step_tokens} is less than max_samples={self.max_samples}: "
                "a step must have a token for every running sample; raise the one or lower the other"
            )
        if self.prefix_cache not in ("hash", "radix", "none"):
            raise ValueError(f"prefix_cache={self.prefix_cache!r}: must be 'hash', 'radix' or 'none'")


def _require_positive(field: str, value: int) -> None:
    if value < 1:
        raise ValueError(f"{field}={value}: must be at least 1")
