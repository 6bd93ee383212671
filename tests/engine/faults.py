"""Steps and files that fail, and files that come late: what a schedule meets, and when, is drawn with it.

A file is read when the schedule lets it through, or when the engine waits for it. Which reads fail is their number's
matter, and which steps the model's calls': a schedule that went wrong goes wrong again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from torch import Tensor

from agentctx_engine.attention.batch import Batch
from agentctx_engine.runtime.block_directory import BlockDirectory
from agentctx_engine.runtime.errors import SnapshotError
from agentctx_engine.runtime.tiers import TierCopier

from .context_hash_model import ContextHashModel

PATIENCE = 30.0  # seconds after which a wait that should have ended is an error


class InjectedError(RuntimeError):
    """Raised in the place of a kernel's."""


@dataclass(frozen=True)
class Faults:
    """What goes wrong. Numbers count from 0: of the model's calls, of the files read, and of files a step lets through."""

    failing_calls: frozenset[int]
    failing_reads: frozenset[int]
    let_through: tuple[int, ...]  # used over and over


def random_faults(random: Random) -> Faults:
    def some(share: float, most: int) -> frozenset[int]:
        return frozenset(number for number in range(most) if random.random() < share)

    return Faults(
        failing_calls=frozenset(random.sample(range(30, 120), random.choice([0, 1, 2, 4]))),
        failing_reads=some(random.choice([0.3, 1.0]), 200),
        let_through=tuple(random.choices(range(3), k=4)),
    )


class FailingModel(ContextHashModel):
    """Fails in the calls that it is told, before it has written anything."""

    failing: frozenset[int] = frozenset()
    made: int = 0

    def forward(self, batch: Batch, kv_caches: Sequence[Tensor], *, deterministic: bool = False) -> Tensor:
        call, self.made = self.made, self.made + 1
        if call in self.failing:
            raise InjectedError("no kernel image is available")
        return super().forward(batch, kv_caches, deterministic=deterministic)


class Gate:
    """Lets reads of files through, in their order. Failing ones are numbered from 0."""

    def __init__(self, failing: frozenset[int]) -> None:
        self._changed = threading.Condition()
        self._failing = failing
        self._allowed = self._done = 0
        self._open = 0  # somebody waits for them all
        self.asked = 0

    def allow(self, count: int) -> None:
        """Return when ``count`` more files have been read, or all that were asked for."""
        with self._changed:
            self._allowed = min(self._done + count, self.asked)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._done >= self._allowed, PATIENCE)

    @contextmanager
    def opened(self) -> Iterator[None]:
        with self._changed:
            self._open += 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._open -= 1

    def read(self, function: Callable[[], Any]) -> Any:
        with self._changed:
            assert self._changed.wait_for(lambda: self._open or self._allowed > self._done, PATIENCE)
            number = self._done
        try:
            if number in self._failing:
                raise SnapshotError("the disk is gone")
            return function()
        finally:
            with self._changed:
                self._done += 1
                self._changed.notify_all()


@contextmanager
def gated_files(failing: frozenset[int]) -> Iterator[Gate]:
    """Files are read as the gate lets them through; whatever waits for them opens it."""
    gate = Gate(failing)
    read, start = BlockDirectory.read, TierCopier.start

    def gated_read(self: BlockDirectory, digest: bytes, group: int) -> Tensor:
        found: Tensor = gate.read(lambda: read(self, digest, group))
        return found

    def counted(self: TierCopier, transfers: Any) -> None:
        gate.asked += len(transfers.disk_reads)
        start(self, transfers)

    def opening(function: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*arguments: Any) -> Any:
            with gate.opened():
                return function(*arguments)

        return wait

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BlockDirectory, "read", gated_read)
        patch.setattr(TierCopier, "start", counted)
        for name in ("wait_until_safe", "wait_for", "wait_for_arrival", "close"):
            patch.setattr(TierCopier, name, opening(getattr(TierCopier, name)))
        yield gate
