"""Bench: one run of the script, its time, what it found so far, and what went wrong."""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

import torch

from benchmarks.kernel_checks import Checked
from benchmarks.rows import Row, Target
from benchmarks.sizes import Sizes
from benchmarks.timing import DeviceEvents, HostClock, Stopwatch

COPY = "the copy rate"
MATRIX = "the matrix rate"
Thing = TypeVar("Thing")
NO_MEMORY = (MemoryError, torch.OutOfMemoryError)


@dataclass(frozen=True, slots=True)
class Measurement:
    """A row to be: what it is called, about how many seconds it takes on a GPU, and how it is measured.

    rank: what a short budget goes to first, 0 before 1.
    """

    name: str
    seconds: float
    run: Callable[[], Row]
    target: Target | None = None
    rank: int = 1


@dataclass(slots=True)
class Bench:
    """Rows stand in the order in which they were announced, whatever was measured first."""

    device: torch.device
    sizes: Sizes
    budget_seconds: float
    random: Random
    graphs: bool = True  # whether the engine's decode steps are CUDA graphs; on the CPU there are none
    started: float = field(default_factory=time.monotonic)
    rows: dict[str, Row] = field(default_factory=dict)
    checks: list[Checked] = field(default_factory=list)
    rates: dict[str, float] = field(default_factory=dict)  # of the device: bytes or operations a second
    facts: dict[str, Any] = field(default_factory=dict)  # about the engine as it was measured
    broken: list[str] = field(default_factory=list)  # what could not be evaluated
    changed: Callable[[], None] = lambda: None  # called when there is something new to write down

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def stopwatch(self) -> Stopwatch:
        return DeviceEvents() if self.on_gpu else HostClock()

    @property
    def dtype(self) -> torch.dtype:
        """Of what is timed; the interpreter's bfloat16 would have to be widened."""
        return torch.bfloat16 if self.on_gpu else torch.float32

    @property
    def processors(self) -> int:
        return torch.cuda.get_device_properties(self.device).multi_processor_count if self.on_gpu else 4

    @property
    def has_fp8(self) -> bool:
        """From Ada and Hopper on; the interpreter has everything."""
        return not self.on_gpu or torch.cuda.get_device_capability(self.device) >= (8, 9)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def has_time_for(self, seconds: float) -> bool:
        return self.seconds + seconds <= self.budget_seconds

    def out_of_time(self) -> str:
        return f"{self.seconds:.0f} of {self.budget_seconds:.0f} s were spent"

    def share(self, rate: float, of: str) -> float | None:
        """``rate`` as a share of what the device can do, if that is known."""
        return rate / self.rates[of] if of in self.rates else None

    def announce(self, measurements: Iterable[Measurement]) -> None:
        for m in measurements:
            self.rows[m.name] = Row(m.name, state="left out", target=m.target, why="not reached")

    def leave_out(self, measurement: Measurement, why: str) -> None:
        self._put(Row(measurement.name, state="left out", target=measurement.target, why=why))

    def fail(self, measurement: Measurement, error: BaseException) -> None:
        why = f"{type(error).__name__}: {first_line(error)}"
        self.broken.append(f"{measurement.name}: {why}")
        traceback.print_exception(error, file=sys.stderr)
        self._put(Row(measurement.name, state="failed", target=measurement.target, why=why))

    def measure(self, measurements: Iterable[Measurement]) -> None:
        """Those of the lowest rank first; each one that there is time for. One that fails doesn't keep the others."""
        for m in sorted(measurements, key=lambda m: m.rank):
            if not self.has_time_for(m.seconds):
                self.leave_out(m, self.out_of_time())
                continue
            try:
                row = m.run()
            except NO_MEMORY as error:
                self.leave_out(m, f"no memory for it: {first_line(error)}")
            except Exception as error:
                self.fail(m, error)
            else:
                self._put(row)

    def prepared(
        self, measurements: Sequence[Measurement], seconds: float, make: Callable[[], Thing]
    ) -> Thing | None:
        """What all of these measurements need, which takes about ``seconds``; ``None``, and a reason in each of their rows,
        when it can't be had."""
        self.announce(measurements)
        if not self.has_time_for(seconds):
            for m in measurements:
                self.leave_out(m, self.out_of_time())
            return None
        try:
            return make()
        except NO_MEMORY as error:
            for m in measurements:
                self.leave_out(m, f"no memory for it: {first_line(error)}")
        except Exception as error:
            for m in measurements:
                self.fail(m, error)
        return None

    def check(self, checked: Checked) -> None:
        self.checks.append(checked)
        if not checked.is_right:
            print(f"WRONG {described(checked)}", file=sys.stderr, flush=True)

    @property
    def wrong(self) -> list[Checked]:
        return [checked for checked in self.checks if not checked.is_right]

    def _put(self, row: Row) -> None:
        self.rows[row.name] = row
        print(f"{self.seconds:6.1f} s  {row.name}  {row.state}", file=sys.stderr, flush=True)
        self.changed()


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:200]


def described(checked: Checked) -> str:
    """One line."""
    faults = "".join(f"; {fault}" for fault in checked.faults)
    return (
        f"{checked.kernel}: error {checked.error:.2g} of at most {checked.bound:.2g}{faults} ({checked.case})"
    )
