"""Policies on your own sessions, from Python: what each makes the server read, what the model still sees, and a page with pictures.

    python examples/policy_comparison.py examples/sessions --report out/policies.html
    python examples/policy_comparison.py my-session.jsonl --cache slot --policy append-only --policy window:20

It does what ``agentctx compare`` does, and adds the two columns that decide: seconds at your server's rate of prefill, and
how long the last prompt is beside that of the policy that keeps most.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from agentctx.compare import DEFAULT_POLICIES, Comparison, Setting, compare
from agentctx.errors import AgentctxError
from agentctx.reports.html import comparison_html
from agentctx.reports.turn import totals_by_policy
from agentctx.traces import expand, read_sessions


def show(comparison: Comparison, rate: float) -> None:
    """``rate``: tokens of prefill per second."""
    print(
        f"{'policy':<24}{'prompt':>11}{'read':>9}{'rework':>9}{'factor':>8}{'wait':>9}{'longest':>9}{'kept':>7}"
    )
    totals = totals_by_policy(comparison.reports)
    longest = max(row.final_prompt for row in totals)
    for row in totals:
        read, worst = row.total("reprocessed"), row.worst_turn
        print(
            f"{row.policy:<24}{row.total('prompt'):>11,}{read:>9,}{row.total('rework'):>9,}{row.rework_factor:>8.2f}"
            f"{read / rate:>8.1f}s{worst / rate:>8.1f}s{row.final_prompt / longest:>7.0%}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare history policies on recorded sessions.")
    parser.add_argument("sessions", nargs="+", help="files or folders, any known format")
    parser.add_argument("--policy", action="append", help="give it several times")
    parser.add_argument(
        "--cache", default="paged:16", help="the server's cache, as in agentctx compare --list"
    )
    parser.add_argument("--rate", type=float, default=1500.0, help="tokens of prefill per second")
    parser.add_argument("--report", type=Path, help="write a page with a picture of every turn")
    given = parser.parse_args()
    try:
        sessions = [session for path in expand(given.sessions) for session in read_sessions(path)]
        comparison = compare(sessions, given.policy or DEFAULT_POLICIES, Setting(cache=given.cache), jobs=1)
    except AgentctxError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    show(comparison, given.rate)
    for failure in comparison.failures:
        print(f"error: {failure}", file=sys.stderr)
    if given.report is not None:
        given.report.parent.mkdir(parents=True, exist_ok=True)
        page = comparison_html(comparison.reports, title=f"{len(sessions)} sessions, {given.cache}")
        given.report.write_text(page, encoding="utf-8")
    return 3 if comparison.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
