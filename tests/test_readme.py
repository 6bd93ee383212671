"""The README says what the code does: its table is the demo's, and its code blocks run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest


def blocks(root: Path, language: str) -> list[str]:
    return re.findall(
        rf"```{language}\n(.*?)```", (root / "README.md").read_text(encoding="utf-8"), re.DOTALL
    )


def test_the_table_is_what_the_demo_prints(root_dir: Path) -> None:
    done = subprocess.run(
        [sys.executable, "scripts/readme_table.py", "--check"],
        cwd=root_dir,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, "run `python scripts/readme_table.py`\n" + done.stderr


def test_python_blocks_run(root_dir: Path) -> None:
    found = blocks(root_dir, "python")
    assert found
    for code in found:
        subprocess.run([sys.executable, "-c", code], cwd=root_dir, check=True)


def test_agentctx_lines_of_shell_blocks_run(root_dir: Path) -> None:
    lines = [
        line.split("#")[0].split()[1:]
        for block in blocks(root_dir, "sh")
        for line in block.splitlines()
        if line.startswith("agentctx ")
    ]
    assert lines
    for arguments in lines:
        subprocess.run(
            [sys.executable, "-m", "agentctx", *arguments], cwd=root_dir, check=True, capture_output=True
        )


@pytest.mark.parametrize(
    "target", re.findall(r"\]\((?!http)([^)#]+)\)", (Path(__file__).parent.parent / "README.md").read_text())
)
def test_links_lead_somewhere(root_dir: Path, target: str) -> None:
    assert (root_dir / target).exists()
