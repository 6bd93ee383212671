"""The documentation builds without a warning (links, anchors and pages outside the menu included), and its pictures are current."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def run(*command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        [sys.executable, *command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_the_site_builds_strictly(root_dir: Path, tmp_path: Path) -> None:
    done = run("-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site"), cwd=root_dir)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    reference = (tmp_path / "site/reference/history.html").read_text(encoding="utf-8")
    assert "A conversation laid out so that its prompts only grow at their end." in reference
    assert ":class:" not in reference
    engine = (tmp_path / "site/engine.html").read_text(encoding="utf-8")
    assert "Scheduler.schedule" in engine


def test_a_broken_link_would_be_seen(root_dir: Path, tmp_path: Path) -> None:
    """The check can fail: a copy of the docs with one dead link does not build."""
    for name in ("scripts", "engine", "agentctx", "mkdocs.yml"):
        (tmp_path / name).symlink_to(root_dir / name)
    shutil.copytree(root_dir / "docs", tmp_path / "docs")
    page = tmp_path / "docs/why.md"
    page.write_text(page.read_text(encoding="utf-8") + "\n[dead](nowhere.md)\n", encoding="utf-8")
    done = run("-m", "mkdocs", "build", "--strict", "-d", str(tmp_path / "site"), cwd=tmp_path)
    assert done.returncode == 1
    assert "nowhere.md" in done.stderr


@pytest.mark.slow
def test_the_pictures_are_current(root_dir: Path) -> None:
    done = run("scripts/docs_pictures.py", "--check", cwd=root_dir)
    assert done.returncode == 0, done.stderr
