"""HTML report of a comparison: the table, a strip per session and policy, and the running totals.

One file, no scripts, no outside resources: it opens from disk and can be attached to a pull request.
Colours are a colour-blind-safe set, and reprocessed-again tokens also carry a hatch, so that colour is never the only sign.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from agentctx.reports.tables import summary_cells, summary_columns
from agentctx.reports.turn import PolicyTotals, SessionReport, TurnReport, totals_by_policy

CACHED, NEW, REWORK = "#b9c6d4", "#0f8a6d", "#d1495b"
LINES = ("#1b6ca8", "#d1495b", "#0f8a6d", "#b8860b", "#6a4c93", "#333333", "#c06000", "#00798c")
DASHES = ("", "8 4", "2 3", "10 3 2 3", "5 5", "1 4", "12 4", "6 2 2 2")

_STYLE = """
:root{font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;color:#1d2733}
body{max-width:1080px;margin:2rem auto;padding:0 1.25rem}
h1{font-size:1.5rem;margin:0 0 .25rem}h2{font-size:1.15rem;margin:2.2rem 0 .5rem}
p,li{max-width:75ch}.muted{color:#5b6877}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.75rem 0}
th,td{padding:.28rem .7rem;text-align:right;border-bottom:1px solid #e3e8ee}
th{font-weight:600;border-bottom:2px solid #1d2733}th:first-child,td:first-child{text-align:left}
td{white-space:nowrap}tr.best td{background:#eef7f4}svg{display:block;max-width:100%}
.key span{display:inline-block;margin-right:1.4rem}.key i{display:inline-block;width:1em;height:1em;margin-right:.4em;vertical-align:-.12em}
details{margin:.4rem 0}summary{cursor:pointer}
@media (prefers-color-scheme:dark){:root{color:#dfe6ee;background:#14191f}th{border-color:#dfe6ee}th,td{border-bottom-color:#2c3640}tr.best td{background:#17352d}.muted{color:#93a1b0}svg text{fill:#dfe6ee}}
"""

_HATCH = (
    '<pattern id="hatch" width="4" height="4" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    f'<rect width="4" height="4" fill="{REWORK}"/><rect width="1.4" height="4" fill="#fff" fill-opacity=".55"/></pattern>'
)


def _rows(table: Sequence[PolicyTotals]) -> Iterable[str]:
    least = min((row.total("reprocessed") for row in table), default=0)
    for row, cells in zip(table, summary_cells(table), strict=True):
        best = ' class="best"' if row.total("reprocessed") == least else ""
        yield f"<tr{best}>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def _strip(report: SessionReport, width: int, most_turns: int) -> str:
    """One bar per turn: cached below, new above it, rework hatched on top. The tallest bar is the longest prompt."""
    height = 84
    longest = max((turn.prompt for turn in report.turns), default=1)
    bar = width / max(most_turns, 1)
    scale = height / max(longest, 1)
    out = [
        f'<svg viewBox="0 0 {width} {height + 16}" width="{width}" height="{height + 16}" role="img" '
        f'aria-label="turns of {escape(report.session)} under {escape(report.policy)}">'
    ]
    for index, turn in enumerate(report.turns):
        new = min(turn.new, turn.reprocessed)
        parts = ((turn.reused, CACHED), (new, NEW), (turn.reprocessed - new, "url(#hatch)"))
        top = float(height)
        tip = (
            f"turn {turn.turn}: prompt {turn.prompt:,}, cached {turn.reused:,}, new {turn.new:,}, rework {turn.rework:,}"
            + (f", breaks at {turn.divergence}" if turn.divergence else "")
        )
        out.append(f"<g><title>{escape(tip)}</title>")
        for tokens, fill in parts:
            size = tokens * scale
            top -= size
            if size > 0:
                out.append(
                    f'<rect x="{index * bar:.2f}" y="{top:.2f}" width="{max(bar - 0.6, 0.4):.2f}" '
                    f'height="{size:.2f}" fill="{fill}"/>'
                )
        if turn.compacted:
            out.append(f'<text x="{index * bar:.2f}" y="{height + 12}" font-size="10">▲</text>')
        out.append("</g>")
    out.append(
        f'<line x1="0" x2="{width}" y1="{height}" y2="{height}" stroke="#8894a2" stroke-width=".6"/></svg>'
    )
    return "".join(out)


def _ticks(most: int) -> list[int]:
    """Four or five round values from 0 to ``most``."""
    rough = max(most / 4, 1)
    magnitude = 10 ** int(math.log10(rough))
    step = next(size * magnitude for size in (1, 2, 2.5, 5, 10) if size * magnitude >= rough)
    return [int(step * index) for index in range(int(most / step) + 1)]


def _running_totals(reports: Sequence[SessionReport]) -> str:
    """Cumulative reprocessed tokens over the turns of one session, a line per policy, named at its end."""
    width, height, left, right = 1000, 230, 70, 190
    most = max((report.reprocessed for report in reports), default=1) or 1
    turns = max((len(report.turns) for report in reports), default=1)
    out = [f'<svg viewBox="0 0 {width} {height + 34}" width="{width}" height="{height + 34}" role="img">']
    for tick in _ticks(most):
        y = height - height * 0.95 * tick / most
        out.append(
            f'<line x1="{left}" x2="{width - right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#8894a2" stroke-opacity=".35"/>'
            f'<text x="{left - 8}" y="{y + 4:.1f}" font-size="11" text-anchor="end">{tick:,}</text>'
        )
    ends: list[tuple[float, str, str]] = []
    for index, report in enumerate(reports):
        total, points = 0, []
        for turn_index, turn in enumerate(report.turns, 1):
            total += turn.reprocessed
            x = left + (width - left - right) * turn_index / turns
            points.append(f"{x:.1f},{height - height * 0.95 * total / most:.1f}")
        colour = LINES[index % len(LINES)]
        dash = DASHES[index % len(DASHES)]
        out.append(
            f'<polyline points="{" ".join(points)}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
        )
        ends.append((height - height * 0.95 * total / most, report.policy, colour))
    previous = float("inf")
    for y, policy, colour in sorted(ends, reverse=True):  # from the bottom up, labels pushed apart
        y = min(y, previous - 14)
        previous = y
        out.append(
            f'<text x="{width - right + 6}" y="{y + 4:.1f}" font-size="12" style="fill:{colour}">{escape(policy)}</text>'
        )
    out.append(
        f'<text x="{(left + width - right) / 2}" y="{height + 26}" font-size="11" text-anchor="middle">turn (1 to {turns})</text></svg>'
    )
    return "".join(out)


def _turn_row(turn: TurnReport) -> str:
    cells = (
        turn.turn,
        *(
            f"{count:,}"
            for count in (
                turn.prompt,
                turn.predicted,
                turn.reused,
                turn.new,
                turn.rounding,
                turn.broken,
                turn.server,
            )
        ),
        escape("; ".join(text for text in (turn.mismatch, turn.problem) if text)),
        escape(str(turn.divergence)) if turn.divergence else "",
    )
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def comparison_html(reports: Sequence[SessionReport], *, title: str, notes: Sequence[str] = ()) -> str:
    """The whole report as one HTML document."""
    table = totals_by_policy(reports)
    sessions: dict[str, list[SessionReport]] = {}
    for report in reports:
        sessions.setdefault(report.session, []).append(report)
    head = "".join(f"<th>{name}</th>" for name in summary_columns(table))
    out = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style><body>",
        f'<svg width="0" height="0" style="position:absolute"><defs>{_HATCH}</defs></svg>',
        f"<h1>{escape(title)}</h1>",
        '<p class="muted">Counts are tokens. prompt = cached + reprocessed; reprocessed = new + rework. '
        "Rework is paid again: block rounding, a broken prefix, or a server that lost it.</p>",
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(_rows(table))}</tbody></table>",
        *(f'<p class="muted">{escape(note)}</p>' for note in notes),
        f'<p class="key"><span><i style="background:{CACHED}"></i>cached</span><span><i style="background:{NEW}"></i>new</span>'
        '<span><svg width="14" height="14" style="display:inline;vertical-align:-.12em;margin-right:.4em">'
        '<rect width="14" height="14" fill="url(#hatch)"/></svg>rework</span><span>▲ compaction</span></p>',
    ]
    for name, group in sessions.items():
        most_turns = max((len(report.turns) for report in group), default=1)
        out.append(
            f"<h2>{escape(name)}</h2><h3>Running total of reprocessed tokens</h3>{_running_totals(group)}"
        )
        out.append("<h3>Each turn</h3>")
        for report in group:
            out.append(
                f"<p><b>{escape(report.policy)}</b> <span class='muted'>reprocessed {report.reprocessed:,}, rework factor "
                f"{report.rework_factor:.2f}, {report.broken_turns} broken turns, longest prompt {max((turn.prompt for turn in report.turns), default=0):,}</span></p>{_strip(report, 1000, most_turns)}"
            )
            rows = "".join(_turn_row(turn) for turn in report.turns)
            columns = "".join(
                f"<th>{column}</th>"
                for column in (
                    "turn",
                    "prompt",
                    "predicted",
                    "cached",
                    "new",
                    "rounding",
                    "broken prefix",
                    "server",
                    "mismatch",
                    "first difference",
                )
            )
            out.append(
                f"<details><summary>turns as a table</summary><table><thead><tr>{columns}</tr></thead><tbody>{rows}</tbody></table></details>"
            )
    out.append("</body></html>\n")
    return "".join(out)
