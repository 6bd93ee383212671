"""Whole requests through the engine, with models of random weights: throughput, the decode step, and a turn's latency."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from statistics import median

from agentctx_engine import Engine, GenerationResult, SamplingParams
from agentctx_engine.attention.named import attention_backend
from agentctx_engine.models.model import Model
from agentctx_engine.models.random_model import RandomWeights
from benchmarks import costs
from benchmarks.bench import COPY, Bench, Measurement
from benchmarks.rows import Row, Target
from benchmarks.sizes import NamedModel
from benchmarks.timing import Timing

STEP_TARGET, TURN_TARGET = Target(0.75), Target(50, "ratio")
WEIGHTS = "reading the weights"
SMALL_POOL = 64  # blocks on the CPU, where the engine's own choice would be far too many
LOADING_SECONDS = 20


class RunningModel:
    """A model of random weights in its engine."""

    def __init__(self, bench: Bench, named: NamedModel) -> None:
        self.bench, self.name, self.config = bench, named.name, named.config
        sizes = bench.sizes
        weights = RandomWeights(named.config, bench.random.getrandbits(31), device=bench.device)
        self.model = Model(
            weights, dtype=bench.dtype, device=bench.device, attention=attention_backend("triton")
        )
        self.engine = Engine(
            self.model,
            num_blocks=None if bench.on_gpu else SMALL_POOL,
            max_samples=max(sizes.requests.batches),
            max_step_tokens=sizes.step_tokens,
            cuda_graphs=bench.graphs and bench.on_gpu,
        )
        graphs = "on" if self.engine.config.cuda_graphs else "off"
        bench.facts[f"engine of the {self.name} model"] = (
            f"{self.engine.state().kv_memory}; CUDA graphs {graphs}"
        )

    def prompt(self, tokens: int) -> list[int]:
        return self.bench.random.choices(range(self.config.vocab_size), k=tokens)

    def run(self, prompts: list[list[int]], answer: int) -> tuple[float, list[GenerationResult]]:
        """Seconds until all have their answers of exactly ``answer`` tokens, and the results."""
        params = SamplingParams(max_tokens=answer, stop_token_ids=())
        start = time.perf_counter()
        results = self.engine.generate_many(prompts, params)
        seconds = time.perf_counter() - start
        if any(result.generated_tokens != answer for result in results):
            raise RuntimeError(f"not every answer has {answer} tokens")
        return seconds, results


def model_measurements(bench: Bench, named: NamedModel, running: list[RunningModel]) -> Iterator[Measurement]:
    """Of one model, which is in ``running`` when they are run."""
    if named is bench.sizes.large:
        turn = bench.sizes.turn
        name = f"{named.name}, turn of {turn.new:,} on {turn.cached:,} cached"
        yield Measurement(name, 25, partial(turn_latency, running, name), TURN_TARGET, rank=0)
    for batch in bench.sizes.requests.batches:
        target = STEP_TARGET if named is bench.sizes.large and batch == 1 else None
        step = f"{named.name}, decode step of {batch}"
        yield Measurement(
            step,
            5 + batch / 16,
            partial(decode_step, running, step, batch, target),
            target,
            rank=1 if target is None else 0,
        )
        sizes = bench.sizes.requests
        whole = f"{named.name}, {batch} requests of {sizes.prompt:,} + {sizes.answer:,} tokens"
        yield Measurement(whole, 5 + batch / 12, partial(requests, running, whole, batch), rank=2)


def decode_step(running: list[RunningModel], name: str, batch: int, target: Target | None) -> Row:
    """A step of ``batch`` samples, scheduling and sampling included, against reading the weights once at the rate of a copy.

    Prompts are cached before, so that all samples decode together from their first token to their last.
    """
    [model] = running
    bench, sizes = model.bench, model.bench.sizes.requests
    prompts = [model.prompt(sizes.prompt) for _ in range(batch)]
    model.run(prompts, sizes.answer)  # also compiles
    seconds = []
    for _ in range(sizes.timed_runs):
        _, results = model.run(prompts, sizes.answer)
        seconds.append(median(r.time_per_token for r in results if r.time_per_token is not None))
    timing = Timing.of(seconds)
    weights = costs.step_weight_bytes(model.config, bench.dtype.itemsize)
    context = sizes.prompt + sizes.answer // 2
    return Row(
        name,
        figure=timing.median * 1000,
        unit="ms",
        share=bench.share(weights / timing.median, COPY),
        share_of=WEIGHTS,
        target=target,
        detail=timing.told()
        | {
            "tokens_per_second": batch / timing.median,
            "weight_bytes": weights,
            "kv_bytes": batch * context * costs.kv_token_bytes(model.config, bench.dtype.itemsize),
        },
    )


def requests(running: list[RunningModel], name: str, batch: int) -> Row:
    """Generated tokens a second from the arrival of all requests to the end of the last, prompts computed."""
    [model] = running
    sizes = model.bench.sizes.requests
    seconds, first = [], []
    for _ in range(1 + sizes.timed_runs):  # the first one compiles
        taken, results = model.run([model.prompt(sizes.prompt) for _ in range(batch)], sizes.answer)
        if any(result.cached_tokens for result in results):
            raise RuntimeError("a new prompt was found in the cache")
        seconds.append(taken)
        first.append(max(r.time_to_first_token for r in results if r.time_to_first_token is not None))
    timing = Timing.of(seconds[1:])
    return Row(
        name,
        figure=batch * sizes.answer / timing.median,
        unit="tokens/s",
        detail=timing.told()
        | {
            "last_first_token_seconds": median(first[1:]),
            "prompt_tokens": batch * sizes.prompt,
            "generated_tokens": batch * sizes.answer,
        },
    )


def turn_latency(running: list[RunningModel], name: str) -> Row:
    """Milliseconds from a prompt to its first token, when all but its last tokens are cached, against none of it."""
    [model] = running
    bench, turn = model.bench, model.bench.sizes.turn
    # Other prompts first, so that nothing is compiled while a clock runs.
    warming = model.prompt(turn.new + bench.sizes.step_tokens)
    model.run([warming], 1)
    model.run([warming[: bench.sizes.step_tokens] + model.prompt(turn.new)], 1)
    history = model.prompt(turn.cached)
    cold = _first_token(model, history + model.prompt(turn.new), cached=0)
    warm = Timing.of(
        [
            _first_token(model, history + model.prompt(turn.new), cached=turn.cached)
            for _ in range(turn.warm_turns)
        ]
    )
    return Row(
        name,
        figure=warm.median * 1000,
        unit="ms",
        share=cold / warm.median,
        share_of="faster than cold",
        share_unit="ratio",
        target=TURN_TARGET,
        detail=warm.told() | {"cold_seconds": cold},
    )


def _first_token(model: RunningModel, prompt: list[int], *, cached: int) -> float:
    """Seconds. Raises ``RuntimeError`` if not exactly ``cached`` tokens were reused."""
    _, [result] = model.run([prompt], 1)
    if result.cached_tokens != cached:
        raise RuntimeError(f"{result.cached_tokens:,} tokens were reused, not {cached:,}")
    assert result.time_to_first_token is not None
    return result.time_to_first_token


def measure_model(bench: Bench, named: NamedModel) -> None:
    """Load a model and measure it."""
    current: list[RunningModel] = []
    measurements = list(model_measurements(bench, named, current))
    model = bench.prepared(measurements, LOADING_SECONDS, lambda: RunningModel(bench, named))
    if model is None:
        return
    current.append(model)
    try:
        bench.measure(measurements)
    finally:
        model.engine.close()
