"""Memory budget: how many blocks of keys and values a device has room for."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import torch

from agentctx_engine.models.config import ModelConfig
from agentctx_engine.runtime.config import DEFAULT_GPU_MEMORY_UTILIZATION, DEFAULT_KV_MEMORY, EngineConfig
from agentctx_engine.runtime.errors import EngineMemoryError
from agentctx_engine.runtime.model_runner import DecoderModel, layer_block_bytes
from agentctx_engine.runtime.paged_store import Windows
from agentctx_engine.runtime.window_pools import memory_bytes

_SAMPLER_BYTES = 96  # of one logit, when every row is sorted whole and summed up in float64
_SPLIT_PROGRAMS = 1024  # more parts than a decode is split into beyond one a sequence and KV head, on any GPU


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of a device, at a moment."""

    total: int
    free: int

    @classmethod
    def of(cls, device: torch.device) -> DeviceMemory | None:
        """Of a GPU now, what torch keeps for later given back; ``None`` of another device."""
        if device.type != "cuda":
            return None
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(device)
        return cls(total=total, free=free)

    def budget(self, utilization: float, reserved: int) -> int:
        """Bytes left of ``utilization`` of the device, less what is taken by whomever and what is ``reserved``; may be negative."""
        return int(self.total * utilization) - (self.total - self.free) - reserved


def step_bytes(config: ModelConfig, itemsize: int, *, tokens: int, samples: int) -> int:
    """The most that a step of ``tokens`` tokens and ``samples`` sampled rows holds at once, KV memory apart.

    Of a model whose numbers have ``itemsize`` bytes, with the Triton attention backend; sampling included.
    """
    sampling = samples * config.vocab_size * _SAMPLER_BYTES
    return model_bytes(config, itemsize, tokens=tokens, samples=samples) + sampling


def model_bytes(config: ModelConfig, itemsize: int, *, tokens: int, samples: int) -> int:
    """The model's part of it: the largest of a layer's stages, and the logits."""
    hidden, inner = config.hidden_size, config.intermediate_size
    turned = (config.num_heads + config.num_kv_heads) * config.head_dim
    attended = config.num_heads * config.head_dim
    norm = hidden * (2 * itemsize + 8)  # the residual, its norm, and the norm's float32
    projected = hidden * itemsize + (turned + config.num_kv_heads * config.head_dim) * itemsize
    # Queries and keys as float32, as turned complex numbers, and turned; with head norms once more as float32.
    attention = projected + turned * (8 + itemsize + (8 if config.qk_norm else 0)) + attended * itemsize
    mlp = hidden * 3 * itemsize + inner * 3 * itemsize
    turns = 3 * len(set(config.ropes)) * config.head_dim * 4
    sharing = config.num_heads // config.num_kv_heads
    parts = (_SPLIT_PROGRAMS + samples * config.num_kv_heads) * sharing * (config.head_dim + 2) * 4
    logits = samples * config.vocab_size * (itemsize + 4)
    return tokens * (max(norm, attention, mlp) + turns) + parts + logits


def num_blocks(
    model: DecoderModel, config: EngineConfig, windows: Windows | None, device: DeviceMemory | None
) -> int:
    """Blocks of full attention's pool: those of the config, or as many as fit.

    What is fitted in is ``kv_memory_bytes``, or on a ``device`` that says what it has ``gpu_memory_utilization`` of it
    beside everything else, or else 512 MiB. Raises ``EngineMemoryError`` when not one fits.
    """
    if config.num_blocks is not None:
        return config.num_blocks
    if config.kv_memory_bytes is not None or (device is None and config.gpu_memory_utilization is None):
        memory = config.kv_memory_bytes or DEFAULT_KV_MEMORY
        source = f"kv_memory_bytes={memory:,}"
    elif device is None:
        raise ValueError(
            f"gpu_memory_utilization={config.gpu_memory_utilization} needs a model on a GPU, this one is on "
            f"{model.device}: give num_blocks or kv_memory_bytes"
        )
    else:
        memory, source = _left_on(device, model, config)
    count = blocks_within(memory, model, config, windows)
    if count < 1:
        size = memory_bytes(1, model, config, windows)
        raise EngineMemoryError(
            f"{source} holds no block: one of {config.block_size} tokens takes {size:,} bytes"
        )
    return count


def blocks_within(memory: int, model: DecoderModel, config: EngineConfig, windows: Windows | None) -> int:
    """The most blocks of full attention's pool whose memory, with that of windowed layers' pools, is ``memory`` bytes at most."""
    most = max(0, memory) // layer_block_bytes(model, config.block_size, config.kv_kind)
    first_too_many = bisect_right(
        range(most + 1), memory, key=lambda count: memory_bytes(count, model, config, windows)
    )
    return first_too_many - 1


def _left_on(device: DeviceMemory, model: DecoderModel, config: EngineConfig) -> tuple[int, str]:
    """(bytes for keys and values, how they came about)."""
    utilization = config.gpu_memory_utilization or DEFAULT_GPU_MEMORY_UTILIZATION
    shape, itemsize, samples = model.config, model.dtype.itemsize, config.max_samples
    step = step_bytes(shape, itemsize, tokens=config.max_step_tokens, samples=samples)
    if config.cuda_graphs is not False:  # recorded steps keep what they work in, and their logits
        step += model_bytes(shape, itemsize, tokens=samples, samples=samples) + samples * shape.vocab_size * 4
    memory = device.budget(utilization, step)
    source = (
        f"gpu_memory_utilization={utilization} of {device.total:,} bytes, of which {device.total - device.free:,} are "
        f"taken and a step needs {step:,},"
    )
    return memory, source
