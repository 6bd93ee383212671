"""The small parts of the memory manager by themselves: settings, values, pages, checkpoints, their errors and checks."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import numpy as np
import pytest

from agentctx_engine.memory import FirstFitAllocator, ReserveMaximum
from agentctx_engine.memory.contiguous import Region
from agentctx_engine.memory.disk_tier import DiskDelete, DiskTier
from agentctx_engine.memory.errors import IntegrityError
from agentctx_engine.memory.explain import HitFacts
from agentctx_engine.memory.kv_events import AllBlocksCleared, BlockRemoved, BlocksStored
from agentctx_engine.memory.page_pool import PagePool
from agentctx_engine.memory.skipped_blocks import WindowRetention
from agentctx_engine.memory.slot_cells import SavedCells, WindowCells
from agentctx_engine.memory.slot_memory import SavedState, SlotMemory
from agentctx_engine.memory.slot_prompt import (
    Checkpoint,
    CheckpointRules,
    PromptBatch,
    add_checkpoint,
    find_checkpoint,
)
from agentctx_engine.memory.slot_server import Chosen, SlotAnswer
from agentctx_engine.memory.slot_settings import ONE_SLOT, ModelMemory, ServerSettings
from agentctx_engine.memory.token_bytes import common_tokens, pack, unpack

STATE = SavedState(num_tokens=0, window=None, last_position=-1, num_bytes=0)


def checkpoint(num_tokens: int, task: int = 1, oldest: int = 0) -> Checkpoint:
    return Checkpoint(num_tokens, oldest, num_tokens - 1, task, STATE)


@pytest.mark.parametrize(
    "value",
    [
        Region(0, 4, 2),
        HitFacts(8, 4, 4, 4, 8, 8),
        BlocksStored((b"a",), None, (1, 2), 2),
        BlockRemoved(b"a"),
        AllBlocksCleared(),
        WindowRetention(),
        SavedCells(np.arange(3, dtype=np.int32)),
        STATE,
        checkpoint(4),
        PromptBatch(0, 4, True),
        ServerSettings(),
        ModelMemory(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_that_are_shared_can_not_change(value: Any) -> None:
    """Snapshots, events and settings are handed to several holders: none may change them under the others."""
    for field in fields(value):
        with pytest.raises(FrozenInstanceError):
            setattr(value, field.name, None)


# -- llama-server's settings ---------------------------------------------------------------------------------------------


def test_defaults_are_those_of_llama_server() -> None:
    settings = ServerSettings()
    assert (settings.n_slots, settings.kv_unified, settings.n_ctx) == (4, True, 4096)
    assert (settings.n_batch, settings.n_ubatch) == (2048, 512)
    assert (settings.cache_prompt, settings.cache_reuse, settings.slot_prompt_similarity) == (True, 0, 0.1)
    assert (settings.cache_ram_mib, settings.cache_idle_slots) == (8192, True)
    assert (settings.ctx_checkpoints, settings.checkpoint_min_step, settings.swa_full) == (32, 8192, False)
    model = ModelMemory()
    assert (model.window, model.recurrent, model.attention) == (0, False, True)
    assert (model.bytes_per_token, model.overhead_bytes) == (0, 0), "unknown sizes fill nothing"
    assert (model.window_bytes_per_token, model.checkpoint_bytes) == (0, 0)
    assert (ONE_SLOT.n_slots, ONE_SLOT.host_cache, ONE_SLOT.saves_idle_slots) == (1, False, False)


@pytest.mark.parametrize(
    ("changes", "slot", "total"),
    [
        ({"n_ctx": 4096}, 4096, 4096),
        ({"n_ctx": 4097}, 4352, 4352),
        ({"n_ctx": 1}, 256, 256),
        ({"n_ctx": 4096, "kv_unified": False}, 1024, 4096),
        ({"n_ctx": 4000, "kv_unified": False, "n_slots": 3}, 1536, 4608),
    ],
)
def test_contexts_are_rounded_as_the_server_rounds_them(
    changes: dict[str, Any], slot: int, total: int
) -> None:
    settings = ServerSettings(**changes)
    assert (settings.slot_ctx, settings.total_ctx) == (slot, total)


def test_windows_take_cells_of_their_own_unless_they_keep_everything() -> None:
    model = ModelMemory(window=512)
    assert ServerSettings().window_cells(model) == 4 * 512 + 512
    assert ServerSettings(kv_unified=False, n_ctx=16384).window_cells(model) == 512 + 512
    assert ServerSettings(n_ctx=1024).window_cells(model) == 1024, "never more than the context"
    assert ServerSettings(n_ubatch=300, n_slots=1).window_cells(model) == 1024, "whole 256s"
    full = ServerSettings(swa_full=True)
    assert (full.window_cells(model), full.window_of(model)) == (4096, 0)
    assert ServerSettings().window_of(model) == 512


def test_settings_that_can_not_be_meant() -> None:
    for name in ("n_slots", "n_ctx", "n_batch", "n_ubatch"):
        assert getattr(ServerSettings(**{name: 1}), name) == 1
        with pytest.raises(ValueError, match=f"{name} is 0; it must be at least 1"):
            ServerSettings(**{name: 0})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="window is -1"):
        ModelMemory(window=-1)
    with pytest.raises(ValueError, match="both sliding windows and recurrent layers"):
        ModelMemory(window=8, recurrent=True)
    assert WindowRetention(checkpoints=0, spacing=1) == replace(WindowRetention(), spacing=1)
    for wrong in ({"checkpoints": -1}, {"spacing": 0}):
        with pytest.raises(ValueError, match="must not be negative"):
            WindowRetention(**wrong)
    assert WindowRetention().spacing == 1024


# -- context checkpoints -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "new", "most", "left"),
    [
        ([100, 105, 200], checkpoint(300, task=2), 10, [100, 105, 200, 300]),
        ([100, 105, 200], checkpoint(300, task=2), 3, [100, 200, 300]),
        ([100, 110, 121], checkpoint(300, task=2), 3, [100, 121, 300]),
        ([100, 105, 200], checkpoint(300, task=1), 3, [105, 200, 300]),
        ([100, 200, 300], checkpoint(400, task=2), 3, [200, 300, 400]),
        ([100, 200, 300], checkpoint(400, task=2), 4, [100, 200, 300, 400]),
        ([100, 200], checkpoint(200, task=2), 10, [100, 200]),
        ([100], checkpoint(200, task=2), 1, [200]),
        ([], checkpoint(200), 2, [200]),
    ],
)
def test_a_full_list_of_checkpoints_gives_up_neighbours_then_the_oldest(
    held: list[int], new: Checkpoint, most: int, left: list[int]
) -> None:
    checkpoints = [checkpoint(tokens) for tokens in held]
    add_checkpoint(checkpoints, new, most=most, min_step=10)
    assert [one.num_tokens for one in checkpoints] == left
    assert checkpoints[-1] is new


def test_the_newest_checkpoint_that_serves_is_found() -> None:
    checkpoints = [checkpoint(100), checkpoint(200, oldest=50), checkpoint(300, oldest=150)]
    assert find_checkpoint(checkpoints, 299, 160) is checkpoints[2]
    assert find_checkpoint(checkpoints, 298, 160) is checkpoints[1], "it goes too far"
    assert find_checkpoint(checkpoints, 299, 150) is checkpoints[1], "it doesn't reach back far enough"
    assert find_checkpoint(checkpoints, 299, 50) is checkpoints[0], "one from the start always does"
    assert find_checkpoint(checkpoints, 98, 160) is None
    assert find_checkpoint([], 100, 100) is None


def batches(rules: CheckpointRules) -> list[tuple[int, int, bool]]:
    """All batches of a prompt, each of which takes the checkpoint that it asks for."""
    found: list[tuple[int, int, bool]] = []
    taken: list[Checkpoint] = []
    start = 0
    while start < rules.num_tokens:
        batch = rules.next_batch(start, taken)
        assert batch.start == start < batch.end <= rules.num_tokens
        if batch.checkpoint:
            taken.append(checkpoint(start))
        found.append((batch.start, batch.end, batch.checkpoint))
        start = batch.end
    return found


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (
            CheckpointRules(5000, 2048, 512, 32, 8192, frozenset({0})),
            [
                (0, 2048, True),
                (2048, 4096, False),
                (4096, 4484, False),
                (4484, 4996, True),
                (4996, 5000, True),
            ],
        ),
        (
            # However far the last checkpoint is: in the middle of a message none is taken.
            CheckpointRules(9000, 2048, 512, 32, 1000, frozenset({0})),
            [
                (0, 2048, True),
                (2048, 4096, False),
                (4096, 6144, False),
                (6144, 8192, False),
                (8192, 8484, False),
                (8484, 8996, True),
                (8996, 9000, True),
            ],
        ),
        (
            CheckpointRules(5000, 2048, 512, 0, 8192, frozenset({0})),
            [(0, 2048, False), (2048, 4096, False), (4096, 5000, False)],
        ),
        (
            # Each user message begins a batch of its own; far enough from the last checkpoint it takes one.
            CheckpointRules(1000, 2048, 16, 8, 100, frozenset({0, 50, 400, 700})),
            [
                (0, 50, True),
                (50, 400, False),
                (400, 700, True),
                (700, 980, True),
                (980, 996, True),
                (996, 1000, True),
            ],
        ),
    ],
)
def test_prompts_are_cut_where_checkpoints_will_be_wanted(
    rules: CheckpointRules, expected: list[tuple[int, int, bool]]
) -> None:
    assert batches(rules) == expected


# -- memory in pages and in one piece ----------------------------------------------------------------------------------------


def test_pages_are_taken_in_order_and_given_back_to_the_front() -> None:
    pool = PagePool(6)
    assert pool.take(3).tolist() == [0, 1, 2]
    assert pool.free_pages().tolist() == [3, 4, 5]
    pool.give_back(np.array([2, 0], dtype=np.int32))
    assert pool.free_pages().tolist() == [2, 0, 3, 4, 5]
    assert pool.take(0).tolist() == []
    pool.give_back(pool.take(0))
    assert pool.num_free == 5
    with pytest.raises(MemoryError, match="6 pages wanted, 5 of 6 free"):
        pool.take(6)
    with pytest.raises(RuntimeError, match="2 pages given back to a pool that misses 1"):
        pool.give_back(np.array([1, 0], dtype=np.int32))
    assert pool.num_free == 5, "nothing was taken or given"
    pool.give_back(np.array([1], dtype=np.int32))
    assert pool.take(6).tolist() == [1, 2, 0, 3, 4, 5]
    with pytest.raises(ValueError, match="num_pages is 0"):
        PagePool(0)


def test_regions_go_into_the_lowest_gap() -> None:
    pool = FirstFitAllocator(10)
    first, second, third = pool.allocate(3), pool.allocate(2), pool.allocate(4)
    assert (first, second, third) == (Region(0, 3, 3), Region(3, 2, 2), Region(5, 4, 4))
    assert second is not None
    pool.free(second)
    assert (pool.gaps, pool.num_free_slots, pool.num_reserved_slots) == ([2, 1], 3, 7)
    assert pool.allocate(3) is None, "three slots are free, but not in a row"
    assert pool.allocate(1, 0) == Region(3, 1, 0)
    assert (pool.num_tokens, pool.utilisation) == (7, 0.7)
    for slots, tokens in ((0, None), (2, 3), (2, -1)):
        with pytest.raises(ValueError, match="don't fit a region"):
            pool.allocate(slots, tokens)
    reserve = ReserveMaximum(10, 4)
    assert [reserve.admit(1), reserve.admit(2), reserve.admit(1)] == [Region(0, 4, 1), Region(4, 4, 2), None]


@pytest.mark.parametrize(
    ("regions", "problem"),
    [([Region(0, 4, 0), Region(3, 2, 0)], "overlap"), ([Region(8, 3, 0)], "leaves the pool")],
)
def test_the_check_of_regions_can_go_red(regions: list[Region], problem: str) -> None:
    pool = FirstFitAllocator(10)
    pool._regions = regions
    with pytest.raises(IntegrityError, match=problem):
        pool.check()


# -- packed tokens ---------------------------------------------------------------------------------------------------------


def test_tokens_are_packed_and_compared() -> None:
    ids = np.arange(3000, dtype=np.int32)
    packed = pack(ids)
    assert pack(ids.tolist()) == pack(ids.astype(np.int64)) == packed
    assert unpack(packed).tolist() == ids.tolist()
    for at in (0, 1, 255, 256, 257, 768, 2999):
        other = ids.copy()
        other[at] += 1
        assert common_tokens(packed, pack(other)) == at
    assert common_tokens(packed, packed) == 3000
    assert common_tokens(packed, packed[:40]) == 10
    assert common_tokens(packed, packed[400:], 400) == 2900
    assert common_tokens(packed, b"") == 0
    with pytest.raises(ValueError, match="must have one dimension, not 2"):
        pack(ids.reshape(2, -1))
    with pytest.raises(ValueError, match="do not fit int32"):
        pack(np.array([2**31]))
    with pytest.raises((OverflowError, ValueError)):
        pack([2**31])


# -- what a slot remembers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [ModelMemory(), ModelMemory(window=4), ModelMemory(recurrent=True)],
    ids=["full", "window", "recurrent"],
)
def test_an_empty_slot_holds_nothing(model: ModelMemory) -> None:
    memory = SlotMemory(ServerSettings(n_ctx=256), model)
    for slot in range(4):
        assert (memory.oldest(slot), memory.newest(slot), memory.held(slot)) == (-1, -1, 0)
        assert memory.free_tokens(slot) == 256
    memory.process(1, 0, 10)
    assert (memory.newest(1), memory.held(1), memory.free_tokens(0)) == (9, 10, 246)
    memory.decode(1, 10, 2)
    assert memory.newest(1) == 11
    memory.keep(1, 0)
    assert (memory.oldest(1), memory.newest(1), memory.held(1)) == (-1, -1, 0)
    memory.check()


def test_windows_of_slots_apart_and_together() -> None:
    for unified in (True, False):
        memory = SlotMemory(ServerSettings(n_ctx=4096, kv_unified=unified), ModelMemory(window=8))
        memory.process(0, 0, 20)
        memory.process(3, 0, 5)
        copy = memory.copy()
        memory.keep(0, 15)
        assert (memory.newest(0), memory.newest(3), copy.newest(0)) == (14, 4, 19)
        assert memory.free_tokens(0) == (4096 - 20 if unified else 1024 - 15)
        memory.check()


def test_positions_are_removed_up_to_an_end() -> None:
    cells = WindowCells(8, 8, 2)
    cells.place(1, np.arange(6, dtype=np.int32))
    cells.remove(1, 2, 4)
    assert cells.save(1).positions.tolist() == [0, 1, 4, 5]
    cells.shift(1, 4, 6, -2)
    assert cells.save(1).positions.tolist() == [0, 1, 2, 3]
    assert (cells.oldest(1), cells.newest(1), cells.oldest(0), cells.newest(0)) == (0, 3, -1, -1)
    cells.check()
    cells.remove(1, 3)
    assert (cells.oldest(1), cells.newest(1)) == (0, 2)


# -- files ---------------------------------------------------------------------------------------------------------------------


def test_a_file_that_is_damaged_is_forgotten_once() -> None:
    disk = DiskTier(4, 1)
    for digest in (b"a", b"b"):
        disk.store(digest, 0, 7, on_device=True)
    assert len(disk.take()[0]) == 2
    disk.failed(b"c", 0)
    assert (disk.pool.lookup(b"a", 0) is None, disk.counters.failed_blocks) == (False, 0)
    disk.failed(b"a", 0)
    disk.failed(b"a", 0)
    assert (disk.pool.lookup(b"a", 0), disk.counters.failed_blocks) == (None, 1)
    assert disk.pool.lookup(b"b", 0) is not None
    # What was written under its name meanwhile came from where it should have been.
    assert disk.take()[0] == [DiskDelete(b"a", 0)]
    disk.check()


def test_an_answer_tells_what_was_computed() -> None:
    answer = SlotAnswer(0, Chosen.LEAST_RECENT, num_tokens=10, common=6, usable=6, cache_n=6)
    assert (answer.prompt_n, answer.over) == (4, False)
    assert (replace(answer, refused=True).prompt_n, replace(answer, refused=True).over) == (0, True)
    assert replace(answer, num_tokens=0, cache_n=0).over
