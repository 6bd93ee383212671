"""engine/README.md stays true: its example prints what it says, and every name is where its link points."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path("engine", "README.md")


@pytest.fixture(scope="module")
def text(root_dir: Path) -> str:
    return (root_dir / README).read_text(encoding="utf-8")


def test_every_linked_name_is_defined_in_its_file(root_dir: Path, text: str) -> None:
    links = re.findall(r"\[`([^`]+)`\]\(([^)#]+)\)", text)
    assert len(links) > 10
    for name, target in links:
        path = root_dir / README.parent / target
        assert path.exists(), f"{target} is not there"
        if path.is_file():
            assert name in definitions(path), f"{name} is not defined in {target}"


def definitions(path: Path) -> set[str]:
    """Top-level names of a module, and ``Class.method``."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
            names.update(f"{node.name}.{m.name}" for m in node.body if isinstance(m, ast.FunctionDef))
        elif isinstance(node, ast.FunctionDef):
            names.add(node.name)
    return names


def test_the_example_prints_what_its_comments_say(text: str) -> None:
    code = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)[0]
    expected = [re.match(r"[\d ]+", c) for c in re.findall(r"print\(.*#\s*(.*)", code)]
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split("\n")[:-1] == [m.group().strip() for m in expected if m]
    assert len(expected) == 2
