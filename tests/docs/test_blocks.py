"""Every Python and shell block of README and docs runs.

The Python blocks of a page share one namespace, top to bottom, in a process of their own; so do its shell blocks share one
folder. Each page gets a fresh folder with a copy of ``examples`` and, where it asks for one, a live llama-server at the
address that the page names.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT, require_llama_server
from tests.docs.markdown_blocks import Block, blocks_of

PAGES = sorted([ROOT / "README.md", ROOT / "engine/README.md", *(ROOT / "docs").rglob("*.md")])
PYTHON = [page for page in PAGES if blocks_of(page, "python")]
SHELL = [page for page in PAGES if blocks_of(page, "sh")]

SERVER = "http://127.0.0.1:8080"  # what the pages call the reader's own llama-server

# Commands that are not run here, each with what runs them.
ELSEWHERE = {
    "make demo": "tests/test_readme.py runs the command behind it",
    "make test": "is what runs this",
    "make docs": "tests/docs/test_site.py builds the site",
    "pip install": "tests/packaging installs the built wheel",
    "python engine/benchmarks/gpu.py": "tests/engine/test_gpu_script.py runs it in the interpreter; the other line needs a GPU",
}


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def live_server(smollm2_gguf: Path) -> Iterator[str]:
    """A llama-server with one slot, for the pages that speak of one."""
    from tests.real.llama_server import LlamaServer

    require_llama_server()
    with LlamaServer(smollm2_gguf, n_parallel=1, n_ctx=8192, use_jinja=True, cache_ram_mib=0) as server:
        yield server.url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def environment() -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    modules = os.pathsep.join([str(ROOT), str(ROOT / "engine")])
    return {**os.environ, "PATH": path, "PYTHONPATH": modules, "COLUMNS": "120"}


def with_server(code: str, request: pytest.FixtureRequest) -> str:
    return code.replace(SERVER, request.getfixturevalue("live_server")) if SERVER in code else code


def run(command: list[str], code: str, folder: Path) -> None:
    done = subprocess.run(
        command,
        input=code,
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, f"{code}\n--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"


@pytest.mark.parametrize("page", PYTHON, ids=name_of)
def test_python_blocks(page: Path, folder: Path, request: pytest.FixtureRequest) -> None:
    # Blank lines in front keep the line numbers of a traceback those of the page.
    code = ""
    for block in blocks_of(page, "python"):
        code += "\n" * (block.line - 1 - code.count("\n")) + block.code
    script = folder / f"{page.stem}_md.py"
    script.write_text(with_server(code, request))
    run([sys.executable, str(script)], "", folder)


def runs_here(line: str) -> bool:
    return not any(line.strip().startswith(command) for command in ELSEWHERE)


@pytest.mark.parametrize("page", SHELL, ids=name_of)
def test_shell_blocks(page: Path, folder: Path, request: pytest.FixtureRequest) -> None:
    blocks: list[Block] = blocks_of(page, "sh")
    lines = [line for block in blocks for line in block.code.splitlines() if runs_here(line)]
    run(["bash", "-euo", "pipefail"], with_server("\n".join(lines), request), folder)
