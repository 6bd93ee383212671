"""The shape of the code: short functions, short modules, nothing written twice.

A function that is longer than 60 lines, or a module longer than 500, says why beside itself: a comment ``# long: …`` in its
first ten lines. A docstring doesn't count to a function: it is for the reader of the documentation.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

PACKAGES = ("agentctx", "engine/agentctx_engine", "engine/benchmarks")
MAX_FUNCTION = 60
MAX_MODULE = 500
MAX_REPEATED = 10  # lines of a block that stands in two places

_REASON = re.compile(r"#\s*long: \S+")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Line:
    """A line of code with its blanks and comments taken out, and where it stands."""

    text: str
    number: int


def modules(root: Path) -> list[Path]:
    return sorted(file for package in PACKAGES for file in (root / package).rglob("*.py"))


def has_reason(lines: list[str], start: int) -> bool:
    """Whether a reason stands in the ten lines from ``start`` (counted from 1)."""
    return any(_REASON.search(line) for line in lines[start - 1 : start + 9])


def body_lines(function: Function) -> int:
    """Lines of a function from its ``def`` on, without its docstring."""
    length = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    if documented and isinstance(first.value.value, str):  # type: ignore[attr-defined]
        length -= (first.end_lineno or first.lineno) - first.lineno + 1
    return length


def long_functions(source: str) -> Iterator[tuple[str, int, int]]:
    """Name, line and length of the functions that are too long and don't say why."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Function):
            length = body_lines(node)
            if length > MAX_FUNCTION and not has_reason(lines, max(1, node.lineno - 3)):
                yield node.name, node.lineno, length


def is_long_module(source: str) -> bool:
    lines = source.splitlines()
    return len(lines) > MAX_MODULE and not has_reason(lines, 1)


def code_lines(source: str) -> list[Line]:
    """The lines that do something: no comments, no docstrings, no imports, no lines of brackets alone."""
    left_out = set()
    for node in ast.walk(ast.parse(source)):
        text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if text or isinstance(node, ast.Import | ast.ImportFrom):
            left_out |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))  # type: ignore[attr-defined]
    words: dict[int, list[str]] = defaultdict(list)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in (
            tokenize.COMMENT,
            tokenize.NL,
            tokenize.NEWLINE,
            tokenize.INDENT,
            tokenize.DEDENT,
        ):
            words[token.start[0]].append(token.string)
    lines = [Line(" ".join(words[number]), number) for number in sorted(words) if number not in left_out]
    return [line for line in lines if any(character.isalnum() for character in line.text)]


def repeated_blocks(sources: dict[str, str]) -> list[str]:
    """Blocks of ``MAX_REPEATED`` lines or more that stand in two places: each named once, at its longest."""
    places: dict[tuple[str, ...], list[tuple[str, int]]] = defaultdict(list)
    texts = {name: code_lines(source) for name, source in sources.items()}
    for name, lines in texts.items():
        for at in range(len(lines) - MAX_REPEATED + 1):
            key = tuple(line.text for line in lines[at : at + MAX_REPEATED])
            places[key].append((name, at))
    found = []
    for where in places.values():
        for (left, at), (right, other) in pairwise(where):
            starts = at == 0 or other == 0 or texts[left][at - 1].text != texts[right][other - 1].text
            if starts and not (left == right and other < at + MAX_REPEATED):
                found.append(f"{left}:{texts[left][at].number} and {right}:{texts[right][other].number}")
    return sorted(found)


@pytest.fixture(scope="module")
def sources(root_dir: Path) -> dict[str, str]:
    found = {file.relative_to(root_dir).as_posix(): file.read_text("utf-8") for file in modules(root_dir)}
    assert len(found) > 200
    return found


def test_functions_are_under_a_screen(sources: dict[str, str]) -> None:
    found = [
        f"{name}:{line} {function} has {length} lines"
        for name, source in sources.items()
        for function, line, length in long_functions(source)
    ]
    assert not found, "\n".join(found)


def test_modules_are_short(sources: dict[str, str]) -> None:
    found = [name for name, source in sources.items() if is_long_module(source)]
    assert not found, "\n".join(found)


def test_nothing_is_written_twice(sources: dict[str, str]) -> None:
    found = repeated_blocks(sources)
    assert not found, "\n".join(found)


# -- the checks can fail ------------------------------------------------------------------------------------------


def function_of(lines: int, comment: str = "") -> str:
    return f"def f():{comment}\n" + "".join(f"    x{number} = {number}\n" for number in range(lines - 1))


def test_a_long_function_is_found_unless_it_says_why() -> None:
    assert list(long_functions(function_of(MAX_FUNCTION))) == []
    assert list(long_functions(function_of(MAX_FUNCTION + 1))) == [("f", 1, MAX_FUNCTION + 1)]
    assert list(long_functions(function_of(80, "  # long: one table"))) == []
    assert list(long_functions(function_of(80, "  # long:"))) == [("f", 1, 80)]


def test_a_docstring_does_not_count() -> None:
    text = 'def f():\n    """' + "\n    words" * 70 + '\n    """\n    return 1\n'
    assert list(long_functions(text)) == []


def test_a_long_module_is_found() -> None:
    assert not is_long_module("x = 1\n" * MAX_MODULE)
    assert is_long_module("x = 1\n" * (MAX_MODULE + 1))
    assert not is_long_module("# long: a table\n" + "x = 1\n" * MAX_MODULE)


def test_a_repeated_block_is_found_however_it_is_laid_out() -> None:
    block = [f"value{number} = call({number}, 'a')" for number in range(MAX_REPEATED)]
    one = "import os\n" + "\n".join(block) + "\n"
    other = "def f():\n" + "".join(f"    # why\n    {line.replace(', ', ',')}\n\n" for line in block)
    assert repeated_blocks({"one": one, "other": other}) == ["one:2 and other:3"]
    shorter = "\n".join(block[1:]) + "\n"
    assert repeated_blocks({"one": one, "other": shorter}) == []
    assert repeated_blocks({"one": one + "separate = 1\n" + one}) == ["one:2 and one:14"]
