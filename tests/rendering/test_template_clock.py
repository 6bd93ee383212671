"""The time limit of templates counts the template's work, not a pause of the program or the machine."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from agentctx.rendering.templates import limits
from agentctx.rendering.templates.limits import LimitError, Limits, Meter

EACH = 64  # steps between two looks at the clock


def steps_until_refused(monkeypatch: pytest.MonkeyPatch, passes: Iterable[float]) -> int | None:
    """Looks at the clock until the refusal, when these seconds pass between looks; None without one."""
    now = 0.0
    monkeypatch.setattr(limits.time, "thread_time", lambda: now)
    meter = Meter(Limits(seconds=1.0, seconds_per_message=0.0), [], None)
    for look, seconds in enumerate(passes, start=1):
        now += seconds
        try:
            for _ in range(EACH):
                meter.step()
        except LimitError:
            return look
    return None


@pytest.mark.parametrize(
    ("passes", "refused"),
    [
        ([0.12] * 8, None),
        ([0.12] * 20, 9),  # steady work
        ([0.12] * 3 + [30.0] + [0.12] * 5, None),  # one pause, however long
        ([0.7] + [0.12] * 8, None),  # or short
        ([0.12] * 3 + [30.0] + [0.12] * 20, 10),  # its work after the pause still counts
        ([30.0, 0.1, 30.0], 3),  # no second one
        ([0.49] * 3, 3),  # operations that each take long are work
        ([0.6] * 9, 3),  # and can't pass for pauses for ever
    ],
)
def test_one_pause_is_not_the_template_s(
    monkeypatch: pytest.MonkeyPatch, passes: list[float], refused: int | None
) -> None:
    assert steps_until_refused(monkeypatch, passes) == refused
