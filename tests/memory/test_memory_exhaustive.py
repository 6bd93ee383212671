"""Every sequence of operations on a pool of 4 blocks of 2 tokens, up to the depth that a minute allows.

Breadth first; states that differ only in the numbers of blocks or in the order of sequences are one state. In each
state everything is checked that the random machines check too: equal to the naive reference, and contents as computed.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from agentctx_engine.memory import KVManager, KVSequence

from .naive_kv import NaiveKV
from .shadow_engine import ShadowEngine

BLOCKS, BLOCK, MOST_RUNNING = 4, 2, 3
BUDGET_S = 60.0
PROMPTS = ((1,), (1, 1, 1), (1, 1, 2), (2, 1, 1, 1, 1))
TOKENS = (1, 2)

Operation = tuple[str, int, int]  # what, which sequence, which prompt or token


@dataclass
class World:
    """A manager with the sequences that it runs, beside the naive reference and a memory that shows what is read."""

    engine: ShadowEngine = field(default_factory=lambda: ShadowEngine(KVManager(BLOCKS, BLOCK)))
    naive: NaiveKV = field(default_factory=lambda: NaiveKV(BLOCKS, BLOCK))
    running: list[tuple[KVSequence, dict]] = field(default_factory=list)

    def operations(self) -> Iterator[Operation]:
        running = range(len(self.running))
        if len(self.running) < MOST_RUNNING:
            yield from (("admit", 0, prompt) for prompt in range(len(PROMPTS)))
            yield from (("fork", seq, 0) for seq in running)
        yield from (("decode", seq, token) for seq in running for token in TOKENS)
        yield from (("free", seq, 0) for seq in running)
        yield ("reset", 0, 0)

    def apply(self, operation: Operation) -> None:
        what, which, value = operation
        kv = self.engine.kv
        if what == "admit":
            self.admit(list(PROMPTS[value]))
        elif what == "reset":
            assert kv.reset() == self.naive.reset()
        else:
            seq, plain = self.running[which]
            if what == "decode":
                self.decode(seq, plain, value)
            elif what == "fork":
                self.running.append((self.engine.fork(seq), self.naive.fork(plain)))
            elif what == "free":
                del self.running[which]
                self.engine.stop(seq)
                self.naive.free(plain)

    def admit(self, prompt: list[int]) -> None:
        kv = self.engine.kv
        seq, plain = kv.open(prompt), self.naive.open(prompt, None)
        hit = kv.match(seq)
        assert hit.blocks[0] == self.naive.match(plain)
        admitted = self.engine.admit(seq, hit, len(prompt))
        assert admitted == self.naive.admit(plain, len(prompt))
        if admitted:
            self.engine.step([(seq, len(prompt))], commit_first=False)
            self.naive.commit(plain, len(prompt))
            self.running.append((seq, plain))

    def decode(self, seq: KVSequence, plain: dict, token: int) -> None:
        """One token more; where no block is left, the token waits in the text."""
        seq.append([token])
        plain["tokens"].append(token)
        reserved = self.engine.kv.reserve(seq, len(seq))
        assert reserved == self.naive.reserve(plain, len(seq))
        if reserved:
            self.engine.step([(seq, len(seq))], commit_first=False)
            self.naive.take_copies()
            self.naive.commit(plain, len(seq))

    def check(self) -> None:
        self.engine.check()
        [pool] = self.engine.kv.pools
        assert pool.free_order() == self.naive.queue
        references = self.naive.references()
        assert [pool.ref_count(block) for block in range(BLOCKS)] == [references[b] for b in range(BLOCKS)]
        for seq, plain in self.running:
            assert seq.tables[0].ids == plain["table"]

    def key(self) -> object:
        """Equal for states that behave alike: blocks are named by where they stand, sequences by what they are."""
        order = sorted(
            range(len(self.running)),
            key=lambda i: (self.running[i][1]["tokens"], self.running[i][1]["computed"], i),
        )
        sequences = [self.running[i][1] for i in order]
        blocks = [*self.naive.queue, *(block for seq in sequences for block in seq["table"])]
        name = {block: number for number, block in enumerate(dict.fromkeys(blocks))}
        return (
            len(self.naive.queue),
            tuple((name[block], prefix) for block, prefix in self.naive.holds),
            tuple(
                (tuple(s["tokens"]), s["computed"], s["cached"], tuple(name[b] for b in s["table"]))
                for s in sequences
            ),
        )


def explore(budget_s: float) -> tuple[int, int, int]:
    """(states, transitions, depth): every state within ``depth`` operations was checked, and nothing failed."""
    start = World()
    start.check()
    seen = {start.key()}
    frontier = [pickle.dumps(start)]
    transitions = depth = 0
    end = time.process_time() + budget_s
    while frontier:
        reached: list[bytes] = []
        for number, state in enumerate(frontier):
            if time.process_time() > end:
                print(
                    f"(of the next depth, {number} of {len(frontier)} states were left through every operation)"
                )
                return len(seen), transitions, depth
            for operation in list(pickle.loads(state).operations()):
                world: World = pickle.loads(state)
                world.apply(operation)
                world.check()
                transitions += 1
                key = world.key()
                if key not in seen:
                    seen.add(key)
                    reached.append(pickle.dumps(world))
        frontier, depth = reached, depth + 1
    return len(seen), transitions, depth


@pytest.mark.slow
def test_every_reachable_state_is_sound(capsys: pytest.CaptureFixture[str]) -> None:
    states, transitions, depth = explore(BUDGET_S)
    with capsys.disabled():
        print(f"\nexhaustive search: {states} states, {transitions} transitions, depth {depth} complete")
    assert depth >= 5
    assert states > 5000
