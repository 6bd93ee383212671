"""Break-even on the recorded sessions of the shared corpus, summary requests included."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentctx.compare import Setting, compare
from agentctx.errors import InputError
from agentctx.reports.turn import SessionReport
from agentctx.traces import Session, expand, read_sessions

RATIO = 0.1


def cost(report: SessionReport) -> float:
    processed = report.reprocessed + report.asked_reprocessed
    return processed + RATIO * (report.reused + report.asked - report.asked_reprocessed)


@pytest.mark.corpus
@pytest.mark.slow
def test_break_even_keeps_up_with_the_better_policy_and_beats_both_somewhere(shared_dir: Path) -> None:
    sessions: list[Session] = []
    for path in expand([str(shared_dir / "corpus/traces")]):
        try:
            sessions += read_sessions(path)
        except InputError:
            assert Path(path).suffix == ".tsv"
    specs = ("append-only", "summarize-budget:8000", "break-even:0.1,2000")
    comparison = compare(sessions, specs, Setting("slot", "chatml"), jobs=1)
    assert not comparison.failures
    append, budget, even = ([cost(report) for report in comparison.reports[i::3]] for i in range(3))
    assert sum(even) <= 1.1 * min(sum(append), sum(budget))
    assert sum(mine < min(others) for mine, *others in zip(even, append, budget, strict=True)) >= 1
    turns = [turn for report in comparison.reports[2::3] for turn in report.turns]
    assert all(turn.asked > 0 for turn in turns if turn.compacted)
    assert all(turn.asked == 0 for turn in turns if not turn.compacted)
