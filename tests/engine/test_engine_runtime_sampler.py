"""The sampler: each filter against a plain computation, and rows that don't notice each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from agentctx_engine.runtime.errors import RequestError
from agentctx_engine.runtime.sampler import SORTED_HEAD, SamplingRow, choose, sample, uniform
from agentctx_engine.runtime.sampling_params import SamplingParams

VOCABULARY = 300


def logits_row(seed: int, vocabulary: int = VOCABULARY, spread: float = 2.0) -> torch.Tensor:
    return torch.randn(vocabulary, generator=torch.Generator().manual_seed(seed)) * spread


def plain_distribution(logits: torch.Tensor, params: SamplingParams, seen: list[int]) -> dict[int, float]:
    """The distribution by the documented steps, one token at a time, in float64."""
    scores = logits.double().tolist()
    for token in set(seen):
        penalty = params.repetition_penalty
        scores[token] = scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
    best = max(scores)
    weights = {t: math.exp((s - best) / params.temperature) for t, s in enumerate(scores)}
    ranked = sorted(weights.items(), key=lambda item: -item[1])
    if params.top_k:
        ranked = ranked[: params.top_k]
    mass, kept = sum(w for _, w in ranked), []
    before = 0.0
    for token, weight in ranked:
        if before >= params.top_p * mass:
            break
        kept.append((token, weight))
        before += weight
    kept = [(t, w) for t, w in kept if w >= params.min_p * kept[0][1]]
    total = sum(w for _, w in kept)
    return {t: w / total for t, w in kept}


PARAMS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=1.0, top_k=5),
    SamplingParams(temperature=1.5, top_p=0.8),
    SamplingParams(temperature=1.0, min_p=0.2),
    SamplingParams(temperature=0.9, top_k=40, top_p=0.9, min_p=0.02, repetition_penalty=1.3),
    SamplingParams(temperature=1.0, top_k=1),
    SamplingParams(temperature=1.0, top_p=1e-6),
    SamplingParams(temperature=2.0, repetition_penalty=0.8),
]


@pytest.mark.parametrize("params", PARAMS, ids=str)
def test_draws_follow_the_documented_distribution(params: SamplingParams) -> None:
    logits, seen = logits_row(1), [3, 3, 7, 200]
    expected = plain_distribution(logits, params, seen)
    draws = 4000
    rows = [SamplingRow(params, seed, 0, 0, tuple(set(seen))) for seed in range(draws)]
    counts = np.bincount([s.token_id for s in sample(logits.expand(draws, -1), rows)], minlength=VOCABULARY)
    assert {t for t in range(VOCABULARY) if counts[t]} <= expected.keys()
    for token, probability in expected.items():
        # Five standard deviations, and a few draws for the tail, where the count is far from normal.
        deviation = 5.0 * math.sqrt(probability * (1 - probability) * draws) + 4.0 * (probability < 0.999)
        assert abs(counts[token] - probability * draws) <= deviation, (token, counts[token], probability)


def test_greedy_takes_the_most_likely_and_the_penalty_moves_it() -> None:
    logits = torch.zeros(2, 10)
    logits[:, 4], logits[:, 6] = 3.0, 2.0
    plain = SamplingRow(SamplingParams(), 0, 0, 0, (4,))
    penalised = SamplingRow(SamplingParams(repetition_penalty=2.0), 0, 0, 0, (4,))
    assert [s.token_id for s in sample(logits, [plain, penalised])] == [4, 6]
    assert logits[1, 4] == 3.0, "the caller's logits were changed"


@settings(max_examples=40, deadline=None)
@given(
    params=st.lists(
        st.builds(
            SamplingParams,
            temperature=st.sampled_from([0.0, 0.3, 1.0, 2.0]),
            top_k=st.sampled_from([0, 1, 7, 50, 1500]),
            top_p=st.sampled_from([1.0, 0.99, 0.5]),
            min_p=st.sampled_from([0.0, 0.1]),
            repetition_penalty=st.sampled_from([1.0, 1.2]),
            logprobs=st.sampled_from([None, 0, 3]),
        ),
        min_size=1,
        max_size=9,
    ),
    order=st.randoms(use_true_random=False),
)
def test_a_row_does_not_notice_the_others(params: list[SamplingParams], order: object) -> None:
    """Vocabulary beyond ``SORTED_HEAD``, so that both ways to sort occur, alone and together."""
    vocabulary = 2 * SORTED_HEAD
    logits = torch.stack([logits_row(i, vocabulary, spread=(0.05, 3.0)[i % 2]) for i in range(len(params))])
    rows = [SamplingRow(p, 11 + i, i, 5, (1, 2, 3)) for i, p in enumerate(params)]
    together = sample(logits, rows)
    shuffled = list(range(len(params)))
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    mixed = sample(logits[shuffled], [rows[i] for i in shuffled])
    for place, i in enumerate(shuffled):
        assert mixed[place] == together[i] == sample(logits[i : i + 1], [rows[i]])[0]


def test_flat_distribution_needs_the_whole_sort_and_gets_it() -> None:
    """Top-p beyond the head: every token of an all-but-flat distribution must stay reachable."""
    vocabulary = 8 * SORTED_HEAD
    params = SamplingParams(temperature=1.0, top_p=0.999)
    logits = torch.linspace(0.0, 0.01, vocabulary)
    rows = [SamplingRow(params, seed, 0, 0) for seed in range(64)]
    drawn = [s.token_id for s in sample(logits.expand(64, -1), rows)]
    assert min(drawn) < vocabulary - 4 * SORTED_HEAD
    assert min(drawn) >= vocabulary * 0.0005


def test_extreme_temperatures_and_masked_tokens() -> None:
    logits = torch.full((3, 50), -torch.inf)
    logits[:, 7], logits[:, 9] = 10.0, 9.0
    hot = SamplingRow(SamplingParams(temperature=1e6, top_k=20), 1, 0, 0)
    cold = SamplingRow(SamplingParams(temperature=1e-6), 2, 0, 0)
    nucleus = SamplingRow(SamplingParams(temperature=1.0, top_p=0.9999), 3, 0, 0)
    for seed in range(50):
        rows = [SamplingRow(r.params, seed, 0, 0) for r in (hot, cold, nucleus)]
        ids = [s.token_id for s in sample(logits, rows)]
        assert set(ids) <= {7, 9}
        assert ids[1] == 7


def test_logprobs_are_of_the_raw_distribution() -> None:
    logits = logits_row(3)[None]
    params = SamplingParams(temperature=0.5, top_k=3, repetition_penalty=1.5, logprobs=4)
    [token] = sample(logits, [SamplingRow(params, 9, 0, 0, (1, 2))])
    expected = torch.log_softmax(logits[0].double(), dim=-1)
    assert token.logprob == pytest.approx(expected[token.token_id].item(), abs=1e-5)
    assert token.top is not None
    assert [t for t, _ in token.top] == expected.topk(4).indices.tolist()
    assert [p for _, p in token.top] == pytest.approx(expected.topk(4).values.tolist(), abs=1e-5)


def test_uniforms_are_fixed_for_ever() -> None:
    """Seeds are written down by users: these numbers may not change between versions."""
    assert uniform(0, 0, 0) == 0.011546754286331562
    assert uniform(1, 0, 0) == 0.3035680343067586
    assert uniform(1, 1, 0) == 0.0751511510959112
    assert uniform(1, 0, 1) == 0.9002684531124185
    assert uniform(2**64 - 1, 3, 9) == 0.1552785470010588
    numbers = np.array([uniform(5, s, p) for s in range(20) for p in range(500)])
    assert abs(numbers.mean() - 0.5) < 0.015
    assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.03


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_tokens", 0), ("temperature", -0.1), ("temperature", math.nan), ("temperature", math.inf), ("top_k", -1),
        ("top_p", 0.0), ("top_p", 1.1), ("min_p", -0.1), ("min_p", 1.5), ("repetition_penalty", 0.0), ("n", 0),
        ("seed", -1), ("seed", 2**64), ("logprobs", -1),
    ],
)  # fmt: skip
def test_parameters_out_of_range_are_named(field: str, value: float) -> None:
    with pytest.raises(RequestError, match=f"^{field}="):
        SamplingParams(**{field: value})


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.0),
        SamplingParams(temperature=1.0, top_p=0.9),
        SamplingParams(temperature=1.0, top_k=3),
    ],
)
def test_rows_that_nothing_can_be_drawn_from_are_told(params: SamplingParams, value: float) -> None:
    logits = torch.stack([logits_row(1), logits_row(2), logits_row(3)])
    logits[1, 3] = value
    logits[2, 5:] = -torch.inf  # masked tokens are no fault
    rows = [SamplingRow(params, seed=1, sample_index=0, position=0)] * 3
    assert choose(logits, rows).wait()[1] == [False, True, False]
    logits[0] = -torch.inf
    assert choose(logits, rows).wait()[1] == [True, True, False]
