"""Two runs of one schedule by engines that should not differ."""

from __future__ import annotations

import numpy as np

from .answers import TIE
from .schedules import Run, check_end


def assert_same_runs(ours: Run, theirs: Run) -> None:
    """Step by step the same, but for rounding: where an answer leaves the other one, two logits are as good as equal."""
    check_end(ours)
    same = True
    for request, expected in zip(ours.requests, theirs.requests, strict=True):
        for sample, wanted in zip(request.samples, expected.samples, strict=True):
            for token, other, logits, reference in zip(
                sample.output, wanted.output, sample.logits, wanted.logits, strict=False
            ):
                np.testing.assert_allclose(logits, reference, atol=TIE / 2, rtol=0)
                if token != other:
                    assert abs(reference[token] - reference[other]) < TIE
                    same = False
                    break
    if same:
        assert [r.cached_tokens for r in ours.requests] == [r.cached_tokens for r in theirs.requests]
        assert ours.finish_order == theirs.finish_order
        assert ours.core.kv.pool_state() == theirs.core.kv.pool_state()
