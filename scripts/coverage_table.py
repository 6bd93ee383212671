"""Prints what the tests reach, room by room, from ``coverage json``; exit code 1 under the project's bounds.

python scripts/coverage_table.py out/coverage.json
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

LINES, BRANCHES = 92.0, 85.0  # per cent of both packages together


@dataclass(slots=True)
class Reached:
    """Lines and branches of some files, and how many of them were run."""

    lines: int = 0
    lines_run: int = 0
    branches: int = 0
    branches_run: int = 0

    def add(self, summary: dict[str, int]) -> None:
        self.lines += summary["num_statements"]
        self.lines_run += summary["covered_lines"]
        self.branches += summary["num_branches"]
        self.branches_run += summary["covered_branches"]

    @property
    def shares(self) -> tuple[float, float]:
        """Per cent of the lines and of the branches."""
        return share(self.lines_run, self.lines), share(self.branches_run, self.branches)


def share(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 100.0


def room_of(path: str) -> str:
    """``agentctx/history/journal.py`` is of ``agentctx.history``, ``agentctx/guard.py`` of ``agentctx``."""
    parts = path.removeprefix("engine/").split("/")
    return ".".join(parts[: 2 if len(parts) > 2 else 1])


def main(file: Path) -> int:
    rooms: dict[str, Reached] = defaultdict(Reached)
    whole = Reached()
    for path, measured in json.loads(file.read_text("utf-8"))["files"].items():
        rooms[room_of(path)].add(measured["summary"])
        whole.add(measured["summary"])
    table = Table("room", "lines", "%", "branches", "%")
    for name, reached in [*sorted(rooms.items()), ("both packages", whole)]:
        lines, branches = reached.shares
        table.add_row(name, f"{reached.lines:,}", f"{lines:.1f}", f"{reached.branches:,}", f"{branches:.1f}")
    Console().print(table)
    lines, branches = whole.shares
    return int(lines < LINES or branches < BRANCHES)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
