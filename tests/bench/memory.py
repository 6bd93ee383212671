"""What the memory manager costs: one row per claim, each beside a baseline that is measured in the same run.

    python tests/bench/memory.py            # the table, at full size (about 2 GB, half a minute)
    python tests/bench/memory.py --small    # as the tests run it

A row is a function that takes a ``Scale`` and returns a ``Row``; ``ROWS`` lists them. The claim is the ratio to the baseline,
so that it holds on a slow or busy machine too. Milliseconds are of this run: the minimum of interleaved repetitions.
Block 16 and SHA-256 throughout. Anchors are measurements of other engines, in Python, on a quiet core of the same kind.
"""

from __future__ import annotations

import gc
import hashlib
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from time import perf_counter

import numpy as np
import numpy.typing as npt

from agentctx_engine.memory import BlockPool, KVManager, KVSequence

Int32Array = npt.NDArray[np.int32]

BLOCK = 16
PROMPT = 100_000
TURN = 1_000
SMALL_POOL, LARGE_POOL = 2**10, 2**20
MOST_ROUNDS = 10_000
AT_ONCE = 16  # blocks of one allocation
Chains = list[list[bytes]]


@dataclass(frozen=True)
class Scale:
    """How much of the full size a run uses."""

    conversations: int
    repetitions: int


FULL = Scale(conversations=1_000, repetitions=40)
SMALL = Scale(conversations=60, repetitions=20)


@dataclass(frozen=True)
class Row:
    """``seconds`` must be at most ``most_ratio`` times ``baseline_seconds``."""

    name: str
    seconds: float
    baseline: str
    baseline_seconds: float
    most_ratio: float
    goal: str  # on a quiet core
    anchors: str

    @property
    def ratio(self) -> float:
        return self.seconds / self.baseline_seconds


def timed(action: Callable[[], object]) -> float:
    start = perf_counter()
    action()
    return perf_counter() - start


def interleaved(repetitions: int, *actions: Callable[[], float]) -> list[float]:
    """Minimum of each action's own timing, taken in turns so that a busy spell meets all alike."""
    best = [float("inf")] * len(actions)
    gc.collect()
    gc.disable()
    try:
        for _ in range(repetitions):
            best = [min(seconds, action()) for seconds, action in zip(best, actions, strict=True)]
    finally:
        gc.enable()
    return best


def medians(repetitions: int, *actions: Callable[[], float]) -> list[float]:
    """Median of each action's own timing, taken in turns: where no two repetitions touch the same memory."""
    gc.collect()
    gc.disable()
    try:
        rounds = [[action() for action in actions] for _ in range(repetitions)]
    finally:
        gc.enable()
    return [statistics.median(spent) for spent in zip(*rounds, strict=True)]


def random_tokens(count: int, seed: int) -> Int32Array:
    return np.random.default_rng(seed).integers(0, 50_000, count, dtype=np.int32)


def plain_chain(tokens: Int32Array) -> list[bytes]:
    """The floor: a SHA-256 chain over packed int32 in as few lines of Python as it takes. No lookup, no object."""
    data = tokens.astype(">i4").tobytes()
    sha256, digest = hashlib.sha256, hashlib.sha256(b"NONE").digest()
    digests = []
    for start in range(0, len(data) - 4 * BLOCK + 1, 4 * BLOCK):
        digest = sha256(digest + data[start : start + 4 * BLOCK]).digest()
        digests.append(digest)
    return digests


FLOOR = f"plain SHA-256 chain over {PROMPT:,} tokens"


def serve(kv: KVManager, tokens: Int32Array) -> KVSequence:
    seq = kv.open(tokens)
    assert kv.admit(seq, len(seq))
    kv.commit(seq, len(seq))
    kv.free(seq)
    return seq


def cold_prompt(scale: Scale) -> Row:
    """Hash every block of an unknown prompt and look it up."""
    tokens, kv = random_tokens(PROMPT, 1), KVManager(2 * PROMPT // BLOCK)
    serve(kv, random_tokens(PROMPT, 2))

    def ours() -> float:
        return timed(lambda: kv.match(kv.open(tokens)))

    seconds, floor = interleaved(scale.repetitions, ours, lambda: timed(lambda: plain_chain(tokens)))
    assert len(kv.open(tokens).digests) == PROMPT // BLOCK
    return Row(
        "hash + lookup, cold 100k prompt", seconds, FLOOR, floor, 1.4, "≤ 4 ms, ratio ≤ 1.4",
        "vLLM 0.33 16 ms; nano-vllm 36 ms",
    )  # fmt: skip


def cold_prompt_fast_hash(scale: Scale) -> Row:
    """The same with the non-cryptographic hash."""
    tokens, kv = random_tokens(PROMPT, 1), KVManager(PROMPT // BLOCK, hashing="fast")

    def ours() -> float:
        return timed(lambda: kv.match(kv.open(tokens)))

    seconds, floor = interleaved(scale.repetitions, ours, lambda: timed(lambda: plain_chain(tokens)))
    return Row(
        "the same, fast hash", seconds, FLOOR, floor, 0.9, "below SHA-256", "vLLM xxhash 9.2 ms (without lookup)"
    )  # fmt: skip


def known_turn(scale: Scale) -> Row:
    """A turn that adds 1,000 tokens to a conversation of 100,000: hash what is new, find the rest."""
    tokens = random_tokens(PROMPT + TURN, 1)
    kv = KVManager(2 * PROMPT // BLOCK)
    serve(kv, tokens[:PROMPT])

    def ours() -> float:
        return timed(lambda: kv.match(kv.open(tokens)))

    seconds, floor = interleaved(2 * scale.repetitions, ours, lambda: timed(lambda: plain_chain(tokens)))
    assert kv.match(kv.open(tokens)).num_tokens == PROMPT
    return Row(
        "turn of 1k on a known 100k, with lookup", seconds, FLOOR, floor, 0.1, "≤ 0.3 ms",
        "vLLM 0.12 (hash) + 3.9 ms (lookup)",
    )  # fmt: skip


def many_conversations(scale: Scale) -> Row:
    """Longest-prefix match of a prompt that follows one of many conversations of 100,000 tokens, each asked once."""
    count = scale.conversations
    kv = KVManager(count * (PROMPT // BLOCK + 1))
    system = random_tokens(2_000, 0)

    def conversation(number: int) -> Int32Array:
        return np.concatenate([system, random_tokens(PROMPT - len(system), 1000 + number)])

    for number in range(count):
        serve(kv, conversation(number))
    order = np.random.default_rng(3).permutation(count)[: min(count, 2 * scale.repetitions)].tolist()
    prompts = iter([np.concatenate([conversation(number), random_tokens(500, 5)]) for number in order])
    floor_tokens = conversation(0)
    found = []

    def ours() -> float:
        prompt = next(prompts)
        start = perf_counter()
        hit = kv.match(kv.open(prompt))
        seconds = perf_counter() - start
        found.append(hit.num_tokens)
        return seconds

    seconds, floor = interleaved(len(order), ours, lambda: timed(lambda: plain_chain(floor_tokens)))
    assert found == [PROMPT] * len(order)
    return Row(
        f"longest prefix among {count:,} × 100k", seconds, FLOOR, floor, 0.29, "≤ 1 ms among 1,000",
        "vLLM 16 ms; SGLang 0.1–0.3 ms (Rust), 1.5–2.6 ms (Python)",
    )  # fmt: skip


def allocate_free_block(scale: Scale) -> Row:
    """Cost of one free block out of a large pool, against one out of a small pool."""
    rounds = 50 * scale.repetitions
    pools = [BlockPool(size) for size in (LARGE_POOL, SMALL_POOL)]

    def ours(pool: BlockPool) -> float:
        start = perf_counter()
        blocks = pool.allocate(AT_ONCE)
        seconds = (perf_counter() - start) / AT_ONCE
        pool.free(blocks)
        return seconds

    large, small = interleaved(rounds, *(partial(ours, pool) for pool in pools))
    return Row(
        "a free block, pool of 1M", large, f"pool of {SMALL_POOL:,}", small, 1.3, "independent of the pool: ≤ 1.3",
        "vLLM 1.26 µs cold",
    )  # fmt: skip


def full_pools(count: int, size: int, chains: Chains) -> list[BlockPool]:
    """``count`` pools of ``size`` blocks, full of chains of 16; pool i holds its share of ``chains``, in order."""
    pools = [BlockPool(size) for _ in range(count)]
    share = size // AT_ONCE
    for number, pool in enumerate(pools):
        for chain in chains[number * share : (number + 1) * share]:
            blocks = pool.allocate(AT_ONCE)
            pool.cache(blocks, chain)
            pool.free(blocks)
    return pools


def random_chains(count: int) -> Chains:
    return [[os.urandom(32) for _ in range(AT_ONCE)] for _ in range(count)]


def evictions(pools: list[BlockPool], chains: Chains) -> Iterator[float]:
    """Seconds a block of allocating 16 blocks that are all cached, each time in the next pool."""
    for number, chain in enumerate(random_chains(MOST_ROUNDS)):
        pool = pools[number % len(pools)]
        start = perf_counter()
        blocks = pool.allocate(AT_ONCE)
        yield (perf_counter() - start) / AT_ONCE
        pool.cache(blocks, chain)
        pool.free(blocks)


def hits(pools: list[BlockPool], chains: Chains) -> Iterator[float]:
    """Seconds a block of taking 16 cached blocks out of the middle of the queue: far from the last ones, each time."""
    share = len(chains) // len(pools)
    for number in range(MOST_ROUNDS):
        place = number % len(pools)
        chain = chains[place * share + number * 7919 % share]
        start = perf_counter()
        blocks = pools[place].lookup_run(chain)
        pools[place].touch(blocks)
        yield (perf_counter() - start) / AT_ONCE
        assert len(blocks) == AT_ONCE
        pools[place].free(blocks)


def bare_evictions(chains: Chains) -> Iterator[float]:
    """The least that evicting takes: a dictionary loses what a list says stands there, and gets another entry."""
    hash_of = [digest for chain in chains for digest in chain]
    found = {digest: block for block, digest in enumerate(hash_of)}
    for number, chain in enumerate(random_chains(MOST_ROUNDS)):
        first = number * AT_ONCE % len(hash_of)
        start = perf_counter()
        for block in range(first, first + AT_ONCE):
            del found[hash_of[block]]
            hash_of[block] = b""
        yield (perf_counter() - start) / AT_ONCE
        for block, digest in zip(range(first, first + AT_ONCE), chain, strict=True):
            found[digest], hash_of[block] = block, digest


def bare_hits(chains: Chains) -> Iterator[float]:
    """The least that a hit takes: a dictionary says where each hash stands, and a list counts one reference more."""
    found = {digest: block for block, digest in enumerate(d for chain in chains for d in chain)}
    references = [0] * len(found)
    for number in range(MOST_ROUNDS):
        chain = chains[number * 7919 % len(chains)]
        start = perf_counter()
        for digest in chain:
            references[found[digest]] += 1
        yield (perf_counter() - start) / AT_ONCE


def pool_size_rows(
    name: str,
    rounds: int,
    ours: Callable[[list[BlockPool], Chains], Iterator[float]],
    bare: Callable[[Chains], Iterator[float]],
    anchors: str,
) -> list[Row]:
    """Two readings of "independent of the pool's size", over the whole of a large pool.

    The pool's size alone differs in the first: a million blocks as one pool against a million as 1,024 pools, so that
    both sides work on as much memory. The second compares with one small pool, all of which the processor's cache
    holds. There a bare dictionary and list of the large size lose as well; the pool may not lose 1.3 times as much.
    """
    chains = random_chains(LARGE_POOL // AT_ONCE)
    few = chains[: SMALL_POOL // AT_ONCE]
    runs = [
        ours(full_pools(1, LARGE_POOL, chains), chains),
        ours(full_pools(LARGE_POOL // SMALL_POOL, SMALL_POOL, chains), chains),
        ours(full_pools(1, SMALL_POOL, chains), few),
        bare(chains),
        bare(few),
    ]
    large, as_many, small, bare_large, bare_small = medians(rounds, *(run.__next__ for run in runs))
    lost = bare_large / bare_small
    return [
        Row(f"{name}, pool of 1M", large, "1,024 pools of 1,024", as_many, 1.3, "≤ 1.3", anchors),
        Row(
            f"{name}, cold 1M against warm 1k", large, f"pool of 1,024 × {lost:.2f}, a bare dict's loss", small * lost,
            1.3, f"{large / small:.2f} × a pool of 1,024", "",
        ),
    ]  # fmt: skip


def allocate_by_evicting(scale: Scale) -> list[Row]:
    return pool_size_rows("a block by evicting", 150 * scale.repetitions, evictions, bare_evictions, "")


def allocate_by_hit(scale: Scale) -> list[Row]:
    """Out of the middle of the queue."""
    anchors = "vLLM 0.21 µs; nano-vllm 30 µs (searches the queue)"
    return pool_size_rows("a block by a hit", 150 * scale.repetitions, hits, bare_hits, anchors)


def take_and_give_back(scale: Scale) -> list[Row]:
    """Blocks of a 100,000-token prompt: cold, warm, and given back, without the lookup."""
    tokens = random_tokens(PROMPT, 1)
    kv = KVManager(2 * PROMPT // BLOCK)
    last: dict[str, float] = {}

    def cycle() -> float:
        assert kv.reset()
        for name in ("cold", "warm"):
            seq = kv.open(tokens)
            hit = kv.match(seq)
            last[name] = timed(lambda seq=seq, hit=hit: (kv.admit(seq, PROMPT, hit), kv.commit(seq, PROMPT)))
            last["free"] = timed(lambda seq=seq: kv.free(seq))
        return 0.0

    parts = [lambda part=part: last[part] for part in ("cold", "warm", "free")]
    _, floor, cold, warm, free = interleaved(
        scale.repetitions, cycle, lambda: timed(lambda: plain_chain(tokens)), *parts
    )
    return [
        Row("blocks of a cold 100k prompt", cold, FLOOR, floor, 2.3, "below vLLM", "vLLM 7.9 ms"),
        Row("blocks of a known 100k prompt", warm, FLOOR, floor, 0.8, "below vLLM", "vLLM 1.3 ms; nano-vllm 191 ms"),
        Row("give 100k tokens back", free, FLOOR, floor, 0.8, "as vLLM", "vLLM 0.9 ms"),
    ]  # fmt: skip


ROWS: list[Callable[[Scale], Row | list[Row]]] = [
    cold_prompt,
    cold_prompt_fast_hash,
    known_turn,
    many_conversations,
    allocate_free_block,
    allocate_by_evicting,
    allocate_by_hit,
    take_and_give_back,
]


def measure(row: Callable[[Scale], Row | list[Row]], scale: Scale) -> list[Row]:
    made = row(scale)
    return made if isinstance(made, list) else [made]


def main() -> None:
    scale = SMALL if "--small" in sys.argv[1:] else FULL
    print(f"{'':44}{'this run':>12}{'baseline':>12}{'ratio':>8}{'most':>6}  goal; others")
    for make in ROWS:
        for row in measure(make, scale):
            unit, factor = ("µs", 1e6) if row.seconds < 1e-5 else ("ms", 1e3)
            print(
                f"{row.name:44}{row.seconds * factor:9.3f} {unit}{row.baseline_seconds * factor:9.3f} {unit}"
                f"{row.ratio:8.3f}{row.most_ratio:6.2f}  {row.goal}; {row.anchors} (baseline: {row.baseline})"
            )


if __name__ == "__main__":
    main()
