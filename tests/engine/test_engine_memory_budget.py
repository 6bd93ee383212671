"""How many blocks an engine takes: by count, by bytes, or by what a GPU has left; and that a step fits beside them."""

from __future__ import annotations

import logging
import re
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from agentctx_engine import Engine, SamplingParams
from agentctx_engine.attention import Batch, Chunk
from agentctx_engine.attention.named import attention_backend
from agentctx_engine.attention.quantized import KvKind
from agentctx_engine.models import Family, Model, random_config, random_model
from agentctx_engine.models.random_model import RandomWeights
from agentctx_engine.runtime import EngineConfig, EngineMemoryError
from agentctx_engine.runtime.memory_budget import DeviceMemory, blocks_within, num_blocks, step_bytes
from agentctx_engine.runtime.sampler import SamplingRow, sample
from agentctx_engine.runtime.window_pools import memory_bytes, pool_sizes, windows_of

GIB = 2**30
LLAMA = random_model("llama")  # 2 KV heads of 16 numbers in float32
GEMMA = random_model("gemma3", config=random_config("gemma3", num_layers=3, window=24))


def held_bytes(model: Model, config: EngineConfig, full_blocks: int) -> int:
    """Bytes of the tensors that an engine of so many blocks allocates."""
    options = replace(config, num_blocks=full_blocks, kv_memory_bytes=None)
    with Engine(model, options) as engine:
        return sum(cache.nbytes for cache in engine._core.runner.kv_caches)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    model=st.sampled_from([LLAMA, GEMMA]),
    memory=st.integers(100_000, 3_000_000),
    block_size=st.sampled_from([4, 8, 16]),
    kv_kind=st.sampled_from([None, "int8", "fp8"]),
    whole=st.booleans(),
    samples=st.integers(1, 8),
)
def test_the_most_blocks_that_fit_and_not_one_more(
    model: Model, memory: int, block_size: int, kv_kind: KvKind | None, whole: bool, samples: int
) -> None:
    """Counted in the tensors that are allocated, windowed layers' own pools and scales of quantized memory among them."""
    config = EngineConfig(
        block_size=block_size,
        kv_memory_bytes=memory,
        kv_kind=kv_kind,
        full_window_cache=whole,
        max_samples=samples,
        max_step_tokens=16,
    )
    windows = windows_of(model.config, config)
    count = blocks_within(memory, model, config, windows)
    if count:
        assert count == num_blocks(model, config, windows, None)
        assert held_bytes(model, config, count) == memory_bytes(count, model, config, windows) <= memory
    assert memory_bytes(count + 1, model, config, windows) > memory


def test_windowed_layers_have_pools_of_their_own_in_the_budget() -> None:
    config = EngineConfig(kv_memory_bytes=4 * 2**20, max_samples=2, max_step_tokens=16)
    windows = windows_of(GEMMA.config, config)
    assert windows is not None
    count = num_blocks(GEMMA, config, windows, None)
    without = num_blocks(GEMMA, replace(config, full_window_cache=True), None, None)
    assert count > 1.5 * without
    assert pool_sizes(count, config, windows)[1] < count


def test_half_the_bytes_a_number_twice_the_blocks() -> None:
    config = EngineConfig(kv_memory_bytes=2**20)
    narrow = random_model("llama", dtype=torch.bfloat16)
    assert num_blocks(narrow, config, None, None) == 2 * num_blocks(LLAMA, config, None, None)


def test_what_a_gpu_has_left() -> None:
    """0.9 of 80 GiB, less the 20 that are taken and what a step needs."""
    device = DeviceMemory(total=80 * GIB, free=60 * GIB)
    config = EngineConfig()
    step = step_bytes(LLAMA.config, 4, tokens=config.max_step_tokens, samples=config.max_samples)
    assert device.budget(0.9, step) == int(72 * GIB) - 20 * GIB - step
    few = DeviceMemory(total=10 * 2**20, free=9 * 2**20)
    for utilization in (None, 0.9, 0.95):
        chosen = EngineConfig(
            gpu_memory_utilization=utilization,
            max_samples=2,
            max_step_tokens=2,
            block_size=4,
            cuda_graphs=False,
        )
        reserved = step_bytes(LLAMA.config, 4, tokens=2, samples=2)
        left = few.budget(utilization or 0.9, reserved)
        count = num_blocks(LLAMA, chosen, None, few)
        assert count == left // (LLAMA.config.num_layers * 2 * 4 * 2 * 16 * 4)
        # A recorded step keeps its memory.
        assert num_blocks(LLAMA, replace(chosen, cuda_graphs=None), None, few) < count


def test_what_is_given_wins_over_what_the_gpu_has() -> None:
    device = DeviceMemory(total=80 * GIB, free=60 * GIB)
    assert num_blocks(LLAMA, EngineConfig(num_blocks=7), None, device) == 7
    by_bytes = EngineConfig(kv_memory_bytes=2**20)
    assert num_blocks(LLAMA, by_bytes, None, device) == num_blocks(LLAMA, by_bytes, None, None)


def test_a_gpu_that_is_full_is_refused_with_the_sum() -> None:
    device = DeviceMemory(total=8 * GIB, free=GIB)
    with pytest.raises(
        EngineMemoryError,
        match=r"gpu_memory_utilization=0\.5 of 8,589,934,592 bytes, of which 7,516,192,768 are",
    ):
        num_blocks(LLAMA, EngineConfig(gpu_memory_utilization=0.5), None, device)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="needs a model on a GPU, this one is on cpu"):
        Engine(LLAMA, gpu_memory_utilization=0.9)
    with pytest.raises(ValueError, match="give one of"):
        EngineConfig(num_blocks=3, gpu_memory_utilization=0.9)
    for wrong in (0.0, 1.1, -0.5):
        with pytest.raises(ValueError, match="above 0 and at most 1"):
            EngineConfig(gpu_memory_utilization=wrong)


def test_it_says_what_it_took(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, logger="agentctx_engine"),
        Engine(LLAMA, num_blocks=1024) as engine,
    ):
        state = engine.state()
        held = sum(cache.nbytes for cache in engine._core.runner.kv_caches)
    assert state.kv_bytes == held == 1024 * state.block_bytes
    assert re.fullmatch(r"KV memory: 1,024 blocks of 16 tokens, 16,384 tokens, \d\.\d\d GiB", state.kv_memory)
    assert caplog.messages == [state.kv_memory]


class PeakBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's hook says no types
    """The most that tensors made under it held at once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                key = id(storage)
                if key not in self.live:
                    self.live[key] = storage.nbytes()
                    weakref.finalize(storage, self.live.pop, key, None)
        self.peak = max(self.peak, sum(self.live.values()))
        return result


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
@pytest.mark.parametrize(("lengths", "vocabulary"), [((24, 16), 64), ((1, 1, 1), 5000)])
def test_no_step_holds_more_than_is_reserved(
    family: Family, lengths: tuple[int, ...], vocabulary: int
) -> None:
    """A prefill and a decode step of the path that GPUs take, in the interpreter, with the sampler's most expensive way."""
    pytest.importorskip("triton")
    config = random_config(family, vocab_size=vocabulary, num_layers=3 if family == "gemma3" else 2)
    model = Model(RandomWeights(config, seed=1), dtype=torch.bfloat16, attention=attention_backend("triton"))
    groups = len(config.layer_groups)
    chunks = [Chunk([1] * n, 0, ([3 * i, 3 * i + 1, 3 * i + 2],) * groups) for i, n in enumerate(lengths)]
    caches = [
        torch.zeros(2, 12, 8, config.num_kv_heads, config.head_dim, dtype=torch.bfloat16)
        for _ in range(config.num_layers)
    ]
    flat = SamplingParams(temperature=1.0, top_p=0.9999, min_p=1e-9, max_tokens=1, logprobs=5)
    rows = [SamplingRow(flat, seed=1, sample_index=0, position=0) for _ in lengths]
    with PeakBytes() as measured:
        sample(model.forward(Batch.build(chunks, block_size=8), caches), rows)
    reserved = step_bytes(config, 2, tokens=sum(lengths), samples=len(lengths))
    print(f"{family}, {lengths}: {measured.peak:,} of {reserved:,} bytes")
    assert measured.peak > 10_000
    assert measured.peak <= reserved
