"""Turns that were run: predicted and observed side by side, for a terminal and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from agentctx.reports.tables import policy_asides, turn_dict
from agentctx.reports.turn import SessionReport, TurnReport

_COLUMNS = ("turn", "prompt", "predicted", "observed", "difference", "new", "rework", "verdict")


def _cells(turn: TurnReport) -> list[str]:
    difference = "-" if turn.cached is None else f"{turn.cached - turn.predicted:+,}"
    return [
        str(turn.turn),
        f"{turn.prompt:,}",
        f"{turn.predicted:,}",
        "-" if turn.cached is None else f"{turn.cached:,}",
        "0" if difference == "+0" else difference,
        f"{turn.new:,}",
        f"{turn.rework:,}",
        _verdict(turn),
    ]


def _verdict(turn: TurnReport) -> str:
    verdict = "as predicted" if turn.mismatch is None else turn.mismatch
    return verdict if turn.rendered is None else f"{verdict} ({turn.rendered:,} rendered)"


def run_table(report: SessionReport, *, title: str) -> Table:
    """Every turn of a session that was run; a turn that differs from its prediction says why."""
    table = Table(title=title, title_justify="left", header_style="bold", pad_edge=False, box=SIMPLE_HEAD)
    for column in _COLUMNS:
        table.add_column(column, justify="left" if column == "verdict" else "right", no_wrap=True)
    for turn in report.turns:
        table.add_row(*_cells(turn), style="bold red" if turn.mismatch is not None else None)
    return table


def run_line(report: SessionReport) -> str:
    """The closing line: how many turns were as predicted."""
    turns = len(report.turns)
    causes = sorted({turn.mismatch for turn in report.turns if turn.mismatch is not None})
    return (
        f"session {report.session}: {report.as_predicted} of {turns} turns as predicted"
        + (f" (others: {', '.join(causes)})" if causes else "")
        + f", {report.prompt:,} prompt tokens, {100 * report.hit_rate:.1f} % cached, rework factor {report.rework_factor:.2f}"
    ) + policy_asides(report)


def run_json(reports: Sequence[SessionReport], *, backend: str, notes: Sequence[str] = ()) -> str:
    """Every session and turn, as JSON. ``mismatch`` is null where the observed count is the predicted one."""
    data = {
        "version": 1,
        "backend": backend,
        "sessions": [
            {
                "session": report.session,
                "policy": report.policy,
                "cache": report.cache,
                "layout": report.layout,
                "predicted": report.predicted,
                "observed": report.reused,
                "mismatches": len(report.mismatches),
                "unreported": report.unreported,
                "turns": [turn_dict(turn) for turn in report.turns],
                "notes": list(report.notes),
            }
            for report in reports
        ],
        "notes": list(notes),
    }
    return json.dumps(data, ensure_ascii=False, indent=1) + "\n"
