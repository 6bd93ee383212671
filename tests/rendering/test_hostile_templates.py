"""Hostile templates: refused with a clear error, in less than two seconds and 500 MB."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.rendering.hostile_templates import GROUPS

SECONDS = 2.0
MEGABYTES = 500.0
# They do nothing that costs or leaks, and so may give a text, as they do in transformers.
HARMLESS = frozenset(("import by name", "open a file", "lipsum", "builtins"))

NAMES = [f"{group}: {name}" for group, found in GROUPS.items() for name in found]


@pytest.fixture(scope="module")
def outcomes(root_dir: Path) -> dict[str, dict[str, Any]]:
    """Each template's outcome, seconds of CPU time and peak memory, in a process of its own.

    What took too long is run once more and has to be quick then: a machine that stands still is no fault of the limits.
    """
    jobs = {f"{group}: {name}": text for group, found in GROUPS.items() for name, text in found.items()}
    found = _run(root_dir, jobs)
    slow = {name: jobs[name] for name, outcome in found.items() if outcome.get("seconds", 0.0) >= SECONDS}
    return found | (_run(root_dir, slow) if slow else {})


def _run(root_dir: Path, jobs: dict[str, str]) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, str(root_dir / "tests" / "rendering" / "hostile_run.py")],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        timeout=500,
        check=True,
        cwd=root_dir,
    )
    return {found.pop("name"): found for found in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize("name", NAMES)
def test_is_refused_soon_and_clearly(name: str, outcomes: dict[str, dict[str, Any]]) -> None:
    found = outcomes[name]
    assert "crash" not in found, found
    assert found["seconds"] < SECONDS, found
    assert found["megabytes"] < MEGABYTES, found
    if name.partition(": ")[2] in HARMLESS:
        return
    assert "error" in found, found
    # The error names the template, is short, and says what is wrong.
    assert found["error"].startswith("hostile"), found
    assert 20 < len(found["error"]) < 2500, found
    assert not re.search(r"0x[0-9a-f]{8}|Traceback|site-packages", found["error"]), found


def test_every_template_was_tried(outcomes: dict[str, dict[str, Any]]) -> None:
    assert set(outcomes) == set(NAMES)
    worst = max(outcomes.values(), key=lambda found: found["seconds"])
    heaviest = max(outcomes.values(), key=lambda found: found["megabytes"])
    print(
        f"{len(outcomes)} templates, at most {worst['seconds']:.2f} s and {heaviest['megabytes']:.0f} MB each"
    )
