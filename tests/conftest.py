"""Shared fixtures: where the shared corpus lies, and what its absence means."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def require(condition: bool, what: str) -> None:
    """Skip when ``what`` is missing, unless CI demands the real parts: then its absence is an error."""
    if condition:
        return
    if os.environ.get("AGENTCTX_REQUIRE_REAL"):
        pytest.fail(f"{what} is required here and missing", pytrace=False)
    pytest.skip(f"{what} is not here")


@pytest.fixture(scope="session")
def root_dir() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """The shared corpus, cases and oracles beside the checkout."""
    path = Path(os.environ.get("AGENTCTX_SHARED", ROOT.parent / "shared"))
    require(path.is_dir(), f"the shared corpus ({path.name}/ beside the checkout)")
    return path


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A small repository with a bug and the test that shows it."""
    root = tmp_path / "repository"
    (root / "pkg").mkdir(parents=True)
    (root / "pkg" / "half.py").write_text("def half(number: int) -> int:\n    return number // 3\n")
    (root / "test_half.py").write_text(
        "from pkg.half import half\n\n\ndef test_half() -> None:\n    assert half(4) == 2\n"
    )
    return root
