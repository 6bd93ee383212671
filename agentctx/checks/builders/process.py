"""Running a builder in a process of its own, under settings and within limits. Nothing that it does reaches this process."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import IO, Any, Literal

from agentctx.checks.builders.scenario import Scenario
from agentctx.errors import UsageError

Variation = Literal["hash seed", "clock", "cwd", "locale", "timezone"]
VARIATIONS: tuple[Variation, ...] = ("hash seed", "clock", "cwd", "locale", "timezone")
_STEP = 5 * 3600 + 17 * 60 + 43.0  # between turns: the hour changes each time, the day soon
_MAX_BYTES = 64 << 20
_MAX_OUTPUT = 16 << 10
_POLL = 0.05
# Ours is found behind everything else, so that the builder's modules are those that it finds without us.
_ROOT = Path(__file__).parents[3]  # of the package: the child imports it from there
_START = "import sys; sys.path.append(sys.argv[2]); from agentctx.checks.builders.child import main; main()"


@dataclass(frozen=True, slots=True)
class Setting:
    """What a fresh process is started with. ``clock``: seconds since the epoch at the first turn. ``cwd``: None is the project's root."""

    hash_seed: int = 1
    clock: float = 1_736_933_400.0  # 2025-01-15 09:30 UTC
    cwd: Path | None = None
    locale: str = "C.UTF-8"
    timezone: str = "UTC"

    def varied(self, what: Variation, elsewhere: Path) -> Setting:
        """The same but for one thing."""
        match what:
            case "hash seed":
                return replace(self, hash_seed=self.hash_seed + 1)
            case "clock":
                return replace(self, clock=1_787_521_632.5)  # 2026-08-23 21:47 UTC
            case "cwd":
                return replace(self, cwd=elsewhere)
            case "locale":
                return replace(self, locale=other_locale())
            case "timezone":
                return replace(self, timezone="AGX-13:45")


@dataclass(slots=True)
class Run:
    """What came of it. ``bodies``: the request of each turn; ``reads``: who looked at clock, cwd or chance in it.

    ``failure``: why it came to no good end, in words; ``detail``: the end of its error output or traceback.
    """

    bodies: list[dict[str, Any]] = field(default_factory=list)
    reads: list[list[tuple[str, str, int]]] = field(default_factory=list)
    file: str = ""
    line: int | None = None
    failure: str = ""
    detail: str = ""
    printed: str = ""
    threads: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Place:
    """The builder, and where its project lies. ``timeout``: seconds for one process."""

    builder: str
    root: Path
    timeout: float = 20.0


@cache
def other_locale() -> str:
    """A locale that is installed and not the usual one; ``C`` where there is none."""
    try:
        said = subprocess.run(["locale", "-a"], capture_output=True, text=True, check=False, timeout=5).stdout
    except (OSError, subprocess.TimeoutExpired):
        return "C"
    found = [
        name
        for name in said.split()
        if name.lower().endswith((".utf8", ".utf-8")) and not name.startswith("C.")
    ]
    return min(found, key=lambda name: (name.startswith("en_"), name), default="C")


@contextmanager
def another_folder(root: Path) -> Iterator[Path]:
    """A folder of another name in which everything of the project is found by the same relative paths."""
    with tempfile.TemporaryDirectory(prefix="agentctx-cwd-") as name:
        for entry in root.iterdir():
            (Path(name) / entry.name).symlink_to(entry.resolve())
        yield Path(name)


def run_builder(place: Place, scenario: Scenario, setting: Setting) -> Run:
    """Run it over the scenario. Never raises for what the builder does; ``Run.failure`` says it."""
    if os.name != "posix":
        raise UsageError("builders can be checked on POSIX systems only (process groups)")
    run = Run()
    with _started(place, setting) as (child, reading):
        outputs = [_Kept(stream) for stream in (child.stdout, child.stderr) if stream is not None]
        _send(child, _job(place, scenario, setting))
        _collect(child, reading, run, place.timeout)
    run.printed, errors = (output.text() for output in outputs)
    run.detail = run.detail or errors.strip()
    return run


@contextmanager
def _started(place: Place, setting: Setting) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The process, and the descriptor on which its records arrive. At the end it is killed, whatever it does."""
    reading, writing = os.pipe()
    environment = {
        **os.environ,
        "PYTHONHASHSEED": str(setting.hash_seed),
        "TZ": setting.timezone,
        "LC_ALL": setting.locale,
        "LANG": setting.locale,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    environment.pop("PYTHONSAFEPATH", None)
    try:
        try:
            child = subprocess.Popen(
                [sys.executable, "-P", "-c", _START, str(writing), str(_ROOT)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=setting.cwd or place.root,
                env=environment,
                pass_fds=(writing,),
                start_new_session=True,
            )
        finally:
            os.close(writing)
        try:
            yield child, reading
        finally:
            _end(child)
    finally:
        os.close(reading)


def _job(place: Place, scenario: Scenario, setting: Setting) -> bytes:
    root = str(place.root.resolve())
    return json.dumps(
        {
            "builder": place.builder,
            "root": root,
            "path": [root],
            "messages": list(scenario.messages),
            "tools": list(scenario.tools),
            "ends": list(scenario.ends),
            "clock": setting.clock,
            "step": _STEP,
        }
    ).encode()


def _send(child: subprocess.Popen[bytes], job: bytes) -> None:
    """Hand the job over from a thread: a child that doesn't read must not stop us."""

    def write() -> None:
        assert child.stdin is not None
        with suppress(OSError):  # it ended before it read: said by its records
            child.stdin.write(job)
            child.stdin.close()

    threading.Thread(target=write, daemon=True).start()


def _collect(child: subprocess.Popen[bytes], reading: int, run: Run, timeout: float) -> None:
    """Read records until the last one, the end of the process, or the deadline."""
    rest, size, ended = b"", 0, False
    deadline = time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        selector.register(reading, selectors.EVENT_READ)
        while True:
            ready = selector.select(_POLL)
            chunk = os.read(reading, 1 << 16) if ready else b""
            size += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            try:
                if any(_take(json.loads(line), run) for line in lines):
                    return
            except (ValueError, LookupError, TypeError):
                run.failure = "it wrote into a file descriptor that isn't its own"
                return
            where = f"turn {len(run.bodies) + 1}" if run.file or run.bodies else "import"
            if size > _MAX_BYTES:
                run.failure = f"{where}: its requests are more than {_MAX_BYTES >> 20} MiB together"
                return
            if time.monotonic() > deadline:
                run.failure = f"{where}: not done within {timeout:g} s, so it was killed; raise the limit with --timeout"
                return
            if ended and not chunk:
                run.failure = f"{where}: the process ended by itself ({_how(child.returncode)})"
                return
            closed = bool(ready) and not chunk
            if closed:  # nothing more will come, although the process may go on
                with suppress(subprocess.TimeoutExpired):
                    child.wait(max(0.0, deadline - time.monotonic()))
            ended = child.poll() is not None


def _take(record: dict[str, Any], run: Run) -> bool:
    """Take a record in; True for the last one."""
    match record["kind"]:
        case "loaded":
            run.file, run.line = record["file"] or "<builder>", record["line"]
        case "turn":
            run.bodies.append(record["body"])
            run.reads.append([(kind, file, line) for kind, file, line in record["reads"]])
        case "failed":
            run.failure, run.detail = f"{record['stage']}: {record['error']}", record["traceback"].strip()
            return True
        case "done":
            run.threads = record["threads"]
            return True
    return False


def _how(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit code {code}"


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill whatever is left of it, its own children too."""
    with suppress(ProcessLookupError, PermissionError):  # all gone already
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


class _Kept:
    """The beginning of a stream, read by a thread so that a flood blocks nobody."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._data = b""
        self._thread = threading.Thread(target=self._read, args=(stream,), daemon=True)
        self._thread.start()

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            while chunk := stream.read1(1 << 16) if hasattr(stream, "read1") else stream.read(1 << 16):
                self._data = (self._data + chunk)[:_MAX_OUTPUT]

    def text(self) -> str:
        """What was kept. A process that got away and holds the stream open doesn't keep us."""
        self._thread.join(1.0)
        return self._data.decode("utf-8", "replace")
