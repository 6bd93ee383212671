"""Block pool and prefix cache against a naive reference: every answer and every order equal, after every step."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from agentctx_engine.memory import ExtraKeys, KVManager, KVSequence

from .naive_kv import NaiveKV

BLOCKS, BLOCK = 11, 2

# Few different tokens and stems, so that prefixes are shared, branch, and come back after their blocks were given away.
stems = st.sampled_from([(), (1, 2), (1, 2, 1, 2), (1, 2, 1, 2, 3, 3), (1, 2, 3, 3), (1, 1)])
tails = st.lists(st.integers(1, 2), min_size=1, max_size=5)
prompts = st.builds(lambda stem, tail: [*stem, *tail], stems, tails)
picks = st.integers(0, 1000)


@dataclass(eq=False)
class Both:
    """One sequence in the fast and in the naive manager."""

    fast: KVSequence
    naive: dict


class KVMachine(RuleBasedStateMachine):
    """Sequences are picked by number, so that every rule can run in nearly every state."""

    def __init__(self) -> None:
        super().__init__()
        self.fast = KVManager(BLOCKS, BLOCK)
        self.naive = NaiveKV(BLOCKS, BLOCK)
        self.running: list[Both] = []
        self.preempted: list[Both] = []

    def admit(self, both: Both, upto: int) -> bool:
        hit = self.fast.match(both.fast)
        assert hit.blocks[0] == self.naive.match(both.naive)
        match = self.fast.explain(both.fast, hit)
        assert match.hit_tokens == hit.num_tokens
        assert match.hit_tokens + sum(tokens for _, tokens in match.lost) == len(both.fast)
        admitted = self.fast.admit(both.fast, upto, hit)
        assert admitted == self.naive.admit(both.naive, upto)
        if admitted:
            self.running.append(both)
            event("hit" if hit.num_tokens else "no hit")
        return admitted

    def compute(self, both: Both, more: list[int]) -> None:
        """Reserve and compute the rest of the text and ``more`` tokens: chunked prefill and decode."""
        both.fast.append(more)
        both.naive["tokens"] += more
        upto = len(both.fast)
        reserved = self.fast.reserve(both.fast, upto)
        assert reserved == self.naive.reserve(both.naive, upto)
        if reserved:
            self.fast.commit(both.fast, upto)
            self.naive.commit(both.naive, upto)

    def stop(self, both: Both, *, preempt: bool = False) -> None:
        (self.fast.preempt if preempt else self.fast.free)(both.fast)
        self.naive.free(both.naive)
        self.running.remove(both)
        if preempt:
            self.preempted.append(both)

    @rule(
        tokens=prompts,
        salt=st.sampled_from([None, None, None, "tenant"]),
        part=st.sampled_from([1.0, 1.0, 0.4]),
        output=st.lists(st.integers(1, 2), max_size=4),
        stays=st.booleans(),
    )
    def serve(self, tokens: list[int], salt: str | None, part: float, output: list[int], stays: bool) -> None:
        """A request arrives, is computed in one or two steps, decodes a little, and ends unless it ``stays``."""
        both = Both(self.fast.open(tokens, ExtraKeys(cache_salt=salt)), self.naive.open(tokens, salt))
        upto = max(1, int(part * len(tokens)))
        if not self.admit(both, upto):
            if self.running:
                self.stop(self.running[-1], preempt=True)
            return
        self.compute(both, output)
        if not stays or len(self.running) > 3:
            self.stop(both)

    # One rule for all the rest: hypothesis leaves whole rules out of a run, which here would leave too little in.
    @rule(
        act=st.sampled_from(["resume", "compute", "fork", "fork", "stop", "preempt", "copies", "forget"]),
        pick=picks,
        more=st.lists(st.integers(1, 2), max_size=3),
    )
    def act(self, act: str, pick: int, more: list[int]) -> None:
        both = self.running[pick % len(self.running)] if self.running else None
        if act == "resume" and self.preempted:
            both = self.preempted.pop(pick % len(self.preempted))
            self.admit(both, len(both.fast))
        elif act == "copies":
            copies = [(copy.source, copy.destination) for copy in self.fast.take_copies()]
            assert copies == self.naive.take_copies()
        elif act == "forget" and pick % 4 == 0:
            self.fast.drop_cached()
            self.naive.drop_cached()
        elif act == "forget":
            assert self.fast.reset() == self.naive.reset()
        elif both is None:
            return
        elif act == "compute":
            self.compute(both, more)
        elif act == "fork" and len(self.running) < 5:
            child = Both(self.fast.fork(both.fast), self.naive.fork(both.naive))
            self.running.append(child)
            event("fork inside a block" if both.fast.num_computed_tokens % BLOCK else "fork at a block's end")
            # Samples of one prompt write right away, often before any copy ran.
            if pick % 4:
                self.compute(child, more)
            if pick % 3:
                self.compute(both, more[:1])
        elif act in ("stop", "preempt"):
            self.stop(both, preempt=act == "preempt")

    @invariant()
    def same_state(self) -> None:
        [pool] = self.fast.pools
        assert pool.free_order() == self.naive.queue
        references = self.naive.references()
        assert [pool.ref_count(block) for block in range(BLOCKS)] == [references[b] for b in range(BLOCKS)]
        assert pool.num_findable_hashes == len({prefix for _, prefix in self.naive.holds})
        for both in self.running:
            assert both.fast.tables[0].ids == both.naive["table"]
            assert both.fast.num_computed_tokens == both.naive["computed"]
        self.fast.check()


TestKVMachine = KVMachine.TestCase
TestKVMachine.settings = settings(
    max_examples=250,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
