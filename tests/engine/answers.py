"""What a request's answer must be: that of a fresh engine without a cache."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from agentctx_engine.runtime.config import EngineConfig
from agentctx_engine.runtime.model_runner import DecoderModel
from agentctx_engine.runtime.request import Sample

from .schedules import Arrival, Run, Schedule, cancelled, run

TIE = 1e-4  # two logits closer than this may change places when the order of a sum changes


def fresh_answer(
    model: DecoderModel, prompt: tuple[int, ...], max_tokens: int, *, deterministic: bool
) -> Sample:
    """The greedy answer of a fresh engine that has no cache, for this one request in one chunk."""
    config = EngineConfig(num_blocks=16, block_size=16, prefix_cache="none", deterministic=deterministic)
    schedule = Schedule(config, (Arrival(prompt, max_tokens, step=0),))
    [request] = run(model, schedule, keep_logits=True, check=False).requests
    assert (request.cached_tokens, request.computed_tokens) == (0, len(prompt))
    return request.samples[0]


def same_bits(ours: list[npt.NDArray[np.float32]], theirs: list[npt.NDArray[np.float32]]) -> bool:
    """Equal to the last bit, not only as numbers: the sign of a zero counts."""
    pairs = zip(ours, theirs, strict=True)
    return all(np.array_equal(a.view(np.uint32), b.view(np.uint32)) for a, b in pairs)


def assert_same_bits(result: Run, schedule: Schedule, alone: Callable[[Arrival], Sample]) -> None:
    """All of a deterministic schedule's logits equal those of fresh engines."""
    for request, arrival in zip(result.requests, schedule.arrivals, strict=True):
        expected = alone(arrival)
        for sample in request.samples:
            length = len(sample.output)
            assert length == len(expected.output) or cancelled(request)
            assert sample.output == expected.output[:length]
            assert same_bits(sample.logits, expected.logits[:length])


def assert_same_answers(result: Run, schedule: Schedule, alone: Callable[[Arrival], Sample]) -> None:
    """But for rounding: where an answer leaves the other one, the two tokens' logits are as good as equal."""
    for request, arrival in zip(result.requests, schedule.arrivals, strict=True):
        expected = alone(arrival)
        for sample in request.samples:
            for ours, theirs, logits, reference in zip(
                sample.output, expected.output, sample.logits, expected.logits, strict=False
            ):
                np.testing.assert_allclose(logits, reference, atol=TIE / 2, rtol=0)
                if ours != theirs:
                    assert abs(reference[ours] - reference[theirs]) < TIE
                    break
            else:
                assert len(sample.output) == len(expected.output) or cancelled(request)
