"""LlamaServerModel: slots, similarity, the RAM cache and checkpoints as a CacheModel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentctx.caches.llama_server import LlamaServerModel
from agentctx.caches.model import Arrival
from agentctx.caches.registry import parse_cache
from agentctx.rendering.prompt import TokenIds

prompts = st.lists(st.integers(1, 3), min_size=1, max_size=24)
turns = st.lists(
    st.tuples(prompts, st.lists(st.integers(1, 3), max_size=5), st.sampled_from([None, 0, 1]), st.booleans()),
    min_size=1,
    max_size=12,
)


def ids(values: list[int] | range) -> TokenIds:
    return np.asarray(values, np.int32)


def model(spec: str) -> LlamaServerModel:
    found = parse_cache(spec)
    assert isinstance(found, LlamaServerModel)
    return found


@settings(max_examples=200, deadline=None)
@given(
    turns,
    st.sampled_from(
        [
            "llama-server",
            "llama-server:2",
            "llama-server:2,ram=0,similarity=0",
            "llama-server:2,window=8",
            "llama-server:2,recurrent=1,ctx=256",
        ]
    ),
)
def test_what_is_predicted_is_what_is_served(
    served: list[tuple[list[int], list[int], int | None, bool]], spec: str
) -> None:
    cache = model(spec)
    for prompt, reply, slot, cache_prompt in served:
        arrival = Arrival(slot=slot, cache_prompt=cache_prompt)
        foreseen = cache.predict(ids(prompt), arrival)
        assert cache.predict(ids(prompt), arrival) == foreseen  # asking changes nothing
        roomy = cache.without_limits(ids(prompt), arrival)
        prediction = cache.commit(ids(prompt), ids(reply), arrival)
        assert (prediction.cached, prediction.lost) == (foreseen.cached, foreseen.lost)
        assert prediction.cached + sum(tokens for _, tokens in prediction.lost) == len(prompt)
        assert prediction.slot is not None
        assert slot in (None, prediction.slot)
        assert cache_prompt or prediction.cached == roomy == 0


def test_one_slot_without_a_ram_cache_is_the_plain_slot() -> None:
    one, plain = model("llama-server:1,ram=0"), parse_cache("slot")
    for prompt in (range(40), range(50), [7, 8], range(45)):
        assert one.predict(ids(prompt)).cached == plain.predict(ids(prompt)).cached
        assert one.commit(ids(prompt), ids([1, 2])).cached == plain.commit(ids(prompt), ids([1, 2])).cached


def test_by_default_the_ram_cache_brings_a_conversation_back() -> None:
    """Two conversations with nothing in common take turns: each finds its own text again, on whatever slot."""
    cache = model("llama-server")
    one, two = range(100), range(1000, 1100)
    assert cache.commit(ids(one), ids([5])).slot == 3  # the last slot is the least recently used
    cache.commit(ids(two), ids([5]))
    assert cache.predict(ids(one)).cached == 99
    without = model("llama-server:1,ram=0")
    without.commit(ids(one), ids([5]))
    without.commit(ids(two), ids([5]))
    lost = without.predict(ids(one))
    assert (lost.cached, dict(lost.lost)) == (0, {"slot-taken": 99, "whole-prompt": 1})
    assert without.without_limits(ids(one)) == 99


def test_a_sub_agent_takes_the_slot_unless_each_has_its_own() -> None:
    """Shared head 700, main 1,089, sub-agent 740: similar enough for one slot, and too much is kept for a copy in RAM."""
    main = [*range(700), *range(1000, 1389)]
    sub = [*range(700), *range(2000, 2040)]
    shared = model("llama-server")
    for prompt in (main, sub):
        shared.commit(ids(prompt), ids([5]))
    assert shared.predict(ids([*main, *range(23)])).cached == 700
    pinned = model("llama-server:2,ram=0")
    for slot, prompt in enumerate((main, sub)):
        pinned.commit(ids(prompt), ids([5]), Arrival(slot=slot))
    assert pinned.predict(ids([*main, *range(23)]), Arrival(slot=0)).cached == 1089


@pytest.mark.parametrize(
    ("options", "cached"), [("checkpoints=0", 0), ("", 0), ("checkpoints=0,swa_full=1", 350)]
)
def test_example_12_of_the_lesson(options: str, cached: int) -> None:
    """Window 128: a long prompt, then a short one that shares 350 tokens; the ring holds none of them any more."""
    cache = model(f"llama-server:1,ram=0,ctx=4096,window=128,{options}")
    cache.commit(ids(range(1841)), ids([1]))
    assert cache.predict(ids([*range(350), 9001, 9002, 9003, 9004])).cached == cached
    assert cache.predict(ids(range(1845))).cached == 1841


def test_an_erased_slot_holds_nothing() -> None:
    cache = model("llama-server:1,ram=0")
    cache.commit(ids(range(30)), ids([1, 2]))
    assert cache.erase(0) == 31
    assert cache.predict(ids(range(30))).cached == 0
