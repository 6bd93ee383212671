"""Steps that fail, files that fail and files that come late, at any moment of any schedule: whoever is spared has the
right answer, and every token of its prompt is counted once.
"""

from __future__ import annotations

import os
from random import Random
from tempfile import TemporaryDirectory

from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from agentctx_engine.runtime.config import EngineConfig

from .faults import FailingModel, Faults, InjectedError, gated_files, random_faults
from .schedules import Arrival, Run, Schedule, cancelled, check_end, run

VOCABULARY = 40
EXAMPLES = int(os.environ.get("AGENTCTX_FAULT_EXAMPLES", "40"))


def faulty_schedule(random: Random, directory: str) -> Schedule:
    """Three tiers, pools so small that every hit moves something, and crowds that ask for five texts in turn."""
    block_size = random.choice([2, 4, 5])
    largest = -(-44 // block_size)
    max_samples = random.randint(3, 6)
    config = EngineConfig(
        block_size=block_size,
        num_blocks=largest + random.choice([random.randint(1, largest // 2), largest]),
        max_step_tokens=random.choice([max_samples, 9, 17, 64]),
        max_chunk_tokens=random.choice([None, 1, 3, 7]),
        max_samples=max_samples,
        host_blocks=random.choice([random.randint(1, 3), random.randint(1, largest)]),
        disk_dir=directory if random.random() < 0.9 else None,
        disk_bytes=random.randint(12_000, 90_000),
        token_granular=random.random() < 0.3,
        async_scheduling=random.random() < 0.5,
    )
    stems = [tuple(random.randrange(1, VOCABULARY) for _ in range(30)) for _ in range(5)]
    arrivals = []
    for wave in range(8):  # some requests for one text, when what came before has mostly ended
        stem, first = stems[wave] if wave < 5 else random.choice(stems), random.randint(10, 16) * wave
        for _ in range(random.choice([1, 2, 3])):
            step = first + random.choice([0, 0, 1, 3])
            own = tuple(random.randrange(1, VOCABULARY) for _ in range(random.randint(0, 2)))
            arrivals.append(
                Arrival(
                    prompt=stem[: random.choice([30, 30, random.randint(8, 30)])] + own,
                    max_tokens=random.choice([1, 3, random.randint(1, 11)]),
                    step=step,
                    n=random.choice([1, 1, 1, 2, 3]),
                    salt="a" if random.random() < 0.1 else None,
                    reuse=random.random() < 0.7,
                    cancel_step=step + random.randint(0, 9) if random.random() < 0.1 else None,
                )
            )
    arrivals.sort(key=lambda arrival: arrival.step)
    return Schedule(config, tuple(arrivals))


def run_with(schedule: Schedule, met: Faults) -> Run:
    model = FailingModel.with_vocabulary(VOCABULARY)
    model.failing = met.failing_calls
    pace = met.let_through
    with gated_files(met.failing_reads) as gate:
        result = run(
            model,
            schedule,
            before_step=lambda step: gate.allow(pace[step % len(pace)]),
            may_fail=InjectedError,
        )
        result.core.settle()
        check_end(result)
        result.core.kv.close()
    for request, arrival in zip(result.requests, schedule.arrivals, strict=True):
        expected = model.greedy(list(arrival.prompt), arrival.max_tokens)
        for sample in request.samples:
            if request.error is not None or cancelled(request):
                assert sample.output == expected[: len(sample.output)]
            else:
                assert sample.output == expected
    return result


def run_seed(seed: int) -> Run:
    random = Random(seed)
    with TemporaryDirectory() as directory:
        return run_with(faulty_schedule(random, directory), random_faults(random))


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 2**32))
def test_whoever_is_spared_is_answered_and_counted_as_without_faults(seed: int) -> None:
    result = run_seed(seed)
    tiers = result.core.kv.tier_state()
    assert tiers is not None
    event(f"a step failed: {result.core.totals.requests_failed > 0}")
    event(f"a file failed: {tiers.failed_blocks > 0}")
