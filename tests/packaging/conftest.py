"""The built wheel and sdist, and an environment with the wheel.

The wheel goes into a fresh virtual environment without its dependencies; those come from the environment that runs the tests, so
that no network is needed. The project itself can't come from there: it is not on that path.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def built(root_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheel and sdist, built from a copy of the checkout's tracked kind of files."""
    source = tmp_path_factory.mktemp("source") / "project"
    kept_out = shutil.ignore_patterns(
        ".git", ".venv", "out", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis"
    )
    shutil.copytree(root_dir, source, ignore=kept_out, symlinks=True)
    out = tmp_path_factory.mktemp("dist")
    # The sdist is made first and the wheel from it, so that a file that only the checkout has is missed here.
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)],
        check=True,
        capture_output=True,
    )
    return out


@pytest.fixture(scope="session")
def wheel(built: Path) -> Path:
    [path] = built.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a fresh environment that has the wheel."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(python),
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
            str(wheel),
        ],
        check=True,
    )
    [site] = home.glob("lib/python*/site-packages")
    # A plain path, not a site folder: the .pth file of an editable installation there has no effect.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python
