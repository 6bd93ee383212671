"""Make the table of docs/policies.md: every policy on the recorded sessions of a folder.

    python scripts/policy_table.py ../shared/corpus/traces            # print it
    python scripts/policy_table.py ../shared/corpus/traces --write    # put it into docs/policies.md

The sessions are replayed by ``agentctx.compare`` on a slot cache (longest common prefix with the last prompt), in the built-in
layout. ``cost`` weighs tokens by what they cost: processed ones 1, reused ones the ratio, requests for summaries included.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from agentctx.compare import Setting, compare
from agentctx.errors import InputError
from agentctx.reports.turn import SessionReport
from agentctx.traces import Session, expand, read_sessions

POLICIES = (
    "append-only",
    "keep-last:5",
    "clear-results:5",
    "clear-results:5,4000",
    "mask:5",
    "mask:5,4000",
    "window:10",
    "rolling-summary:10",
    "summarize-at:13,12,300",
    "summarize-budget:8000",
    "summarize-budget:20000",
    "summarize-budget:20000,low=5000",
    "summarize-fresh:8000",
    "offload:2000",
    "break-even:0.1,2000",
    "break-even:0.1,5000",
    "offload:2000+break-even:0.1,2000",
)
START, END = "<!-- policy table -->", "<!-- end of policy table -->"
PAGE = Path(__file__).resolve().parent.parent / "docs" / "policies.md"


def cost(report: SessionReport, ratio: float) -> float:
    """Processed tokens plus ``ratio`` times the reused ones, requests for summaries included."""
    processed = report.reprocessed + report.asked_reprocessed
    reused = report.reused + report.asked - report.asked_reprocessed
    return processed + ratio * reused


def sessions_of(folder: str) -> list[Session]:
    """All sessions in a folder; a file that can't be read is named and left out."""
    sessions: list[Session] = []
    for path in expand([folder]):
        try:
            sessions += read_sessions(path)
        except InputError as error:
            print(error, file=sys.stderr)
    return sessions


def row(spec: str, reports: Sequence[SessionReport], best: Sequence[float], ratio: float) -> str:
    """One policy's line: sums over the sessions."""
    new = sum(report.new for report in reports)
    reprocessed = sum(report.reprocessed for report in reports)
    worst = max(report.worst_turn.reprocessed for report in reports if report.worst_turn)
    costs = [cost(report, ratio) for report in reports]
    wins = sum(mine < other * 0.999 for mine, other in zip(costs, best, strict=True))
    cells = (
        f"`{spec}`" + (" *" if any(report.stand_in for report in reports) else ""),
        f"{sum(report.prompt for report in reports):,}",
        f"{reprocessed:,}",
        f"{reprocessed / new:.2f}",
        f"{worst:,}",
        f"{sum(report.dropped for report in reports):,}",
        f"{sum(report.asked_reprocessed for report in reports):,}",
        f"{sum(costs):,.0f}",
        f"{wins}",
    )
    return "| " + " | ".join(cells) + " |"


def table(sessions: Sequence[Session], policies: Sequence[str], ratio: float) -> str:
    """The table in Markdown. Raises ``SystemExit`` when a session could not be replayed."""
    comparison = compare(sessions, policies, Setting("slot", "chatml"))
    if comparison.failures:
        raise SystemExit("\n".join(map(str, comparison.failures)))
    by_policy = {spec: comparison.reports[index :: len(policies)] for index, spec in enumerate(policies)}
    references = [by_policy[spec] for spec in ("append-only", "summarize-budget:8000") if spec in by_policy]
    best = [min(cost(report, ratio) for report in column) for column in zip(*references, strict=True)]
    turns = sum(len(report.turns) for report in by_policy[policies[0]])
    head = (
        f"{len(sessions)} sessions in {len({session.file for session in sessions})} files, {turns:,} turns, a reused token "
        f"at {ratio:g} of a processed one.\n\n"
        "| policy | prompt | reprocessed | rework factor | worst turn | dropped | summary requests | cost | beats both |\n"
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|\n"
    )
    return head + "\n".join(row(spec, by_policy[spec], best, ratio) for spec in policies)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", help="recorded sessions, any format that agentctx reads")
    parser.add_argument("--ratio", type=float, default=0.1, help="price of a reused token (0.1)")
    parser.add_argument("--policy", action="append", help="only these policies")
    parser.add_argument("--write", action="store_true", help="put the table into docs/policies.md")
    arguments = parser.parse_args()
    text = table(sessions_of(arguments.folder), arguments.policy or POLICIES, arguments.ratio)
    if not arguments.write:
        print(text)
        return
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(START)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{START}\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
