"""What scheduling and bookkeeping cost beside the model, on SmolLM2 with one thread. Run as a script it prints the share.

The engine's speed beside others, batching and cached turns are in ``engine.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

import pytest
import torch

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from agentctx_engine.models import Model, load_model
from tests.bench.engine import Ours, random_prompt
from tests.model_files import NO_SMOLLM2, smollm2_file

pytestmark = [pytest.mark.bench, pytest.mark.real, pytest.mark.slow]

CONTEXT = 256
STEPS = 12


def scheduling(model: Model) -> tuple[float, float]:
    """Seconds that scheduling and bookkeeping take of a decode step of eight samples, and the whole step's."""
    bench, random = Ours(model, num_blocks=256, max_step_tokens=2048), Random(5)
    requests = [bench.add(random_prompt(random, CONTEXT), 40) for _ in range(8)]
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
def model(smollm2_gguf: Path) -> Model:
    torch.set_num_threads(1)
    return load_model(smollm2_gguf)


def test_scheduling_is_a_fiftieth_of_a_step(model: Model) -> None:
    own, step = scheduling(model)
    assert own <= step / 50


def main() -> None:
    path = smollm2_file()
    if path is None:
        raise SystemExit(f"{NO_SMOLLM2} is not here")
    torch.set_num_threads(1)
    own, step = scheduling(load_model(path))
    print(f"scheduling, step of 8: {own * 1e6:.0f} µs, {own / step:.2%} of the step")


if __name__ == "__main__":
    main()
