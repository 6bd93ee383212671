"""Mutation testing of one room: ``python -m tests.mutation memory --sample 120 --seed 1``.

A sample of mutants is drawn, each is put into a copy of the checkout, and the tests that reach its statement run against it,
the quickest first, until one fails. Needs cosmic-ray, whose operators make the mutants: ``make mutation`` installs it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.mutation.mutants import Mutant, shuffled, statement_lines
from tests.mutation.rooms import ROOMS, Room
from tests.mutation.running import Reached, judge, prepare, reach

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("agentctx", "engine", "tests", "examples", "docs", "pyproject.toml", "README.md")


@dataclass(frozen=True, slots=True)
class Judged:
    """A mutant and what became of it: ``killed``, ``slow`` (killed by time), ``survived``, ``unreached`` or ``broken``."""

    mutant: Mutant
    verdict: str
    tests: int


def main() -> int:
    arguments = _arguments()
    os.environ.setdefault("AGENTCTX_SHARED", str(ROOT.parent / "shared"))
    prepare()
    for name in arguments.room or ROOMS:
        with tempfile.TemporaryDirectory(prefix="mutation-") as place:
            copy = Path(place).resolve() / "checkout"
            copy.mkdir()
            _copy(copy)
            _report(name, list(_judge_room(ROOMS[name], copy, arguments)), arguments)
    return 0


def _judge_room(room: Room, copy: Path, arguments: argparse.Namespace) -> Iterator[Judged]:
    started = time.monotonic()
    tests = [
        str(file.relative_to(copy))
        for file in sorted((copy / room.tests).glob("test_*.py"))
        if file.name not in room.left_out
    ]
    reached = reach(copy, room.package, tests, copy.parent / "reached.json")
    took = time.monotonic() - started
    print(f"{room.package}: {len(reached.seconds)} tests pass without a mutant in {took:.0f} s", flush=True)
    left = arguments.sample
    for mutant in shuffled(room.files(copy), arguments.seed):
        if not left:
            return
        place = f"{mutant.file.relative_to(copy)}:{mutant.position[0]}"
        source = mutant.source()
        if source is None:
            continue
        if arguments.only and place not in arguments.only:
            left -= 1
            continue
        chosen = _tests_for(mutant, reached, arguments.seconds)
        with _in_place(mutant.file, source):
            judged = _judge(mutant, chosen, reached, copy)
        if judged.verdict != "broken":
            left -= 1
        if judged.verdict in ("survived", "unreached") or arguments.verbose:
            print(f"  {judged.verdict} {place} {mutant.operator} ({judged.tests} tests)", flush=True)
            print(mutant.change(), flush=True)
        yield judged


def _judge(mutant: Mutant, tests: list[str], reached: Reached, copy: Path) -> Judged:
    if not tests:
        return Judged(mutant, "unreached", 0)
    code = judge(copy, tests, seconds=20 + 4 * sum(reached.seconds[test] for test in tests))
    if code is None:
        return Judged(mutant, "slow", len(tests))
    if code == 5:
        raise RuntimeError(f"none of the tests for {mutant} was found")
    return Judged(mutant, {0: "survived", 1: "killed"}.get(code, "broken"), len(tests))


def _tests_for(mutant: Mutant, reached: Reached, budget: float) -> list[str]:
    """The tests that run the statement, the quickest first, as many as fit.

    What runs at import is judged by all tests, those first that run something of its module.
    """
    by_line = reached.tests.get(str(mutant.file), {})
    lines = statement_lines(mutant.file.read_text("utf-8"), mutant.position[0])
    found = {test for line in lines for test in by_line.get(line, ())}
    near = found
    if not found and any(line in by_line for line in lines):
        near = {test for tests in by_line.values() for test in tests}
        found = set(reached.seconds)
        budget *= 2
    chosen, spent = [], 0.0
    for test in sorted(found, key=lambda test: (test not in near, reached.seconds[test], test)):
        spent += reached.seconds[test]
        if chosen and spent > budget:
            break
        chosen.append(test)
    return chosen


@contextmanager
def _in_place(file: Path, source: str) -> Iterator[None]:
    """The mutant stands in the file, and no compiled original beside it."""
    original = file.parent / (file.name + ".original")
    compiled = file.parent / "__pycache__" / f"{file.stem}.{sys.implementation.cache_tag}.pyc"
    aside = compiled.with_suffix(".aside")
    file.rename(original)
    if compiled.exists():
        compiled.rename(aside)
    try:
        file.write_text(source, "utf-8")
        yield
    finally:
        original.replace(file)
        if aside.exists():
            aside.replace(compiled)


def _report(name: str, judged: list[Judged], arguments: argparse.Namespace) -> None:
    count = {
        verdict: sum(one.verdict == verdict for one in judged)
        for verdict in ("killed", "slow", "survived", "unreached", "broken")
    }
    killed = count["killed"] + count["slow"]
    alive = count["survived"] + count["unreached"]
    print(
        f"{name}: {killed} of {killed + alive} mutants killed ({100 * killed / max(1, killed + alive):.1f} %; "
        f"{count['slow']} by time), {alive} survived ({count['unreached']} that no test reaches), "
        f"{count['broken']} left out that break on import; seed {arguments.seed}",
        flush=True,
    )


def _copy(copy: Path) -> None:
    for name in COPIED:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(ROOT / name, copy / name)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("room", nargs="*", choices=[*ROOMS, []], help="rooms to mutate (default: all)")
    parser.add_argument("--sample", type=int, default=120, help="mutants of each room (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="which sample (default: %(default)s)")
    parser.add_argument(
        "--seconds", type=float, default=10, help="of tests against one mutant (default: %(default)s)"
    )
    parser.add_argument(
        "--only", action="append", metavar="FILE:LINE", help="of the sample, judge these only"
    )
    parser.add_argument("--verbose", action="store_true", help="print killed mutants too")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
