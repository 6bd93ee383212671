"""Whatever the two threads take their time with: after any moves, memory and files hold what doing them in order gives."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentctx_engine.memory.disk_tier import DiskDelete, DiskRead, DiskWrite
from agentctx_engine.memory.host_tier import BlockCopy, Transfers
from agentctx_engine.runtime.block_directory import BlockDirectory
from agentctx_engine.runtime.tiers import TierCopier

BLOCKS, HOST, GROUPS = 4, 3, 2
SHAPE = (2, BLOCKS, 4, 1, 2)  # keys and values, blocks, tokens, heads, size of a head
LAYERS = (2, 1)  # of each group
DIGESTS = [bytes([number]) * 32 for number in range(3)]


@dataclass
class Expected:
    """What each place holds, as one number: the device's blocks by group, the host's with their group, and the files."""

    device: dict[tuple[int, int], float]
    host: dict[int, tuple[int, float]] = field(default_factory=dict)
    files: dict[tuple[bytes, int], float] = field(default_factory=dict)

    def move(self, transfers: Transfers) -> None:
        """In the order that ``Transfers`` names."""
        for change in transfers.disk_changes:
            key = (change.digest, change.group)
            if isinstance(change, DiskDelete):
                self.files.pop(key, None)
            elif change.on_device:
                self.files[key] = self.device[change.group, change.source]
            else:
                self.files[key] = self.host[change.source][1]
        for copy in transfers.offloads:
            self.host[copy.destination] = (copy.group, self.device[copy.group, copy.source])
        for copy in transfers.loads:
            self.device[copy.group, copy.destination] = self.host[copy.source][1]
        for read in transfers.disk_reads:
            if (read.digest, read.group) in self.files:
                self.device[read.group, read.destination] = self.files[read.digest, read.group]
        found = [self.device[copy.group, copy.source] for copy in transfers.copies]
        for copy, value in zip(transfers.copies, found, strict=True):
            self.device[copy.group, copy.destination] = value


@st.composite
def moves(draw: st.DrawFn, now: Expected) -> Transfers:
    """What may be asked for at once: within each list no two have one target, and no copy's source is another's target."""
    group = draw(st.integers(0, GROUPS - 1))
    block = st.integers(0, BLOCKS - 1)
    found = Transfers([], [], [])
    for digest in draw(st.lists(st.sampled_from(DIGESTS), unique=True, max_size=2)):
        kind = draw(st.sampled_from(["delete", "device", "host"]))
        of_group = [number for number, (owner, _) in now.host.items() if owner == group]
        if kind == "delete":
            found.disk_changes.append(DiskDelete(digest, group))
        elif kind == "device":
            found.disk_changes.append(DiskWrite(digest, group, draw(block), True))
        elif of_group:
            found.disk_changes.append(DiskWrite(digest, group, draw(st.sampled_from(of_group)), False))
    for target in draw(st.lists(st.integers(0, HOST - 1), unique=True, max_size=2)):
        found.offloads.append(BlockCopy(draw(block), target, group))
    after = {**now.host, **{copy.destination: (group, 0.0) for copy in found.offloads}}
    of_group = [number for number, (owner, _) in after.items() if owner == group]
    targets = draw(st.lists(block, unique=True, max_size=3))
    for target in targets:
        if of_group and draw(st.booleans()):
            found.loads.append(BlockCopy(draw(st.sampled_from(of_group)), target, group))
        else:
            found.disk_reads.append(DiskRead(draw(st.sampled_from(DIGESTS)), group, target))
    target, source = draw(st.lists(block, unique=True, min_size=2, max_size=2))
    if draw(st.booleans()):
        found.copies.append(BlockCopy(source, target, group))
    return found


def directory_in(path: str | Path) -> BlockDirectory:
    shapes = {group: (layers, 2, *SHAPE[2:]) for group, layers in enumerate(LAYERS)}
    return BlockDirectory(Path(path), {"model": "none"}, shapes, torch.float32)


def new_caches() -> list[list[torch.Tensor]]:
    """Block b of group g holds 10 g + b."""
    caches = [[torch.zeros(SHAPE) for _ in range(layers)] for layers in LAYERS]
    for group, layers in enumerate(caches):
        for layer in layers:
            for block in range(BLOCKS):
                layer[:, block] = 10 * group + block
    return caches


def value_of(tensor: torch.Tensor) -> float:
    """The one number that a block consists of."""
    [value] = set(tensor.flatten().tolist())
    return float(value)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_what_is_moved_is_what_moving_in_order_gives(data: st.DataObject) -> None:
    with TemporaryDirectory() as path:
        caches, directory = new_caches(), directory_in(path)
        copier = TierCopier(caches, HOST, directory)
        now = Expected({(g, b): 10.0 * g + b for g in range(GROUPS) for b in range(BLOCKS)})
        for step in range(data.draw(st.integers(1, 6))):
            slow = data.draw(st.sampled_from([None, copier._memory, copier._files]))
            if slow is not None:
                slow.submit(time.sleep, 0.003)
            transfers = data.draw(moves(now))
            copier.start(transfers)
            now.move(transfers)
            if data.draw(st.booleans()):  # a step writes
                group, block = data.draw(st.integers(0, GROUPS - 1)), data.draw(st.integers(0, BLOCKS - 1))
                copier.wait_until_safe()
                copier.wait_for(group, [block])
                now.device[group, block] = 100.0 + step
                for layer in caches[group]:
                    layer[:, block] = 100.0 + step
        copier.close()
        for (group, block), value in now.device.items():
            assert {value_of(layer[:, block]) for layer in caches[group]} == {value}
        for block, (group, value) in now.host.items():
            assert value_of(copier._host[block, : LAYERS[group]]) == value
        assert {key: value_of(directory.read(*key)) for key in directory.files()} == now.files


def held_up(copier: TierCopier) -> Event:
    """Copying memory begins with the event, at the latest after some seconds."""
    go_on = Event()
    copier._memory.submit(go_on.wait, 5)
    return go_on


@pytest.mark.parametrize("kind", ["offload", "disk", "copy"])
def test_a_file_is_read_into_a_block_when_its_old_contents_are_safe(kind: str, tmp_path: Path) -> None:
    """Block 1 goes somewhere and is given to a file's contents at once; copying memory takes its time."""
    caches, directory = new_caches(), directory_in(tmp_path)
    directory.write(DIGESTS[0], 0, torch.full((2, 2, *SHAPE[2:]), 50.0))
    copier = TierCopier(caches, HOST, directory)
    go_on = held_up(copier)
    asked: dict[str, dict[str, Any]] = {
        "offload": {"offloads": [BlockCopy(1, 0, 0)]},
        "disk": {"disk_changes": [DiskWrite(DIGESTS[1], 0, 1, True)]},
        "copy": {"copies": [BlockCopy(1, 2, 0)]},
    }
    nothing: dict[str, Any] = {"offloads": [], "loads": [], "copies": []}
    copier.start(Transfers(**{**nothing, **asked[kind]}))
    copier.start(Transfers(**nothing, disk_reads=[DiskRead(DIGESTS[0], 0, 1)]))
    time.sleep(0.05)
    assert value_of(caches[0][0][:, 1]) == 1.0
    go_on.set()
    copier.close()
    moved: dict[str, Callable[[], torch.Tensor]] = {
        "offload": lambda: copier._host[0],
        "disk": lambda: directory.read(DIGESTS[1], 0),
        "copy": lambda: caches[0][0][:, 2],
    }
    assert value_of(moved[kind]()) == 1.0
    assert value_of(caches[0][0][:, 1]) == 50.0


def test_a_sample_waits_for_the_copy_of_a_block_that_is_on_its_way() -> None:
    caches = new_caches()
    copier = TierCopier(caches, HOST)
    copier._host[:] = 50.0
    go_on = held_up(copier)
    copier.start(Transfers(offloads=[], loads=[BlockCopy(0, 1, 0)], copies=[BlockCopy(1, 2, 0)]))
    assert copier.is_arriving(0, [2])
    go_on.set()
    copier.wait_for(0, [2])
    assert not copier.is_arriving(0, [2])
    assert value_of(caches[0][1][:, 2]) == 50.0
    copier.close()
