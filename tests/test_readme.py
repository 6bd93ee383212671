"""The README says what the code does: its table is the demo's, and its links lead somewhere (tests/docs runs its blocks)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


def test_the_table_is_what_the_demo_prints(root_dir: Path) -> None:
    done = subprocess.run(
        [sys.executable, "scripts/readme_table.py", "--check"],
        cwd=root_dir,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, "run `python scripts/readme_table.py`\n" + done.stderr


@pytest.mark.parametrize(
    "target", re.findall(r"\]\((?!http)([^)#]+)\)", (Path(__file__).parent.parent / "README.md").read_text())
)
def test_links_lead_somewhere(root_dir: Path, target: str) -> None:
    assert (root_dir / target).exists()
