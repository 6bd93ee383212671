"""A comparison as terminal table, Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from agentctx.reports.turn import (
    OTHER_TEMPLATE,
    PolicyTotals,
    SessionReport,
    TurnReport,
    totals_by_policy,
)

COLUMNS = (
    "policy", "prompt", "cached", "reprocessed", "new", "rework", "rework factor", "worst turn", "final prompt", "hit rate",
)  # fmt: skip


OBSERVED_COLUMNS = ("policy", "prompt", "predicted", "observed", "wrong turns", *COLUMNS[3:])


def summary_columns(rows: Sequence[PolicyTotals]) -> tuple[str, ...]:
    """The columns of a comparison: what was predicted and what was observed, where turns were run."""
    return OBSERVED_COLUMNS if any(row.observed for row in rows) else COLUMNS


def summary_cells(rows: Sequence[PolicyTotals]) -> list[list[str]]:
    """The cells below :func:`summary_columns`, a list for each policy."""
    observed = summary_columns(rows) is OBSERVED_COLUMNS
    return [_cells(row, observed=observed) for row in rows]


def _cells(row: PolicyTotals, *, observed: bool) -> list[str]:
    cached = [f"{row.total('reused'):,}"]
    if observed:
        cached = [f"{row.total('predicted'):,}", *cached, f"{row.wrong_turns:,}"]
    return [
        row.policy + ("*" if row.stand_in else ""),
        f"{row.total('prompt'):,}",
        *cached,
        *(f"{row.total(name):,}" for name in ("reprocessed", "new", "rework")),
        f"{row.rework_factor:.2f}",
        f"{row.worst_turn:,}",
        f"{row.final_prompt:,}",
        f"{100 * row.hit_rate:.1f} %",
    ]


def comparison_table(reports: Sequence[SessionReport], *, title: str) -> Table:
    """The table for a terminal; the policy that reprocesses least is marked with an arrow."""
    table = Table(title=title, title_justify="left", header_style="bold", pad_edge=False, box=SIMPLE_HEAD)
    rows = totals_by_policy(reports)
    columns = summary_columns(rows)
    for column in columns:
        table.add_column(column, justify="left" if column == "policy" else "right", no_wrap=True)
    least = min((row.total("reprocessed") for row in rows), default=0)
    for row, cells in zip(rows, summary_cells(rows), strict=True):
        best = row.total("reprocessed") == least
        place = columns.index("reprocessed")
        cells[place] = f"→ {cells[place]}" if best else cells[place]
        table.add_row(*cells, style="bold" if best else None)
    return table


def comparison_markdown(reports: Sequence[SessionReport], *, notes: Sequence[str] = ()) -> str:
    """The table in GitHub-flavoured Markdown."""
    rows = totals_by_policy(reports)
    columns = summary_columns(rows)
    lines = ["| " + " | ".join(columns) + " |", "|:--" + "|--:" * (len(columns) - 1) + "|"]
    lines += ["| " + " | ".join(cells) + " |" for cells in summary_cells(rows)]
    return "\n".join(lines) + "\n" + "".join(f"\n{note}\n" for note in notes)


def turn_dict(turn: TurnReport) -> dict[str, Any]:
    """One turn as plain data. ``cached`` is null when nothing was observed; ``reused`` is what the sums use."""
    return {
        "turn": turn.turn,
        "prompt": turn.prompt,
        "rendered": turn.prompt if turn.rendered is None else turn.rendered,
        "predicted": turn.predicted,
        "cached": turn.cached,
        "reused": turn.reused,
        "reprocessed": turn.reprocessed,
        "new": turn.new,
        "rework": {
            "total": turn.rework, "rounding": turn.rounding, "broken_prefix": turn.broken, "server": turn.server,
        },
        "reply": turn.reply,
        "dropped": turn.dropped,
        "compacted": turn.compacted,
        "exact": turn.exact,
        "mismatch": turn.mismatch,
        "asked": turn.asked,
        "asked_reused": turn.asked_reused,
        "problem": turn.problem,
        "divergence": None
        if turn.divergence is None
        else {
            "zone": turn.divergence.zone, "item": turn.divergence.item, "field": turn.divergence.field,
            "char": turn.divergence.char, "token": turn.divergence.token,
        },
    }  # fmt: skip


def comparison_json(reports: Sequence[SessionReport], *, notes: Sequence[str] = ()) -> str:
    """Totals per policy and every turn, as JSON."""
    data = {
        "version": 1,
        "policies": [
            {
                "policy": row.policy,
                **{
                    name: row.total(name)
                    for name in ("prompt", "predicted", "reused", "reprocessed", "new", "rework")
                },
                "observed": row.observed,
                "wrong_turns": row.wrong_turns,
                "rework_factor": round(row.rework_factor, 6),
                "worst_turn": row.worst_turn,
                "final_prompt": row.final_prompt,
                "hit_rate": round(row.hit_rate, 6),
                "summary_stand_in": row.stand_in,
            }
            for row in totals_by_policy(reports)
        ],
        "sessions": [
            {
                "session": report.session,
                "policy": report.policy,
                "cache": report.cache,
                "layout": report.layout,
                "turns": [turn_dict(turn) for turn in report.turns],
            }
            for report in reports
        ],
        "notes": list(notes),
    }
    return json.dumps(data, ensure_ascii=False, indent=1) + "\n"


def turn_line(turn: TurnReport) -> Text:
    """One line of the per-turn view; figures line up over the turns of a session."""
    rework = turn.rework
    reasons = [
        name
        for name, tokens in (
            ("rounding", turn.rounding),
            ("broken prefix", turn.broken),
            ("server", turn.server),
        )
        if tokens > 0
    ]
    line = Text(
        f"turn {turn.turn:>4}  prompt {turn.prompt:>9,}  cached {turn.reused:>9,}  {100 * turn.hit_rate:>5.1f} %  "
        f"new {turn.new:>7,}  rework {rework:>9,}  {', '.join(reasons) or '-'}"
    )
    if turn.compacted:
        line.append("  compaction")
    if turn.divergence is not None:
        line.append(f"  {turn.divergence}")
    if turn.rendered is not None:
        line.append(f"  {turn.rendered:,} rendered")
    if turn.mismatch == OTHER_TEMPLATE:
        line.append(f"  {turn.mismatch}")
    if turn.asked:
        line.append(f"  asked {turn.asked:,} for a summary")
    if turn.problem is not None:
        line.append(f"  problem: {' '.join(turn.problem.split())}")
    if turn.broken:
        line.stylize("bold red" if not turn.compacted else "yellow")
    return line


def session_line(report: SessionReport) -> str:
    """The closing line of a session's per-turn view."""
    broken = sum(turn.broken for turn in report.turns)
    return (
        f"session {report.session}, {report.policy}: {len(report.turns)} turns, {report.prompt:,} prompt tokens, "
        f"{100 * report.hit_rate:.1f} % cached, rework factor {report.rework_factor:.2f}, "
        f"{report.broken_turns} broken turns ({broken:,} tokens)"
    ) + policy_asides(report)


def policy_asides(report: SessionReport) -> str:
    """What a policy did besides the turns' own prompts, for the end of a closing line."""
    asked = f", {report.asked:,} tokens asked for summaries" if report.asked else ""
    return asked + (f", {report.problems} turns with a problem of the policy" if report.problems else "")
