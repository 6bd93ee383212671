"""Tiers behind the pool: host memory and files give back what was evicted, and never anything else."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentctx_engine import Engine, SamplingParams
from agentctx_engine.attention.kv_cache import copy_blocks
from agentctx_engine.memory import NO_KEYS
from agentctx_engine.memory.host_tier import BlockCopy, Transfers
from agentctx_engine.models import Family, Model, random_config, random_model
from agentctx_engine.runtime import (
    EngineClosedError,
    EngineMemoryError,
    GenerationHandle,
    RequestCancelledError,
    RequestFailedError,
    tiers,
)
from agentctx_engine.runtime.block_directory import BlockDirectory
from agentctx_engine.runtime.config import EngineConfig
from agentctx_engine.runtime.core import EngineCore
from agentctx_engine.runtime.errors import SnapshotError
from agentctx_engine.runtime.paged_store import PagedStore
from agentctx_engine.runtime.tensor_file import is_temporary
from agentctx_engine.runtime.tiers import TierCopier

from .faults import gated_files
from .killed import kill_while_writing
from .schedules import Arrival, Schedule, check_end, run

VOCABULARY = 128
ANSWER = SamplingParams(max_tokens=4, stop_token_ids=())


@cache
def model(family: Family = "llama") -> Model:
    layers = 3 if family == "gemma3" else 2
    return random_model(
        family, seed=1, config=random_config(family, vocab_size=VOCABULARY, num_layers=layers, window=12)
    )


@cache
def uncached(family: Family, prompt: tuple[int, ...], max_tokens: int = 4) -> tuple[int, ...]:
    with Engine(model(family), num_blocks=64, prefix_cache="none", deterministic=True) as engine:
        return engine.generate(prompt, SamplingParams(max_tokens=max_tokens, stop_token_ids=())).token_ids


def texts(count: int, length: int, seed: int = 0) -> list[tuple[int, ...]]:
    random = Random(seed)
    return [tuple(random.randrange(1, VOCABULARY) for _ in range(length)) for _ in range(count)]


def engine_of(family: Family = "llama", **options: Any) -> Engine:
    small = {"num_blocks": 12, "block_size": 4, "host_blocks": 12, "deterministic": True, "max_samples": 4}
    files = {"disk_bytes": 2_000_000} if "disk_dir" in options else {}
    return Engine(model(family), **{**small, **files, **options})


def ask(engine: Engine, prompt: tuple[int, ...], family: Family = "llama") -> tuple[int, int, int]:
    """(cached, of which from host, from disk), the answer being that of an engine without a cache."""
    result = engine.generate(prompt, ANSWER)
    assert result.token_ids == uncached(family, prompt)
    assert result.cached_tokens + result.computed_tokens == len(prompt)
    engine._loop.call(engine._core.kv.check)
    return result.cached_tokens, result.host_tokens, result.disk_tokens


def test_evicted_text_comes_back_from_host_memory() -> None:
    first, second = texts(2, 41)
    with engine_of(host_blocks=40) as engine:
        assert ask(engine, first) == (0, 0, 0)
        assert ask(engine, second) == (0, 0, 0)
        cached, host, disk = ask(engine, first)
        assert (cached, disk) == (40, 0)
        assert host >= 32  # what is still on the device stays there
        tiers = engine.state().tiers
        assert tiers is not None
        block = engine.state().block_bytes
        assert tiers.loaded_blocks * 4 == host
        assert tiers.copied_bytes.from_host == tiers.loaded_blocks * block
        assert tiers.copied_bytes.to_host == tiers.offloaded_blocks * block


def test_what_the_host_gives_up_comes_back_from_files(tmp_path: Path) -> None:
    prompts = texts(5, 41)
    with engine_of(disk_dir=tmp_path) as engine:
        for prompt in prompts:
            ask(engine, prompt)
        cached, _, disk = ask(engine, prompts[0])
        assert cached == disk == 40
        tiers = engine.state().tiers
        assert tiers is not None
        assert (
            tiers.copied_bytes.from_disk
            == tiers.read_blocks * engine.state().block_bytes
            == 10 * engine.state().block_bytes
        )
    with engine_of(disk_dir=tmp_path) as engine:  # another process would find as much
        assert ask(engine, prompts[1]) == (40, 0, 40)
    with engine_of("mistral", disk_dir=tmp_path) as engine:  # another model finds nothing
        assert ask(engine, prompts[1], "mistral") == (0, 0, 0)


def test_the_directory_stays_within_its_size(tmp_path: Path) -> None:
    prompts = texts(12, 41)
    with engine_of(disk_dir=tmp_path, disk_bytes=60_000) as engine:
        for prompt in prompts:
            ask(engine, prompt)
        assert engine.state().tiers.disk_cached > 10  # type: ignore[union-attr]
    assert 30_000 < size_of(tmp_path) <= 60_000
    with engine_of(disk_dir=tmp_path, disk_bytes=20_000):
        assert 10_000 < size_of(tmp_path) <= 20_000
    with pytest.raises(EngineMemoryError, match="holds no block"):
        engine_of(disk_dir=tmp_path, disk_bytes=100)
    with pytest.raises(ValueError, match="disk_bytes=-1: must not be negative"):
        engine_of(disk_dir=tmp_path, disk_bytes=-1)


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*.kv"))


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "swap"])
def test_a_damaged_file_is_never_reused(tmp_path: Path, damage: str) -> None:
    prompts = texts(5, 41)
    with engine_of(disk_dir=tmp_path) as engine:
        for prompt in prompts:
            ask(engine, prompt)
    files = sorted(tmp_path.rglob("*.kv"))
    contents = [bytearray(file.read_bytes()) for file in files]
    with engine_of(disk_dir=tmp_path) as engine:
        for number, (file, data) in enumerate(zip(files, contents, strict=True)):
            if damage == "remove":
                file.unlink()
            elif damage == "cut":
                file.write_bytes(data[: len(data) // 2])
            elif damage == "swap":
                file.write_bytes(contents[number - 1])
            else:
                data[len(data) * 2 // 3] ^= 4
                file.write_bytes(data)
        result = engine.generate(prompts[1], ANSWER)
        assert result.token_ids == uncached("llama", prompts[1])
        assert (result.cached_tokens, result.computed_tokens, result.disk_tokens) == (0, 41, 0)
        assert engine.state().tiers.failed_blocks >= 1  # type: ignore[union-attr]
        engine._loop.call(engine._core.kv.check)
        assert ask(engine, prompts[1])[0] == 40  # computed anew, it is cached anew


class HeldReads:
    """An engine whose first of five texts went to files, none of which is read before ``go_on``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self.go_on, self.waits = Event(), Event()
        self.prompts = texts(5, 21)
        self.engine = engine_of(disk_dir=directory, num_blocks=16, host_blocks=2)
        for prompt in self.prompts:
            ask(self.engine, prompt)
        read, wait_for_arrival = BlockDirectory.read, TierCopier.wait_for_arrival

        def held_read(directory: BlockDirectory, digest: bytes, group: int) -> Any:
            assert self.go_on.wait(100)
            return read(directory, digest, group)

        def watched_wait(copier: TierCopier, *news: Any) -> None:
            self.waits.set()
            wait_for_arrival(copier, *news)

        monkeypatch.setattr(BlockDirectory, "read", held_read)
        monkeypatch.setattr(TierCopier, "wait_for_arrival", watched_wait)

    def __enter__(self) -> HeldReads:
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on.set()
        self.engine.close()

    def ask_first(self, *, alone: bool) -> GenerationHandle:
        """``alone``: the engine has found that there is nothing else to do, and waits for the files."""
        handle = self.engine.submit(self.prompts[0], ANSWER)
        assert not alone or self.waits.wait(60)
        return handle


@pytest.mark.timeout(120)
@pytest.mark.parametrize("alone", [True, False])
def test_others_compute_while_blocks_come_back(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, alone: bool
) -> None:
    """A sample that waits for files holds up nobody: the files are read when the other has its answer."""
    other = texts(1, 17, seed=9)[0]
    with HeldReads(monkeypatch, tmp_path) as held:
        waiting = held.ask_first(alone=alone)
        assert held.engine.submit(other, ANSWER).result(timeout=60).token_ids == uncached("llama", other)
        held.go_on.set()
        result = waiting.result()
        assert result.token_ids == uncached("llama", held.prompts[0])
        assert result.disk_tokens > 0


@pytest.mark.timeout(120)
def test_a_request_that_waits_for_files_can_be_cancelled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with HeldReads(monkeypatch, tmp_path) as held:
        waiting = held.ask_first(alone=True)
        waiting.cancel()
        with pytest.raises(RequestCancelledError):
            waiting.result(timeout=60)
        assert held.engine.state().running == 0
        held.go_on.set()
        ask(held.engine, held.prompts[0])


@pytest.mark.timeout(120)
def test_an_engine_that_waits_for_files_closes_when_they_come(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with HeldReads(monkeypatch, tmp_path) as held:
        waiting = held.ask_first(alone=True)
        Thread(target=held.engine.close, daemon=True).start()
        with pytest.raises(EngineClosedError):
            waiting.result(timeout=60)
        assert not held.go_on.is_set()


@pytest.mark.timeout(120)
def test_a_file_that_fails_while_a_prefix_is_saved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Saving and restoring what the failing file is no part of; restoring waits until nothing is on its way."""
    prompts, other = texts(5, 21), texts(1, 17, seed=9)[0]
    submitted, begun, cancelled, go_on = Event(), Event(), Event(), Event()
    wait_for_arrival = TierCopier.wait_for_arrival

    def failing_read(self: BlockDirectory, digest: bytes, group: int) -> Any:
        begun.set()
        assert go_on.wait(60)
        raise SnapshotError("the disk is gone")

    def in_step(sample: int, output: Sequence[int]) -> bool:
        """Holds the engine until the request that reads has come, and until it is cancelled."""
        return not {1: submitted, 3: cancelled}.get(len(output), submitted).wait(60)

    def waiting_copier(self: TierCopier, *news: Any) -> None:
        go_on.set()  # the read fails while somebody waits for it
        wait_for_arrival(self, *news)

    with engine_of(disk_dir=tmp_path / "tier", num_blocks=16, host_blocks=2) as engine:
        for prompt in prompts:
            ask(engine, prompt)
        monkeypatch.setattr(BlockDirectory, "read", failing_read)
        running = engine.submit(other, ANSWER, stop_hook=in_step)
        reading = engine.submit(prompts[0], ANSWER)
        submitted.set()
        assert begun.wait(60)
        reading.cancel()
        cancelled.set()
        assert running.result().token_ids == uncached("llama", other)
        assert not go_on.is_set()
        assert engine.save(other, tmp_path / "other.kv").num_tokens == 16
        assert not go_on.is_set()
        monkeypatch.setattr(TierCopier, "wait_for_arrival", waiting_copier)
        assert engine.restore(tmp_path / "other.kv").findable_tokens == 16
        assert go_on.is_set()
        assert engine.state().tiers.failed_blocks >= 1  # type: ignore[union-attr]
        ask(engine, prompts[0])


@pytest.mark.timeout(120)
def test_files_that_fail_one_by_one_are_none_of_the_matter_of_what_was_computed_meanwhile(
    tmp_path: Path,
) -> None:
    """After the first the request computes it all; the others' failures come while it answers, and count for nothing."""
    prompts = texts(11, 41)
    with engine_of(disk_dir=tmp_path, num_blocks=40, host_blocks=2) as engine:
        for prompt in prompts:
            ask(engine, prompt)
        wanted = uncached("llama", prompts[0], 20)
        with gated_files(frozenset(range(100))) as gate:

            def one_more(sample: int, output: Sequence[int]) -> bool:
                gate.allow(1)
                return False

            params = SamplingParams(max_tokens=20, stop_token_ids=())
            result = engine.generate(prompts[0], params, stop_hook=one_more)
        assert gate.asked == 10
        tiers = engine.state().tiers
        assert tiers is not None
        assert tiers.failed_blocks == 10
        assert result.token_ids == wanted
        assert (result.cached_tokens, result.computed_tokens, result.recomputed_tokens) == (0, 41, 0)
        assert ask(engine, prompts[0]) == (40, 0, 0)  # what it computed can be found


@pytest.mark.timeout(120)
@pytest.mark.parametrize("n", [1, 2])
def test_a_failed_file_leaves_alone_who_computes_the_same_text(tmp_path: Path, n: int) -> None:
    prompts, answers = texts(11, 21), SamplingParams(max_tokens=6, n=n, stop_token_ids=())
    with engine_of(disk_dir=tmp_path, num_blocks=24, host_blocks=2) as engine:
        for prompt in prompts:
            ask(engine, prompt)
        first = prompts[0]
        handles: list[GenerationHandle] = []
        with gated_files(frozenset(range(100))):
            engine._loop.call(
                lambda: handles.extend(engine.submit(first, answers, reuse=reuse) for reuse in (True, False))
            )
            results = [handle.result(timeout=60) for handle in handles]
        for result in results:
            assert {sample.token_ids for sample in result.samples} == {uncached("llama", first, 6)}
            assert result.recomputed_tokens == 0
        counts = [(r.cached_tokens, r.computed_tokens) for r in results]
        assert counts[1] == (0, 21)
        assert sum(counts[0]) == 21


@pytest.mark.timeout(120)
def test_who_waits_for_blocks_beside_those_of_a_failed_step_reads_none_that_it_did_not_write(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first of two computes three blocks; the second hits these, and waits for others from the host. The step fails."""
    [text], others = texts(1, 41), texts(3, 41, 5)
    with engine_of(num_blocks=24, host_blocks=30) as engine:
        for prompt in (text, *others):
            ask(engine, prompt)
        handles: list[GenerationHandle] = []
        forward, failed, load, go_on = engine._core.runner._forward, Event(), TierCopier._load, Event()

        def failing(*arguments: Any) -> Any:
            if handles and not failed.is_set():
                failed.set()
                go_on.set()
                raise RuntimeError("no kernel image")
            return forward(*arguments)

        def late(*arguments: Any) -> None:
            assert go_on.wait(60)
            load(*arguments)

        monkeypatch.setattr(engine._core.runner, "_forward", failing)
        monkeypatch.setattr(TierCopier, "_load", late)
        engine._loop.call(
            lambda: handles.extend(
                (engine.submit(text[:13], ANSWER, reuse=False), engine.submit(text, ANSWER))
            )
        )
        with pytest.raises(RequestFailedError, match="no kernel image"):
            handles[0].result(timeout=60)
        result = handles[1].result(timeout=60)
        assert result.token_ids == uncached("llama", text)
        assert (result.cached_tokens, result.host_tokens, result.computed_tokens) == (0, 0, 41)
        assert ask(engine, text) == (40, 0, 0)


@pytest.mark.parametrize("damaged", [False, True])
def test_a_directory_that_can_no_longer_be_written_stops_nobody(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, damaged: bool
) -> None:
    prompts = texts(5, 41)
    with engine_of(disk_dir=tmp_path) as engine:
        for prompt in prompts:
            ask(engine, prompt)
    with engine_of(disk_dir=tmp_path) as engine:
        for file in tmp_path.rglob("*.kv") if damaged else ():
            file.write_bytes(file.read_bytes()[:-1])

        def refuse(*_: Any, **__: Any) -> None:
            raise PermissionError(13, "Permission denied")

        for of, name in ((Path, "touch"), (Path, "unlink"), (os, "replace")):
            monkeypatch.setattr(of, name, refuse)
        assert ask(engine, prompts[0])[2] == (0 if damaged else 40)
        for prompt in prompts[1:4]:
            ask(engine, prompt)
        engine.drop_cached()
        ask(engine, prompts[0])
        monkeypatch.undo()


@pytest.mark.parametrize("what", ["load", "read", "copy", "move_down"])
def test_no_memory_for_a_move_ends_at_most_the_requests_of_its_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str
) -> None:
    """Whichever of the moves it is that fails, and with it whatever of its kind comes meanwhile."""
    prompts, failures = texts(4, 21), list[str]()
    disk = {"disk_dir": tmp_path, "host_blocks": 2} if what == "read" else {"host_blocks": 60}

    def failing(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def fail(*arguments: Any, **options: Any) -> Any:
            if what == name and len(failures) < 2:
                failures.append(name)
                raise torch.OutOfMemoryError("out of memory")
            return function(*arguments, **options)

        return fail

    def within(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``_index`` fails when it is called by this method."""

        def call(*arguments: Any) -> Any:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(tiers, "_index", failing(name, tiers._index))
                return function(*arguments)

        return call

    with engine_of(token_granular=what == "copy", num_blocks=8, **disk) as engine:
        for prompt in prompts:
            ask(engine, prompt)
        monkeypatch.setattr(TierCopier, "_load", within("load", TierCopier._load))
        monkeypatch.setattr(TierCopier, "_move_down", within("move_down", TierCopier._move_down))
        monkeypatch.setattr(tiers, "copy_blocks", failing("copy", copy_blocks))
        monkeypatch.setattr(BlockDirectory, "read", failing("read", BlockDirectory.read))
        failed = 0
        first, second = (
            (*prompts[3][:18], *own) for own in ((1, 2, 3), (4, 5, 6))
        )  # end inside a block of the text
        for prompt in (first, first, second, *prompts[:3], prompts[0]):
            try:
                ask(engine, prompt)
            except EngineMemoryError:
                failed += 1
        assert len(failures) == 2
        assert failed == (2 if what in ("copy", "move_down") else 0)
        assert engine.state().pool.in_use == 0


def test_forgetting_begins_to_delete_files_at_once(tmp_path: Path) -> None:
    prompts = texts(5, 41)
    with engine_of(disk_dir=tmp_path) as engine:
        for prompt in prompts:
            ask(engine, prompt)
        store = engine._core.kv
        assert isinstance(store, PagedStore)
        files = store._tiers.copier._files  # type: ignore[union-attr]
        files.submit(int).result(timeout=60)
        assert size_of(tmp_path)
        engine.drop_cached()
        files.submit(int).result(timeout=60)  # after what was asked for before
        assert not size_of(tmp_path)
        ask(engine, prompts[0])
    with engine_of(disk_dir=tmp_path) as engine:
        assert ask(engine, prompts[1]) == (0, 0, 0)


@st.composite
def tiered_schedules(draw: st.DrawFn, family: Family, directory: str) -> Schedule:
    block_size = draw(st.sampled_from([2, 4, 5]))
    largest = -(-40 // block_size)
    with_disk = draw(st.booleans())
    full_window_cache = draw(st.booleans())
    config = EngineConfig(
        block_size=block_size,
        num_blocks=largest + draw(st.integers(0, largest)),
        max_step_tokens=draw(st.sampled_from([5, 9, 64])),
        max_samples=draw(st.integers(2, 5)),
        host_blocks=draw(st.integers(1, 2 * largest)),
        disk_dir=directory if with_disk else None,
        disk_bytes=draw(st.integers(6_000, 60_000)),
        full_window_cache=full_window_cache,
        token_granular=(full_window_cache or family == "llama") and draw(st.booleans()),
        window_checkpoints=draw(st.integers(0, 3)),
        window_checkpoint_spacing=draw(st.sampled_from([1, 8])),
        deterministic=True,
    )
    stems = texts(3, 30, seed=draw(st.integers(0, 3)))
    arrivals = []
    for _ in range(draw(st.integers(3, 9))):
        stem = draw(st.sampled_from(stems))
        cut = draw(st.one_of(st.integers(1, 30), st.just(30)))
        prompt = (*stem[:cut], *draw(st.lists(st.integers(1, VOCABULARY - 1), max_size=2)))
        step = draw(st.integers(0, 25))
        cancel = step + draw(st.integers(0, 6)) if draw(st.integers(0, 7)) == 0 else None
        arrivals.append(
            Arrival(prompt, draw(st.integers(1, 6)), step, n=draw(st.sampled_from([1, 1, 2])),
                    salt=draw(st.sampled_from([None, None, "a"])), cancel_step=cancel)
        )  # fmt: skip
    return Schedule(config, tuple(sorted(arrivals, key=lambda arrival: arrival.step)))


def check_tiers(core: EngineCore, config: Any) -> None:
    """Every tier within its limits, and its files those that it knows. That no block has two owners was checked after
    every step: references are counted against the tables of every tier.
    """
    kv = core.kv
    assert isinstance(kv, PagedStore)
    host = kv.manager.host
    assert host is not None
    assert host.pool.num_usable_blocks == config.host_blocks
    if config.disk_dir is not None:
        directory = kv._tiers.copier._directory  # type: ignore[union-attr]
        assert directory is not None
        assert size_of(directory.path) <= config.disk_bytes
        files = set(directory.files())
        assert host.disk is not None
        assert {key for key in files if host.disk.pool.lookup(*key) is not None} == files


def test_a_step_waits_for_what_is_on_its_way_into_its_blocks() -> None:
    """Whom it was for may have been preempted, and the block be another's already: arriving late it would overwrite that one's."""
    go_on, step_may_run = Event(), Event()
    copier = TierCopier([[torch.zeros(2, 3, 4, 1, 2)]], host_blocks=1)
    copier._memory.submit(go_on.wait)  # what was asked for before takes its time
    copier.start(Transfers(offloads=[], loads=[BlockCopy(group=0, source=0, destination=2)], copies=[]))
    copier.wait_for(0, [0, 1])  # not those
    waiter = Thread(target=lambda: (copier.wait_for(0, [0, 2]), step_may_run.set()))
    waiter.start()
    assert not step_may_run.wait(0.1)
    go_on.set()
    assert step_may_run.wait(10)
    waiter.join()
    copier.close()


@pytest.fixture
def waited_for(monkeypatch: pytest.MonkeyPatch) -> list[set[int]]:
    """The device blocks that were waited for, of each write to KV memory."""
    found: list[set[int]] = []
    begins, waits = PagedStore.wait_until_safe, TierCopier.wait_for

    def wait_until_safe(self: PagedStore, written: Any) -> None:
        found.append(set())
        begins(self, written)

    def wait_for(self: TierCopier, group: int, blocks: Any) -> None:
        found[-1].update(map(int, blocks))
        waits(self, group, blocks)

    monkeypatch.setattr(PagedStore, "wait_until_safe", wait_until_safe)
    monkeypatch.setattr(TierCopier, "wait_for", wait_for)
    return found


def test_every_step_waits_for_all_blocks_of_its_samples(waited_for: list[set[int]]) -> None:
    config = EngineConfig(num_blocks=16, block_size=4, host_blocks=4)
    result = run(model(), Schedule(config, (Arrival((1, 2, 3), 4, 0), Arrival((4, 5, 6), 4, 1))))
    first, second = {0}, {1}  # a block each, until the answers need another one
    assert waited_for == [first, first | second, *waited_for[2:]]
    assert len(waited_for) == result.core.totals.steps
    assert {len(blocks) for blocks in waited_for} == {1, 2, 3, 4}


def test_a_restored_prefix_waits_for_its_blocks(waited_for: list[set[int]], tmp_path: Path) -> None:
    with engine_of() as engine:
        engine.save(texts(1, 20)[0], tmp_path / "prefix")
    waited_for.clear()
    with engine_of() as engine:
        restored = engine.restore(tmp_path / "prefix")
    [blocks] = waited_for
    assert len(blocks) == 5
    assert len(restored.token_ids) == 20  # in blocks of four


@settings(
    max_examples=int(os.environ.get("AGENTCTX_TIER_EXAMPLES", "60")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data(), family=st.sampled_from(["llama", "mistral", "gemma3"]))
def test_random_workloads_over_three_tiers(data: st.DataObject, family: Family) -> None:
    """Tiny pools, so that every hit moves something; two engines one after the other on one directory."""
    with TemporaryDirectory() as directory:
        for _ in range(2):
            schedule = data.draw(tiered_schedules(family, directory))
            result = run(model(family), schedule)
            check_end(result)
            for request, arrival in zip(result.requests, schedule.arrivals, strict=True):
                if arrival.cancel_step is None:
                    wanted = uncached(family, arrival.prompt, arrival.max_tokens)
                    for sample in request.samples:
                        assert tuple(sample.output) == wanted[: len(sample.output)]
            result.core.kv.close()
            check_tiers(result.core, schedule.config)


SPILL_FOR_EVER = """
    import sys
    from tests.engine.test_engine_tiers import ANSWER, engine_of, texts
    with engine_of(disk_dir=sys.argv[1], host_blocks=1) as engine:
        print("ready", flush=True)
        for seed in range(10**6):
            for prompt in texts(3, 41, seed):
                engine.generate(prompt, ANSWER)
"""


def test_killed_while_writing_the_directory_opens(tmp_path: Path) -> None:
    def holds_whole_texts() -> bool:  # a text's end is the first to go
        return len(list(tmp_path.rglob("*.kv"))) >= 12

    for delay in (0.03, 0.1, 0.25):
        kill_while_writing(SPILL_FOR_EVER, tmp_path, holds_whole_texts, delay)
        with engine_of(disk_dir=tmp_path) as engine:
            assert not [file for file in tmp_path.rglob("*") if is_temporary(file)]
            hits = [ask(engine, prompt)[2] for prompt in texts(3, 41, 0)]
            assert engine.state().tiers.failed_blocks == 0  # type: ignore[union-attr]
        assert any(hits)


@pytest.mark.parametrize("kind", ["hash", "radix", "tiers"])
def test_fifty_tenants_with_equal_prompts_share_nothing(tmp_path: Path, kind: str) -> None:
    """Each tenant's first request reuses nothing, whatever the others left in any tier; its second does."""
    [prompt] = texts(1, 21)
    options: dict[str, Any] = {"prefix_cache": kind, "num_blocks": 400, "host_blocks": 0}
    if kind == "tiers":
        options = {"num_blocks": 12, "host_blocks": 20, "disk_dir": tmp_path}
    tenants = [None, "", *(f"tenant-{number}" for number in range(48))]
    with engine_of(**options) as engine:
        for tenant in tenants:
            result = engine.generate(prompt, ANSWER, cache_salt=tenant)
            assert (result.cached_tokens, result.host_tokens, result.disk_tokens) == (0, 0, 0)
            assert result.token_ids == uncached("llama", prompt)
        own = [engine.generate(prompt, ANSWER, cache_salt=tenant) for tenant in tenants]
        assert {result.cached_tokens for result in own} == {20}
        assert {result.token_ids for result in own} == {uncached("llama", prompt)}
    if kind == "tiers":
        assert sum(result.disk_tokens for result in own) > 0
        assert sum(result.host_tokens for result in own) + sum(result.disk_tokens for result in own) > 40 * 20
        with engine_of(**options) as engine:  # the files of all tenants, and a new one
            assert engine.generate(prompt, ANSWER, cache_salt="new").cached_tokens == 0
        assert not any(b"tenant-" in file.read_bytes() for file in tmp_path.rglob("*.kv"))


@pytest.mark.parametrize("kind", ["hash", "radix"])
def test_a_lookup_takes_the_same_path_whether_or_not_another_salt_holds_the_prefix(kind: str) -> None:
    [prompt] = texts(1, 21)
    steps = []
    for salt in ("other", "elsewhere"):
        with engine_of(prefix_cache=kind, host_blocks=0, num_blocks=40) as engine:
            text = prompt if salt == "other" else texts(1, 21, seed=5)[0]
            engine.generate(text, ANSWER, cache_salt=salt)
            kv = engine._core.kv
            steps.append(lookup_lines(kv, prompt))
    assert steps[0] == steps[1]


def lookup_lines(kv: Any, prompt: tuple[int, ...]) -> list[tuple[str, int]]:
    """Every line of ours that a lookup runs. What explains a miss to the operator is no part of it."""
    import numpy as np

    from agentctx_engine.memory.radix_tree import Namespace

    lines: list[tuple[str, int]] = []

    def trace(frame: Any, event: str, argument: object) -> Any:
        if event == "line" and "agentctx_engine" in frame.f_code.co_filename:
            lines.append((frame.f_code.co_filename, frame.f_lineno))
        return trace

    tokens = np.array(prompt, dtype=np.int32)
    sys.settrace(trace)
    try:
        if isinstance(kv, PagedStore):
            kv.manager.match(kv.open(tokens, "mine").kv)
        else:
            kv.cache.tree.find(tokens.tobytes(), Namespace(None, "mine"))
    finally:
        sys.settrace(None)
    return lines


def delayed(function: Callable[..., Any]) -> Callable[..., Any]:
    def later(*arguments: Any) -> Any:
        time.sleep(0.02)
        return function(*arguments)

    return later


def unsafe_steps(patch: pytest.MonkeyPatch) -> None:
    """Steps overwrite blocks before these were copied."""
    patch.setattr(PagedStore, "wait_until_safe", lambda self, written: None)
    patch.setattr(TierCopier, "_move_down", delayed(TierCopier._move_down))


def impatient_samples(patch: pytest.MonkeyPatch) -> None:
    """Samples read blocks that have not arrived yet."""
    patch.setattr(PagedStore, "ready", lambda self, sequence: True)
    patch.setattr(TierCopier, "wait_for", lambda self, group, blocks: None)
    patch.setattr(TierCopier, "_load", delayed(TierCopier._load))
    patch.setattr(TierCopier, "_read", delayed(TierCopier._read))


def unsalted_blocks(patch: pytest.MonkeyPatch) -> None:
    """A salt is left out of the hashes."""
    patch.setattr("agentctx_engine.runtime.paged_store.ExtraKeys", lambda cache_salt: NO_KEYS)


def wrong_block(patch: pytest.MonkeyPatch) -> None:
    """A file is read into the block beside its own."""
    read = TierCopier._read
    patch.setattr(
        TierCopier, "_read",
        lambda self, r, earlier: read(self, r._replace(destination=(r.destination + 1) % 12), earlier),
    )  # fmt: skip


@pytest.mark.parametrize("mistake", [unsafe_steps, impatient_samples, unsalted_blocks, wrong_block])
def test_these_tests_notice(mistake: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = texts(3, 41)
    for prompt in prompts:
        uncached("llama", prompt)
    mistake(monkeypatch)
    with pytest.raises(AssertionError), engine_of(disk_dir=tmp_path, host_blocks=4) as engine:  # noqa: PT012
        for _ in range(2):
            for prompt in prompts:
                ask(engine, prompt)
        result = engine.generate(prompts[0], ANSWER, cache_salt="other")
        assert result.cached_tokens == 0
