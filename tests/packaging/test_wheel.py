"""The built wheel and sdist: what is in them, and that an installation of the wheel works."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.packaging.installation import run

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("packaging")]

VERSION = importlib.metadata.version("agentctx-sdk")


def test_contents_of_the_wheel(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"agentctx", "agentctx_engine", f"agentctx_sdk-{VERSION}.dist-info"}
    assert "agentctx/py.typed" in names
    assert "agentctx_engine/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    tests = re.compile(r"(?<![a-z])tests?(?![a-z])|conftest")  # and not the plugin for pytest
    assert not [name for name in names if tests.search(Path(name).name) and name.endswith(".py")]
    assert wheel.stat().st_size < 5_000_000


def test_every_data_file_of_the_packages_is_in_the_wheel(wheel: Path, root_dir: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for base, package in ((root_dir, "agentctx"), (root_dir / "engine", "agentctx_engine")):
        files = {
            path.relative_to(base).as_posix()
            for path in (base / package).rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert files - names == set()


def test_contents_of_the_sdist(built: Path) -> None:
    [path] = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "agentctx/py.typed"} <= names
    assert not [name for name in names if name.startswith(("out/", ".venv/"))]


def test_metadata(wheel: Path) -> None:
    [name] = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("/METADATA")]
    metadata = zipfile.ZipFile(wheel).read(name).decode()
    assert "Name: agentctx-sdk\n" in metadata
    assert "License-Expression: Apache-2.0\n" in metadata
    required = [
        line for line in metadata.splitlines() if line.startswith("Requires-Dist:") and "extra ==" not in line
    ]
    assert not [line for line in required if "torch" in line or "transformers" in line]


def test_version_and_help(installed: Path, tmp_path: Path) -> None:
    assert run(installed, "agentctx", "--version", cwd=tmp_path).strip().endswith(VERSION)
    assert "compare" in run(installed, "agentctx", "--help", cwd=tmp_path)


def test_the_installed_package_is_the_wheel_s(installed: Path, tmp_path: Path) -> None:
    where = run(
        installed,
        "python",
        "-c",
        "import agentctx, agentctx_engine; print(agentctx.__file__, agentctx_engine.__file__)",
        cwd=tmp_path,
    )
    assert all(path.startswith(str(installed.parent.parent)) for path in where.split())


def test_a_comparison(installed: Path, tmp_path: Path, root_dir: Path) -> None:
    shutil.copytree(root_dir / "examples/sessions", tmp_path / "sessions")
    table = run(
        installed,
        "agentctx",
        "compare",
        "sessions",
        "-p",
        "append-only",
        "--format",
        "markdown",
        cwd=tmp_path,
    )
    assert "| append-only | 1,425,185 |" in table


def test_the_memory_manager_needs_no_torch(installed: Path, tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; import agentctx_engine.memory, agentctx.caches.registry; print('fine')"
    assert run(installed, "python", "-c", code, cwd=tmp_path) == "fine\n"


def test_type_information_reaches_mypy(installed: Path, tmp_path: Path) -> None:
    # Reading torch's sources takes mypy a minute and says nothing about ours.
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\n[mypy-torch.*]\nfollow_imports = skip\nignore_missing_imports = True\n"
    )
    (tmp_path / "user.py").write_text(
        "from agentctx import History\nfrom agentctx_engine.memory import KVManager\n"
        "reveal_type(History().request())\nreveal_type(KVManager(4, 4).pools)\n"
    )
    said = run(
        installed,
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--python-executable",
        str(installed),
        "user.py",
        cwd=tmp_path,
    )
    assert '"agentctx.messages.Request"' in said
    assert "BlockPool" in said
