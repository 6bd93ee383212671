"""What a checked turn costs beyond its tokenizing, as a ratio to encoding the prompt again (see ``session_overhead.py``)."""

from __future__ import annotations

import pytest

from .session_overhead import MOST_RATIO, ROWS, UNCLAIMED, measure


@pytest.mark.bench
@pytest.mark.parametrize("name", [name for name in ROWS if name not in UNCLAIMED])
def test_a_turn_costs_a_twentieth_of_encoding_again(name: str) -> None:
    ratios = []
    for _ in range(4):  # a busy machine can spoil some measurements, not all
        row = measure(name, ROWS[name])
        print(f"{name}: {row.turn * 1e3:.2f} ms of {row.whole * 1e3:.1f} ms, {row.ratio:.4f}")
        ratios.append(row.ratio)
        if row.ratio <= MOST_RATIO:
            return
    pytest.fail(f"{name}: at best {min(ratios):.3f} of a full encoding; at most {MOST_RATIO} is allowed")
