"""Whatever is reused is what would have been computed: every kind of manager, driven at random, read slot by slot."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agentctx_engine.memory import (
    NO_KEYS,
    Adapter,
    ExtraKeys,
    FullAttention,
    ImageSpan,
    KVManager,
    KVSequence,
    SlidingWindow,
    WindowRetention,
)

from .shadow_engine import ShadowEngine

FULL = FullAttention()

# Few stems and tokens, so that prefixes are shared, branch, and come back after their blocks were given away.
stems = st.sampled_from(
    [(1, 2, 3, 4), (1, 2, 3, 4, 5, 6), (1, 2, 3, 4, 5, 6, 7, 8), (1, 2, 3, 3), (5, 5, 5, 5, 5, 5)]
)
tails = st.lists(st.integers(1, 2), min_size=1, max_size=6)
prompts = st.builds(lambda stem, tail: [*stem, *tail], stems, tails)
images = st.sampled_from(
    [(), (ImageSpan("cat", 1, 2),), (ImageSpan("dog", 1, 2),), (ImageSpan("cat", 2, 9),)]
)
rare_keys = st.builds(
    ExtraKeys,
    cache_salt=st.sampled_from([None, "a"]),
    adapter=st.sampled_from([None, Adapter("a")]),
    images=images,
)
extra_keys = st.one_of(st.just(NO_KEYS), st.just(NO_KEYS), st.just(NO_KEYS), rare_keys)
picks = st.integers(0, 1000)


class ContentsMachine(RuleBasedStateMachine):
    """Sequences are picked by number, so that every rule can run in nearly every state."""

    build: Callable[[], KVManager]

    def __init__(self) -> None:
        super().__init__()
        self.kv = type(self).build()
        self.engine = ShadowEngine(self.kv)
        self.preempted: list[KVSequence] = []

    def running(self, pick: int) -> KVSequence | None:
        running = self.engine.running
        return running[pick % len(running)] if running else None

    def admit(self, seq: KVSequence, chunk: int, *, first: bool) -> bool:
        hit = self.kv.match(seq)
        match = self.kv.explain(seq, hit)
        assert match.hit_tokens == hit.num_tokens
        assert match.hit_tokens + sum(tokens for _, tokens in match.lost) == len(seq)
        assert all(tokens > 0 for _, tokens in match.lost)
        upto = min(len(seq), hit.num_tokens + chunk)
        if not self.engine.admit(seq, hit, upto):
            return False
        self.engine.step([(seq, upto)], commit_first=first)
        return True

    def compute(self, seq: KVSequence, *, first: bool) -> None:
        if self.kv.reserve(seq, len(seq)):
            self.engine.step([(seq, len(seq))], commit_first=first)

    def make_room(self) -> None:
        """What a scheduler does when nothing fits: the newest sequence gives way."""
        if self.engine.running:
            self.preempted.append(self.engine.running[-1])
            self.engine.stop(self.engine.running[-1], preempt=True)

    @rule(
        tokens=prompts,
        keys=extra_keys,
        reads=st.sampled_from([True] * 9 + [False]),
        chunk=st.sampled_from([99, 99, 3]),
        output=st.lists(st.integers(1, 2), max_size=5),
        stays=st.booleans(),
        first=st.booleans(),
    )
    def serve(
        self,
        tokens: list[int],
        keys: ExtraKeys,
        reads: bool,
        chunk: int,
        output: list[int],
        stays: bool,
        first: bool,
    ) -> None:
        """A request arrives, is computed in one or two steps, decodes a little, and ends unless it ``stays``."""
        seq = self.kv.open(tokens, keys, read_cache=reads)
        single = keys.single_blocks(self.kv.block_size, len(tokens))
        fresh = self.kv.hasher.chain(tokens, self.kv.block_size, every=keys.every_block(), single=single)
        assert seq.digests == fresh, "remembered hashes differ from fresh ones"
        if not self.admit(seq, chunk, first=first):
            self.make_room()
            return
        seq.append(output)
        self.compute(seq, first=first)
        if not stays or len(self.engine.running) > 3:
            self.engine.stop(seq)

    # One rule for all the rest: hypothesis leaves whole rules out of a run, which here would leave too little in.
    @rule(
        act=st.sampled_from(["resume", "extend", "decode", "fork", "fork", "stop", "preempt", "forget"]),
        pick=picks,
        more=st.lists(st.integers(1, 2), min_size=2, max_size=4),
        first=st.booleans(),
    )
    def act(self, act: str, pick: int, more: list[int], first: bool) -> None:
        seq = self.running(pick)
        if act == "resume" and self.preempted:
            self.admit(self.preempted.pop(pick % len(self.preempted)), 99, first=first)
        elif act == "forget" and pick % 8 == 0:
            self.kv.drop_cached()
        elif act == "forget" and pick % 8 == 1:
            idle = not self.engine.running
            assert self.kv.reset() == idle
        elif seq is None:
            return
        elif act == "extend":
            seq.append(more)
            self.compute(seq, first=first)
        elif act == "decode":
            self.decode_all(more)
        elif act == "fork" and len(self.engine.running) < 5:
            self.engine.fork(seq)
            if pick % 3:
                self.decode_all(more)
        elif act == "stop":
            self.engine.stop(seq)
        elif act == "preempt":
            self.preempted.append(seq)
            self.engine.stop(seq, preempt=True)

    def decode_all(self, tokens: list[int]) -> None:
        """All running sequences write in one step, siblings possibly into what was one block."""
        work = []
        for number, seq in enumerate(self.engine.running):
            seq.append([tokens[number % len(tokens)]])
            if self.kv.reserve(seq, len(seq)):
                work.append((seq, len(seq)))
        self.engine.step(work, commit_first=True)

    @invariant()
    def contents_are_right(self) -> None:
        self.engine.check()


def machine(build: Callable[[], KVManager]) -> type:
    case = type("Machine", (ContentsMachine,), {"build": staticmethod(build)}).TestCase
    case.settings = settings(
        max_examples=40,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    return case


TestFullAttention = machine(lambda: KVManager(10, 2))
TestFastHash = machine(lambda: KVManager(10, 2, hashing="fast"))
TestTokenGranular = machine(lambda: KVManager(10, 4, token_granular=True))
TestHostTier = machine(lambda: KVManager(8, 2, host_blocks=5))
TestHostTierTokenGranular = machine(lambda: KVManager(6, 4, host_blocks=4, token_granular=True))
TestWindow = machine(lambda: KVManager(11, 2, groups=[SlidingWindow(4)]))
TestHybridSharedPool = machine(lambda: KVManager(21, 2, groups=[FULL, SlidingWindow(5)]))
TestHybridPoolEach = machine(
    lambda: KVManager([10, 9, 9], 2, groups=[FULL, SlidingWindow(3), SlidingWindow(6)])
)
TestHybridHostTier = machine(lambda: KVManager(17, 2, groups=[FULL, SlidingWindow(5)], host_blocks=6))
TestDiskTier = machine(lambda: KVManager(8, 2, host_blocks=2, disk_blocks=6))
TestDiskTierTokenGranular = machine(
    lambda: KVManager(6, 4, host_blocks=2, disk_blocks=5, token_granular=True)
)
TestHybridDiskTier = machine(
    lambda: KVManager([10, 9], 2, groups=[FULL, SlidingWindow(5)], host_blocks=2, disk_blocks=9)
)
TestWindowAlone = machine(
    lambda: KVManager([10, 9], 2, groups=[FULL, SlidingWindow(5)], window_retention=WindowRetention())
)
TestBranchPoints = machine(
    lambda: KVManager(
        [10, 9, 9],
        2,
        groups=[FULL, SlidingWindow(3), SlidingWindow(6)],
        window_retention=WindowRetention(2, 4),
        host_blocks=4,
    )
)
TestTwoBlockSizes = machine(
    lambda: KVManager(24, groups=[FullAttention(block_size=4), FullAttention(block_size=2)])
)
TestCoarseWindow = machine(lambda: KVManager(24, groups=[FullAttention(2), SlidingWindow(5, block_size=4)]))
TestGrowable = machine(lambda: KVManager(4, 2, growable=True))
TestCachingOff = machine(lambda: KVManager(10, 2, caching=False))
