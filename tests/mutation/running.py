"""Tests run in a child of this process, in a copy of the checkout: once to see what they reach, then against each mutant.

A child starts with the libraries imported already, so that a mutant costs little more than the tests that judge it.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import coverage
import pytest

from tests.few_examples import limit_examples

MEMORY_LIMIT = 12 << 30  # bytes of address space: a mutant may loop and collect
EXAMPLES = 10  # of each property: always the same ones


@dataclass
class Reached:
    """What each test reaches, from one run of all: seconds by test, and tests by file and line."""

    seconds: dict[str, float] = field(default_factory=dict)
    tests: dict[str, dict[int, list[str]]] = field(default_factory=dict)


class Recorder:
    """A pytest plugin: measures time and lines of each test, those of the fixtures that it shares with others too."""

    def __init__(self, package: Path) -> None:
        self.coverage = coverage.Coverage(
            data_file=None, include=[f"{package}/*"], config_file=False, branch=False
        )
        self.seconds: dict[str, float] = {}
        self.users: dict[str, list[str]] = defaultdict(list)
        self.failed: list[str] = []
        self.context = ""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        for fixtures in item._fixtureinfo.name2fixturedefs.values():  # type: ignore[attr-defined]
            for fixture in fixtures:
                if fixture.scope != "function":
                    self.users[_fixture_name(fixture)].append(item.nodeid)
        started = time.perf_counter()
        self._switch(item.nodeid)
        result = yield
        self._switch("")
        self.seconds[item.nodeid] = time.perf_counter() - started
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Iterator[None]:
        before = self.context
        if fixturedef.scope != "function":
            self._switch(_fixture_name(fixturedef))
        result = yield
        self._switch(before)
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def reached(self) -> dict[str, dict[int, list[str]]]:
        data = self.coverage.get_data()
        found: dict[str, dict[int, list[str]]] = {}
        for file in data.measured_files():
            found[file] = {}
            for line, contexts in data.contexts_by_lineno(file).items():
                tests = {test for context in contexts for test in self.users.get(context, [context])}
                found[file][line] = sorted(tests & self.seconds.keys())
        return found

    def _switch(self, context: str) -> None:
        self.context = context
        self.coverage.switch_context(context)


class Chosen:
    """A pytest plugin: runs only these tests, in this order."""

    def __init__(self, tests: list[str]) -> None:
        self.order = {test: place for place, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.order), key=lambda i: self.order[i.nodeid]
        )


def prepare() -> None:
    """Import what every child needs, and draw few examples."""
    for name in (
        "numpy",
        "pydantic",
        "jinja2",
        "httpx",
        "tiktoken",
        "rich",
        "hypothesis.stateful",
        "tokenizers",
    ):
        importlib.import_module(name)
    limit_examples(EXAMPLES)


def reach(copy: Path, package: str, tests: list[str], into: Path) -> Reached:
    """Run all tests once.

    Raises:
        RuntimeError: some of them fail without any mutant.
    """

    def run() -> int:
        recorder = Recorder(copy / package)
        recorder.coverage.start()
        code = pytest.main(["-q", *_OPTIONS, *tests], plugins=[recorder])
        recorder.coverage.stop()
        into.write_text(json.dumps([recorder.seconds, recorder.reached(), recorder.failed]), "utf-8")
        return int(code)

    code = in_child(copy, run, seconds=3600, write_bytecode=True)
    if not into.exists():
        raise RuntimeError(f"the tests did not run without a mutant (exit code {code})")
    seconds, reached, failed = json.loads(into.read_text("utf-8"))
    if failed or code:
        raise RuntimeError(f"tests fail without a mutant: {', '.join(failed) or code}")
    tests_by_line = {
        file: {int(line): found for line, found in lines.items()} for file, lines in reached.items()
    }
    return Reached(seconds, tests_by_line)


def judge(copy: Path, tests: list[str], seconds: float) -> int | None:
    """pytest's exit code for these tests, stopped at the first that fails; None when they took too long."""

    def run() -> int:
        files = sorted({test.split("::")[0] for test in tests})
        return int(pytest.main(["-q", "-x", *_OPTIONS, *files], plugins=[Chosen(tests)]))

    return in_child(copy, run, seconds)


def in_child(copy: Path, run: Callable[[], int], seconds: float, write_bytecode: bool = False) -> int | None:
    """What ``run`` returns in a child whose checkout is ``copy``; None when it was killed after ``seconds``."""
    child = os.fork()
    if not child:
        code = 70
        try:
            _settle(copy, write_bytecode)
            code = run()
        finally:
            os._exit(code)  # nothing of the parent's is to be closed or printed twice
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


_OPTIONS = (
    "-p",
    "no:xdist",
    "-p",
    "no:agentctx",
    "--no-header",
    "--tb=line",
    "--rootdir=.",
    "-c",
    "pyproject.toml",
)


def _settle(copy: Path, write_bytecode: bool) -> None:
    """Make ``copy`` the checkout of this process: its own group, silent, its modules from there."""
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    silent = os.open(copy.parent / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    os.chdir(copy)
    roots = [str(copy), str(copy / "engine")]
    sys.path[:] = roots + [path for path in sys.path if path not in ("", str(Path(__file__).parents[2]))]
    os.environ["PYTHONPATH"] = os.pathsep.join(roots)
    if not write_bytecode:
        sys.dont_write_bytecode = True  # a mutant may have its original's size and second
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    for name in [name for name in sys.modules if name.split(".")[0] == "tests"]:
        del sys.modules[name]
    importlib.invalidate_caches()


def _fixture_name(fixture: Any) -> str:
    return f"fixture {fixture.baseid}::{fixture.argname}"
