"""What a prefix costs that comes back from host memory or from disk, against computing it anew: SmolLM2, 4,096 tokens.

    python tests/bench/test_bench_engine_tiers.py

Beside each stand its bytes per second, and those of a plain read of the file and of a copy within memory.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from agentctx_engine import Engine, SamplingParams
from agentctx_engine.models import load_model
from tests.bench.engine import random_prompt
from tests.model_files import NO_SMOLLM2, smollm2_file

pytestmark = [pytest.mark.bench, pytest.mark.real, pytest.mark.slow]

PREFIX = 4096
ONE = SamplingParams(max_tokens=1)
REPETITIONS = 3
FEW = 4  # blocks of the prefix that may stay on the device


@dataclass(frozen=True)
class Costs:
    """Seconds for the prefix, and the bytes of its keys and values. The least of some repetitions, of ``cold`` one."""

    kv_bytes: int
    cold: float  # prompt computed, one token sampled
    host: float  # the same with the prefix in host memory
    files: float  # … in files of the disk tier
    save: float
    restore: float  # a snapshot read, checked and put back
    plain_read: float
    plain_copy: float


def measure(path: Path, directory: Path) -> Costs:
    torch.set_num_threads(2)
    model, random = load_model(path), Random(2)
    prompt = [*random_prompt(random, PREFIX), 5]
    blocks = PREFIX // 16 + 8
    file = directory / "prefix"
    with Engine(model, num_blocks=blocks, host_blocks=blocks, max_context=PREFIX + 64) as engine:
        cold = engine.generate(prompt, ONE).total_time
        save = timed(lambda: engine.save(prompt[:PREFIX], file))
        host = least(lambda: push_out(engine), lambda: reused(engine, prompt))
        tiers = engine.state().tiers
        assert tiers is not None
        assert tiers.loaded_blocks >= REPETITIONS * (PREFIX // 16 - FEW)
        restore = least(engine.drop_cached, lambda: timed(lambda: engine.restore(file)))
        reused(engine, prompt)
        kv_bytes = PREFIX // 16 * engine.state().block_bytes
    with Engine(
        model, num_blocks=blocks, host_blocks=1, disk_dir=directory, disk_bytes=2**31, max_context=PREFIX + 64
    ) as engine:
        engine.restore(file)
        files = least(lambda: push_out(engine), lambda: reused(engine, prompt))
        tiers = engine.state().tiers
        assert tiers is not None
        assert tiers.read_blocks >= REPETITIONS * (PREFIX // 16 - FEW)
    source = torch.ones(kv_bytes // 4)
    target = torch.empty_like(source)
    return Costs(
        kv_bytes, cold, host, files, save, restore,
        plain_read=least(lambda: None, lambda: timed(file.read_bytes)),
        plain_copy=least(lambda: None, lambda: timed(lambda: target.copy_(source))),
    )  # fmt: skip


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def least(prepare: Callable[[], object], seconds: Callable[[], float]) -> float:
    best = float("inf")
    for _ in range(REPETITIONS):
        prepare()
        best = min(best, seconds())
    return best


def reused(engine: Engine, prompt: list[int]) -> float:
    result = engine.generate(prompt, ONE)
    assert result.computed_tokens == 1
    return result.total_time


def push_out(engine: Engine) -> None:
    """Have the whole pool taken by another text that nobody computes, so that all that was cached moves down."""
    kv = engine._core.kv
    tokens = np.arange(kv.pool_state().total * 16 - 16, dtype=np.int32) + np.random.default_rng().integers(
        10_000
    )

    def take() -> None:
        prefix = kv.place(tokens, "filler")
        assert prefix is not None
        kv.wait_until_safe([prefix.tables])
        kv.placed(prefix)

    engine._loop.call(take)


@pytest.fixture(scope="module")
def costs(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Costs:
    return measure(smollm2_gguf, tmp_path_factory.mktemp("tiers"))


def test_a_snapshot_is_restored_ten_times_faster_than_computed(costs: Costs) -> None:
    assert costs.cold / costs.restore >= 10


def test_a_hit_in_host_memory_is_twenty_times_faster_than_computing(costs: Costs) -> None:
    assert costs.cold / costs.host >= 20


def main() -> None:
    path = smollm2_file()
    if path is None:
        raise SystemExit(f"{NO_SMOLLM2} is not here")
    with TemporaryDirectory() as directory:
        costs = measure(path, Path(directory))
    print(f"{PREFIX:,} tokens of SmolLM2 in float32, {costs.kv_bytes / 1e6:.0f} MB of keys and values")
    for name, seconds in (
        ("computed", costs.cold),
        ("hit in host memory, one token computed", costs.host),
        ("hit in files, one token computed", costs.files),
        ("snapshot restored", costs.restore),
        ("snapshot saved", costs.save),
        ("plain read of the file", costs.plain_read),
        ("plain copy in memory", costs.plain_copy),
    ):
        print(
            f"{name:42}{seconds * 1e3:10.1f} ms {costs.kv_bytes / seconds / 1e9:8.2f} GB/s {costs.cold / seconds:8.1f} ×"
        )


if __name__ == "__main__":
    main()
