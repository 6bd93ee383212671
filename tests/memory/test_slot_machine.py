"""Slots and window cells against naive references: every answer and every state equal, after every step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agentctx_engine.memory.slot_cache import SlotCache
from agentctx_engine.memory.slot_cells import WindowCells
from agentctx_engine.memory.slot_settings import ModelMemory, ServerSettings
from agentctx_engine.memory.token_bytes import unpack

from .naive_slots import NaiveRing, NaiveSlots

MACHINE = settings(
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@dataclass(frozen=True)
class TinyServer(ServerSettings):
    """A server whose rings are small enough to go round in a test. ``ring``: cells beyond the server's least."""

    ring: int = 4

    @property
    def slot_ctx(self) -> int:
        return self.n_ctx if self.kv_unified else self.n_ctx // self.n_slots

    @property
    def total_ctx(self) -> int:
        return self.n_ctx

    def window_cells(self, model: ModelMemory) -> int:
        if self.swa_full:
            return self.slot_ctx
        return model.window * (self.n_slots if self.kv_unified else 1) + self.n_ubatch + self.ring


SERVERS = st.builds(
    TinyServer,
    n_slots=st.sampled_from([1, 2, 3]),
    kv_unified=st.booleans(),
    n_ctx=st.sampled_from([96, 144]),
    n_batch=st.sampled_from([8, 64]),
    n_ubatch=st.sampled_from([4, 8]),
    slot_prompt_similarity=st.sampled_from([0.1, 0.1, 0.0, 0.5]),
    cache_ram_mib=st.sampled_from([8192, 8192, 0, 1, -1]),
    cache_idle_slots=st.booleans(),
    ctx_checkpoints=st.sampled_from([32, 3, 1, 0]),
    checkpoint_min_step=st.sampled_from([8192, 6]),
    swa_full=st.sampled_from([False, False, False, True]),
    ring=st.sampled_from([0, 3, 9]),
)
# Tokens so large that about a hundred of them fill a MiB.
SIZES = {
    "bytes_per_token": 10_000,
    "window_bytes_per_token": 3_000,
    "checkpoint_bytes": 5_000,
    "overhead_bytes": 100,
}
MODELS = st.sampled_from(
    [
        ModelMemory(bytes_per_token=10_000, overhead_bytes=100),
        ModelMemory(window=6, **SIZES),
        ModelMemory(window=3, **SIZES),
        ModelMemory(recurrent=True, bytes_per_token=10_000, checkpoint_bytes=5_000),
    ]
)


def same_cells(fast: WindowCells, naive: NaiveRing) -> None:
    cells = zip(fast._position.tolist(), fast._sequence.tolist(), strict=True)
    assert [None if owner < 0 else (position, owner) for position, owner in cells] == naive.cells
    assert fast._head == naive.head


class SlotMachine(RuleBasedStateMachine):
    @initialize(server=SERVERS, model=MODELS)
    def start(self, server, model) -> None:
        if server.kv_unified is False and server.n_ctx // server.n_slots < 30:
            server = TinyServer(n_slots=1, kv_unified=False, n_ctx=96)
        self.fast = SlotCache(server, model)
        self.naive = NaiveSlots(server, model)
        self.texts: list[list[int]] = [[1, 2, 3, 4]]

    @rule(
        base=st.integers(0, 1000),
        cut=st.floats(0, 1),
        more=st.lists(st.integers(1, 3), max_size=20),
        output=st.lists(st.integers(4, 5), max_size=12),
        id_slot=st.sampled_from([None, None, None, None, 0]),
        cache_prompt=st.sampled_from([None, None, None, None, False]),
        users=st.lists(st.floats(0, 1), max_size=3),
    )
    def serve(self, base, cut, more, output, id_slot, cache_prompt, users) -> None:
        known = self.texts[base % len(self.texts)]
        prompt = known[: int(cut * (len(known) + 1))] + more or [1]
        starts = {int(user * len(prompt)) for user in users} - {len(prompt)}
        options = {"id_slot": id_slot, "cache_prompt": cache_prompt, "user_starts": starts}
        foreseen = self.fast.match(prompt, **options)
        lease = self.fast.serve(prompt, output, **options)
        slot, cached = self.naive.serve(prompt, output, id_slot, cache_prompt is not False, starts)
        assert lease.answer.slot == slot
        assert lease.answer.refused == (cached < 0)
        assert lease.answer.cache_n == max(0, cached)
        assert lease.match == foreseen
        assert lease.match.hit_tokens + sum(tokens for _, tokens in lease.match.lost) == len(prompt)
        assert all(tokens > 0 for _, tokens in lease.match.lost)
        event(lease.answer.chosen.value)
        for reason, _ in lease.match.lost:
            event(reason.value)
        if lease.answer.from_host:
            event("from the host cache")
        if lease.answer.checkpoint is not None:
            event("checkpoint restored")
        self.texts = [*self.texts[-5:], prompt + output]

    @invariant()
    def equal(self) -> None:
        if not hasattr(self, "fast"):
            return
        self.fast.check()
        server = self.fast.server
        for index, (slot, other) in enumerate(zip(server.slots, self.naive.slots, strict=True)):
            assert unpack(slot.prompt.text).tolist() == other["tokens"]
            mine = [(c.num_tokens, c.oldest, c.newest) for c in slot.prompt.checkpoints]
            assert mine == [(c["n"], c["oldest"], c["newest"]) for c in other["ckpts"]]
            assert server.memory.oldest(index) == self.naive.oldest(index)
        for window, ring in zip(server.memory._windows, self.naive.rings, strict=True):
            same_cells(window, ring)
        host = server.host.entries if server.host is not None else []
        assert [unpack(entry.prompt.text).tolist() for entry in host] == [
            e["tokens"] for e in self.naive.host
        ]


SlotMachine.TestCase.settings = MACHINE
TestSlotMachine = SlotMachine.TestCase


class CellMachine(RuleBasedStateMachine):
    @initialize(window=st.integers(1, 5), sequences=st.integers(1, 3), spare=st.integers(0, 8))
    def start(self, window, sequences, spare) -> None:
        self.most = 6  # placed at once
        size = window * sequences + self.most + spare
        self.fast = WindowCells(size, window, sequences)
        self.naive = NaiveRing(size, window)
        self.sequences = sequences
        self.saved = []

    @rule(
        act=st.sampled_from(
            ["place", "place", "place", "decode", "decode", "remove", "save", "load", "copy"]
        ),
        pick=st.integers(0, 1000),
        count=st.integers(1, 6),
    )
    def step(self, act, pick, count) -> None:
        sequence = pick % self.sequences
        first = self.naive.newest(sequence) + 1
        if act == "place":
            self.fast.place(sequence, np.arange(first, first + count, dtype=np.int32))
            self.naive.place(sequence, list(range(first, first + count)))
        elif act == "decode":
            self.fast.decode(sequence, first, 3 * count)
            for position in range(first, first + 3 * count):
                self.naive.place(sequence, [position])
        elif act == "remove":
            self.fast.remove(sequence, max(0, first - count))
            self.naive.remove(sequence, max(0, first - count))
        elif act == "save":
            copy = self.fast.save(sequence)
            assert copy.positions.tolist() == self.naive.save(sequence)
            self.saved.append(copy)
        elif act == "load" and self.saved:
            copy = self.saved[pick % len(self.saved)]
            self.fast.load(sequence, copy)
            self.naive.load(sequence, copy.positions.tolist())
        elif act == "copy":
            self.fast = self.fast.copy()

    @invariant()
    def equal(self) -> None:
        if not hasattr(self, "fast"):
            return
        self.fast.check()
        same_cells(self.fast, self.naive)
        for sequence in range(self.sequences):
            assert self.fast.oldest(sequence) == self.naive.oldest(sequence)
            assert self.fast.newest(sequence) == self.naive.newest(sequence)


CellMachine.TestCase.settings = MACHINE
TestCellMachine = CellMachine.TestCase


def test_cells_that_are_all_in_use_are_refused() -> None:
    cells = WindowCells(8, 4, 2)
    cells.place(0, np.arange(4, dtype=np.int32))
    cells.place(1, np.arange(4, dtype=np.int32))
    with pytest.raises(MemoryError, match="3 window cells wanted, 2 of 8 usable"):
        cells.place(0, np.arange(4, 7, dtype=np.int32))
