"""Commands in the environment that has the wheel."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


def ended(python: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command there, whatever becomes of it."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "PYTEST_"))
    }
    environment["PATH"] = f"{python.parent}{os.pathsep}{environment['PATH']}"
    return subprocess.run(
        arguments, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


def run(python: Path, *arguments: str, cwd: Path) -> str:
    """Run a command that has to succeed; what it prints."""
    done = ended(python, *arguments, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
