"""vLLM's KVCacheManager answered these requests; ours must answer each of them alike."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from agentctx_engine.memory import ExtraKeys, FullAttention, KVManager, KVSequence, SlidingWindow

FULL, WINDOW = FullAttention(), SlidingWindow(64)

# vLLM's pools contain the null block, which is not among the usable blocks that the configurations name.
CONFIGURATIONS: dict[str, Callable[[], KVManager]] = {
    "vllm-full-b16-large": lambda: KVManager(4096, 16, null_block=True),
    "vllm-full-b16-96blocks": lambda: KVManager(97, 16, null_block=True),
    "vllm-full-b16-48blocks": lambda: KVManager(49, 16, null_block=True),
    "vllm-full-b4-large": lambda: KVManager(4096, 4, null_block=True),
    "vllm-swa64-b16-keepall": lambda: KVManager(4096, 16, groups=[WINDOW]),
    "vllm-hybrid64-b16-keepall": lambda: KVManager(4096, 16, groups=[FULL, WINDOW]),
}


def token_ids(runs: list[list[int]]) -> npt.NDArray[np.int32]:
    ids = [
        (segment * 1_000_003 + i * 7919) % 50_000 + 100
        for segment, start, end in runs
        for i in range(start, end)
    ]
    return np.array(ids, dtype=np.int32)


def generate(kv: KVManager, seq: KVSequence, output: npt.NDArray[np.int32]) -> bool:
    """Decode token by token; the last one is sampled and never computed. False: no block was left for one."""
    for token in output[:-1]:
        seq.append([int(token)])
        if not kv.reserve(seq, len(seq)):
            return False
        kv.commit(seq, len(seq))
    return True


def serve(kv: KVManager, request: dict) -> int | None:
    """One request from lookup to end; None if it didn't fit.

    The recorded run had no one to preempt: a request that ran out of blocks while decoding waited, holding its blocks,
    for the rest of the run. So does ours.
    """
    prompt = token_ids(request["prompt"])
    seq = kv.open(prompt, ExtraKeys(cache_salt=request["cache_salt"]))
    hit = kv.match(seq)
    match = kv.explain(seq, hit)
    assert match.hit_tokens == hit.num_tokens
    assert match.hit_tokens + sum(tokens for _, tokens in match.lost) == len(prompt)
    if not kv.admit(seq, len(prompt), hit):
        return None
    kv.commit(seq, len(prompt))
    if not generate(kv, seq, token_ids(request["output"])):
        return None
    kv.free(seq)
    return hit.num_tokens


@pytest.mark.corpus
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_request_hits_as_in_vllm(name: str, shared_dir: Path) -> None:
    compared = refused = evicted = 0
    for path in sorted((shared_dir / "oracles").glob("*.json")):
        workload = json.loads(path.read_text())
        kv = CONFIGURATIONS[name]()
        answers = [serve(kv, request) for request in workload["requests"]]
        assert answers == workload["hit_tokens"][name], f"workload {path.stem}"
        kv.check()
        compared += len(answers)
        refused += answers.count(None)
        evicted += kv.pools[0].counters.evicted_blocks
    assert compared == 60 * 30
    assert (evicted > 0) == ("blocks" in name), "only the small pools evict"
    assert (refused > 0) == ("48blocks" in name), "only the smallest pool refuses"
