"""Mutants: one small fault each, made by cosmic-ray's operators in the source of a module.

Left out are faults that are none: in annotations, which nobody evaluates here, and texts that don't compile.
"""

from __future__ import annotations

import ast
import difflib
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator, operator_names

Position = tuple[int, int]  # line from 1, column from 0


@dataclass(frozen=True, slots=True)
class Mutant:
    """The ``occurrence``-th place at which ``operator`` can change ``file``, which starts at ``position``."""

    file: Path
    operator: str
    occurrence: int
    position: Position

    def source(self) -> str | None:
        """The whole changed module; None when it doesn't compile or is the same code."""
        original = self.file.read_text("utf-8")
        changed = mutate_code(original, get_operator(self.operator)(), self.occurrence)
        if changed is None:
            return None
        try:
            same = ast.dump(ast.parse(changed)) == ast.dump(ast.parse(original))
        except SyntaxError:
            return None
        return None if same else changed

    def change(self) -> str:
        """The lines that differ, old and new."""
        old, new = self.file.read_text("utf-8").splitlines(), (self.source() or "").splitlines()
        lines = list(difflib.unified_diff(old, new, lineterm="", n=0))[2:]
        return "\n".join(f"      {line[0]} {line[1:].strip()}" for line in lines if line[0] in "+-")


def mutants_of(file: Path) -> Iterator[Mutant]:
    """Every mutant of a module, operator by operator."""
    source = file.read_text("utf-8")
    nodes = list(ast_nodes(get_ast(source)))
    annotations = _annotations(source)
    for name, operator in _operators():
        positions = (start for node in nodes for start, _ in operator.mutation_positions(node))
        for occurrence, start in enumerate(positions):
            if not any(first <= start < last for first, last in annotations):
                yield Mutant(file, name, occurrence, start)


def shuffled(files: list[Path], seed: int) -> Iterator[Mutant]:
    """Places in a random order, and at each place one mutant of those that can be made there.

    A place is taken once: an operator of twelve others has eleven mutants there, which would crowd out the rest.
    """
    places: dict[tuple[Path, Position], list[Mutant]] = defaultdict(list)
    for file in sorted(files):
        for mutant in mutants_of(file):
            places[file, mutant.position].append(mutant)
    dice = random.Random(seed)
    order = sorted(places)
    dice.shuffle(order)
    for place in order:
        yield dice.choice(places[place])


def statement_lines(source: str, line: int) -> range:
    """The lines of the smallest statement around a line: of a compound one, those of its head."""
    best = range(line, line + 1)
    size = len(source)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.stmt):
            continue
        body = getattr(node, "body", None)
        end = body[0].lineno if body else (node.end_lineno or node.lineno) + 1
        lines = range(node.lineno, max(end, node.lineno + 1))
        if line in lines and len(lines) <= size:
            best, size = lines, len(lines)
    return best


def _operators() -> list[tuple[str, Operator]]:
    """Those that need no arguments."""
    found = [(name, get_operator(name)) for name in sorted(operator_names())]
    return [(name, operator()) for name, operator in found if not operator.arguments()]


def _annotations(source: str) -> list[tuple[Position, Position]]:
    """Where annotations start and end. Columns are characters here, bytes there: our annotations are ASCII."""
    found = []
    for node in ast.walk(ast.parse(source)):
        for name in ("annotation", "returns"):
            note = getattr(node, name, None)
            if isinstance(note, ast.expr):
                found.append(
                    ((note.lineno, note.col_offset), (note.end_lineno or 0, note.end_col_offset or 0))
                )
    return found
