"""SGLang's own trees answered these requests; ours must answer each of them alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentctx_engine.memory.radix_cache import RadixCache
from agentctx_engine.memory.radix_eviction import EvictionOrder
from agentctx_engine.memory.radix_tree import Namespace
from agentctx_engine.memory.token_bytes import pack

CONFIGURATIONS: dict[str, tuple[int, int, EvictionOrder]] = {
    "sglang-page1-large": (1, 65_536, "lru"),
    "sglang-page16-large": (16, 65_536, "lru"),
    "sglang-page1-700lru": (1, 700, "lru"),
    "sglang-page1-700lfu": (1, 700, "lfu"),
    "sglang-page1-700fifo": (1, 700, "fifo"),
    "sglang-page16-704lru": (16, 704, "lru"),
}


def token_ids(runs: list[list[int]]) -> list[int]:
    return [
        (segment * 1_000_003 + i * 7919) % 50_000 + 100
        for segment, start, end in runs
        for i in range(start, end)
    ]


def refuse_as_sglang(cache: RadixCache, prompt: list[int], computed: int, salt: str | None) -> None:
    """SGLang evicts for a request before it knows that the request can't fit; our ``commit`` changes nothing then."""
    hit = cache.match(prompt, salt=salt).hit_tokens
    node, _ = cache.tree.claim(pack(prompt), Namespace(salt=salt), hit)
    cache.tree.lock(node)
    pages = -(-(len(prompt) + computed) // cache.page_size) - hit // cache.page_size
    cache.evict(pages * cache.page_size)
    cache.tree.unlock(node)


def replay(requests: list[dict], cache: RadixCache) -> list[int | None]:
    answers: list[int | None] = []
    for request in requests:
        prompt, output = token_ids(request["prompt"]), token_ids(request["output"])
        salt, computed = request["cache_salt"], max(0, len(output) - 1)
        try:
            lease = cache.commit(prompt, salt=salt, reserve_tokens=computed)
        except MemoryError:
            refuse_as_sglang(cache, prompt, computed, salt)
            answers.append(None)
        else:
            answers.append(lease.match.hit_tokens)
            assert lease.match.hit_tokens + sum(tokens for _, tokens in lease.match.lost) == len(prompt)
            cache.extend(lease, output[:-1])
            cache.release(lease)
    cache.check()
    return answers


@pytest.mark.corpus
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_request_hits_as_in_sglang(name: str, shared_dir: Path) -> None:
    page_size, capacity, order = CONFIGURATIONS[name]
    compared = refused = 0
    for path in sorted((shared_dir / "oracles").glob("*.json")):
        workload = json.loads(path.read_text())
        cache = RadixCache(page_size, capacity_tokens=capacity, order=order, split_refresh="run")
        answers = replay(workload["requests"], cache)
        assert answers == workload["hit_tokens"][name], f"workload {path.stem}"
        compared += len(answers)
        refused += answers.count(None)
    assert compared == 60 * 30
    assert (refused > 0) == (capacity < 1000), "the small pools refuse some requests, the large ones none"
