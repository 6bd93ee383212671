"""Put the table that ``make demo`` prints into README.md, between its two markers. ``--check`` only compares."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from agentctx.compare import Setting, compare
from agentctx.reports.tables import comparison_markdown
from agentctx.traces import expand, read_sessions

ROOT = Path(__file__).resolve().parent.parent
BEGIN = "<!-- demo table: agentctx compare examples/sessions/*.jsonl --observe engine --format markdown -->\n"
END = "<!-- end of demo table -->"


def main() -> int:
    """Exit code 1 when ``--check`` finds the table out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    files = sorted((ROOT / "examples/sessions").glob("*.jsonl"))
    sessions = [session for file in expand(files) for session in read_sessions(file)]
    table = comparison_markdown(compare(sessions, setting=Setting(observe="engine")).reports)
    readme = ROOT / "README.md"
    text = readme.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    mended = f"{head}{BEGIN}\n{table}\n{END}{tail}"
    if check:
        return int(mended != text)
    readme.write_text(mended, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
