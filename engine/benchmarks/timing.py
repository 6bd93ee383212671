"""How long work takes: on a GPU by device events around a captured graph, on the CPU by the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import torch

Work = Callable[[int], None]
"""Called with 0, 1, …: which of several equal pieces of work to do, so that none finds its data in a cache."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of one piece of work, measured several times."""

    samples: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.samples:
            raise ValueError("a timing needs at least one sample")

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        return cls(tuple(seconds))

    @property
    def median(self) -> float:
        return median(self.samples)

    @property
    def spread(self) -> float:
        """From the least to the greatest, as a share of the median."""
        return (max(self.samples) - min(self.samples)) / self.median if self.median else 0.0

    def told(self) -> dict[str, float | int]:
        """For the JSON file."""
        return {
            "median_seconds": self.median,
            "least_seconds": min(self.samples),
            "greatest_seconds": max(self.samples),
            "samples": len(self.samples),
        }


class Stopwatch(Protocol):
    """Times work on one device."""

    def time(self, work: Work, calls: int) -> Timing:
        """Of one call, when ``calls`` of them run one after another. The work has run before anything is timed."""
        ...


REPEATS = 15
SECONDS = 0.5  # about what one timing may take


class DeviceEvents:
    """For CUDA. Calls are captured in a graph, so that what is timed is the device's work and not the launching."""

    def time(self, work: Work, calls: int) -> Timing:
        for call in range(calls):  # compiles, and makes what the libraries make at their first use
            work(call)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for call in range(calls):
                work(call)
        once = self._replay(graph, 1)[0]
        seconds = self._replay(graph, max(3, min(REPEATS, int(SECONDS / max(once, 1e-6)))))
        graph.reset()
        return Timing.of([s / calls for s in seconds])

    @staticmethod
    def _replay(graph: torch.cuda.CUDAGraph, times: int) -> list[float]:
        events = [
            tuple(torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            for _ in range(times)
        ]
        for start, end in events:
            start.record()
            graph.replay()
            end.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(end) / 1000 for start, end in events]


class HostClock:
    """For the CPU, twice: in the interpreter a figure shows that the measurement works and nothing else."""

    def time(self, work: Work, calls: int) -> Timing:
        work(0)
        seconds = []
        for _ in range(2):
            start = time.perf_counter()
            for call in range(calls):
                work(call)
            seconds.append((time.perf_counter() - start) / calls)
        return Timing.of(seconds)
