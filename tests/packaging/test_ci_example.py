"""``examples/ci`` as a user runs it, with the wheel installed: the planted builders fail, the mended ones pass."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.packaging.installation import ended, run

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("packaging")]

PLANTED = {
    "prompts.planted:with_clock": "AC101",
    "prompts.planted:with_tools": "AC103",
    "prompts.planted:with_calls": "AC108",
    "prompts.planted:with_results": "AC114",
}


def test_check_passes_the_mended_and_fails_the_planted(installed: Path, ci_project: Path) -> None:
    assert "0 failing" in run(installed, "agentctx", "check", cwd=ci_project)
    planted = ended(
        installed, "agentctx", "check", "--config", "planted.toml", "--format", "json", cwd=ci_project
    )
    assert planted.returncode == 1, planted.stderr
    found = json.loads(planted.stdout)["findings"]
    assert {entry["subject"]: entry["code"] for entry in found} == PLANTED
    lines = (ci_project / "prompts/planted.py").read_text().splitlines()
    for entry in found:
        assert entry["file"] == "prompts/planted.py"
        # The line that reads the clock, else that of the builder.
        name = entry["subject"].partition(":")[2]
        line = lines[entry["line"] - 1]
        assert ("datetime.now()" if entry["code"] == "AC101" else f"def {name}") in line


def test_pytest_passes_the_mended_and_fails_the_planted(installed: Path, ci_project: Path) -> None:
    assert "8 passed" in run(installed, "python", "-m", "pytest", "-q", "test_mended.py", cwd=ci_project)
    planted = ended(installed, "python", "-m", "pytest", "-q", "test_planted.py", cwd=ci_project)
    assert planted.returncode == 1
    assert "6 failed" in planted.stdout
    assert "passed" not in planted.stdout.splitlines()[-1]
    for code in PLANTED.values():
        assert code in planted.stdout
    assert "! turn   2" in planted.stdout
