"""Radix cache against a naive reference: every hit, every run and every count equal after every step, and every page's content."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import HealthCheck, event, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from agentctx_engine.memory.page_pool import PageIds, PagePool
from agentctx_engine.memory.prefix_cache import Match
from agentctx_engine.memory.radix_cache import RadixCache, RadixLease
from agentctx_engine.memory.token_bytes import TOKEN_BYTES, unpack

from .naive_radix import Held, NaiveRadix

# Few tokens and stems: prefixes are shared, branch inside runs, and come back after they were evicted.
stems = st.sampled_from([(), (1, 2), (1, 2, 1, 2), (1, 2, 1, 2, 3, 3), (1, 2, 3, 3), (1, 1, 1, 1, 1, 1)])
tails = st.lists(st.integers(1, 2), min_size=1, max_size=6)
prompts = st.builds(lambda stem, tail: (*stem, *tail), stems, tails)
outputs = st.lists(st.integers(1, 3), max_size=5).map(tuple)
spaces = st.sampled_from([(None, None), (None, "s"), ("a", None), ("s", None)])
ACTS = ["serve"] * 8 + ["extend", "extend", "checkpoint", "checkpoint", "release", "abort", "evict", "reset"]


@dataclass(eq=False)
class Both:
    fast: RadixLease
    naive: Held


class RadixMachine(RuleBasedStateMachine):
    @initialize(
        page=st.sampled_from([1, 1, 2, 3]),
        capacity=st.sampled_from([None, 12, 24, 48]),
        order=st.sampled_from(["lru", "lfu", "fifo", "priority", "slru"]),
        refresh=st.sampled_from(["used", "run"]),
    )
    def start(self, page, capacity, order, refresh) -> None:
        self.page = page
        self.fast = RadixCache(page, capacity_tokens=capacity, order=order, split_refresh=refresh)
        self.naive = NaiveRadix(page, capacity, order, refresh == "run")
        self.running: list[Both] = []
        self.content: dict[int, tuple[int, ...]] = {}  # what a request wrote into each page
        self.given_back: set[int] = set()
        if self.fast.pool is not None:
            self.follow(self.fast.pool)

    def follow(self, pool: PagePool) -> None:
        """Note every page that is given back: it may be taken again and filled anew within the same call."""
        give_back = pool.give_back

        def noted(pages: PageIds) -> None:
            self.given_back.update(pages.tolist())
            give_back(pages)

        pool.give_back = noted

    def write(self, lease: RadixLease) -> None:
        """The request computes what it holds: fill the pages that are its own."""
        tokens = tuple(unpack(bytes(lease.text)).tolist())
        for index in range(lease.tree_tokens // self.page, len(lease.pages)):
            self.content[int(lease.pages[index])] = tokens[index * self.page : (index + 1) * self.page]

    # One rule for everything: hypothesis leaves whole rules out of a run, which here would leave too little in.
    @rule(
        act=st.sampled_from(ACTS),
        prompt=prompts,
        space=spaces,
        priority=st.integers(0, 2),
        limit=st.sampled_from([None, None, None, None, None, 0, 3]),
        reserve=st.sampled_from([0, 0, 4]),
        output=outputs,
        pick=st.integers(0, 1000),
    )
    def step(self, act, prompt, space, priority, limit, reserve, output, pick) -> None:
        if act == "serve":
            self.serve(prompt, space, priority, limit, reserve, output, stays=pick % 2 == 0)
        else:
            self.act(act, pick, output or (1,))

    def serve(self, prompt, space, priority, limit, reserve, output, *, stays) -> None:
        """A request arrives, and ends at once unless it ``stays``."""
        foreseen = self.fast.match(prompt, extra_key=space[0], salt=space[1], limit=limit)
        held = self.naive.commit(prompt, space, priority, limit, reserve)
        try:
            lease = self.fast.commit(
                prompt,
                extra_key=space[0],
                salt=space[1],
                priority=priority,
                limit=limit,
                reserve_tokens=reserve,
            )
        except MemoryError:
            assert held is None
            event("refused")
            return
        assert held is not None
        self.check_match(lease.match, len(prompt), held.locked)
        assert lease.match == foreseen
        self.running.append(Both(lease, held))
        self.write(lease)
        if not stays or len(self.running) > 3:
            self.release(self.running[-1], output)

    def check_match(self, match: Match, num_tokens: int, hit: int) -> None:
        assert match.hit_tokens == hit
        assert match.hit_tokens + sum(tokens for _, tokens in match.lost) == num_tokens
        assert all(tokens > 0 for _, tokens in match.lost)
        event("hit" if hit else "no hit")
        for reason, _ in match.lost:
            event(reason.value)

    def act(self, act, pick, tokens) -> None:
        if act == "evict":
            gone = self.naive.evict(pick % 7)
            event("evicted by hand" if gone else "nothing to evict")
            before = self.fast.tree.num_tokens
            assert self.fast.evict(pick % 7) == before - self.fast.tree.num_tokens
        elif act == "reset" and pick % 4 == 0:
            done = not self.running
            assert self.fast.reset() == done
            if done:
                self.naive.runs.clear()
        elif not self.running:
            return
        else:
            both = self.running[pick % len(self.running)]
            if act == "extend":
                self.extend(both, tokens)
            elif act == "checkpoint":
                computed = len(both.naive.text) * (pick % 5) // 4
                self.naive.checkpoint(both.naive, computed)
                self.fast.checkpoint(both.fast, computed)
            elif act == "release":
                self.release(both, tokens)
            elif act == "abort":
                self.running.remove(both)
                self.naive.abort(both.naive)
                self.fast.abort(both.fast)

    def extend(self, both: Both, tokens) -> None:
        fits = self.naive.extend(both.naive, tokens)
        try:
            self.fast.extend(both.fast, tokens)
        except MemoryError:
            assert not fits
            event("no room to extend")
        else:
            assert fits
            self.write(both.fast)

    def release(self, both: Both, output) -> None:
        self.running.remove(both)
        known = self.known_pages(both.fast)
        self.given_back.clear()
        self.naive.release(both.naive, output)
        self.fast.release(both.fast, output)
        for node in self.fast.tree.nodes():
            if node.pages is not None:
                self.check_run(node, known)

    def known_pages(self, lease: RadixLease) -> set[int]:
        """Pages whose whole content is settled: all of the tree's, and the full ones of this request."""
        settled = [node.pages for node in self.fast.tree.nodes() if node.pages is not None]
        settled.append(lease.pages[: lease.num_tokens // self.page])
        return {int(page) for pages in settled for page in pages}

    def check_run(self, node, known: set[int]) -> None:
        """A settled page stands for what was written into it; any other was filled by the output just now."""
        tokens = tuple(unpack(node.key).tolist())
        for index, page in enumerate(node.pages.tolist()):
            wanted = tokens[index * self.page : (index + 1) * self.page]
            if page in known and page not in self.given_back:
                assert self.content[page] == wanted
            self.content[page] = wanted

    @invariant()
    def equal(self) -> None:
        if not hasattr(self, "fast"):
            return
        self.fast.check()
        tree = self.fast.tree
        runs = []
        for node in tree.nodes():
            text = tuple(unpack(node.prefix()).tolist())
            start = len(text) - len(node.key) // TOKEN_BYTES
            space = (node.namespace.extra_key, node.namespace.salt)
            runs.append((space, text, start, node.hits, node.priority))
        assert sorted(runs, key=repr) == self.naive.state()
        assert self.fast.evictable_tokens == self.naive.cached(locked=False)
        assert self.fast.protected_tokens == self.naive.cached(locked=True)
        if self.fast.pool is not None:
            assert self.fast.pool.num_free == self.naive.free_pages()

    @invariant()
    def leases_read_their_own_text(self) -> None:
        if not getattr(self, "running", None) or self.fast.pool is None:
            return
        for both in self.running:
            tokens = tuple(unpack(bytes(both.fast.text)).tolist())
            for index, page in enumerate(both.fast.pages.tolist()):
                assert self.content[page] == tokens[index * self.page : (index + 1) * self.page]


RadixMachine.TestCase.settings = settings(
    max_examples=200,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestRadixMachine = RadixMachine.TestCase
