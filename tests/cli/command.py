"""The command in this process (quicker than one of its own, and it ends the same way), and in one of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from agentctx.cli import main


class Ended(NamedTuple):
    """How a command ended and what it printed."""

    code: int
    out: str
    err: str


class Command:
    """Runs ``agentctx`` with arguments."""

    def __init__(self, patch: pytest.MonkeyPatch, output: pytest.CaptureFixture[str]) -> None:
        self._patch = patch
        self._output = output

    def __call__(self, *arguments: str | Path) -> Ended:
        self._patch.setattr(sys, "argv", ["agentctx", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        captured = self._output.readouterr()
        return Ended(code if isinstance(code, int) else int(code is not None), captured.out, captured.err)


def agentctx(*arguments: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run ``agentctx`` in a process of its own."""
    command = [sys.executable, "-m", "agentctx", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=300, check=False)
