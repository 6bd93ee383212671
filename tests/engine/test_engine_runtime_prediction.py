"""The engine reuses what the memory manager, asked beforehand and without any model, says it will."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentctx_engine.memory.paged_cache import PagedCache
from agentctx_engine.runtime import Engine, SamplingParams
from agentctx_engine.runtime.paged_store import PagedStore
from agentctx_engine.runtime.radix_store import RadixStore

from .context_hash_model import ContextHashModel, tiny_config

BLOCK = 16


@pytest.mark.parametrize("kind", ["hash", "radix"])
@pytest.mark.parametrize("num_blocks", [400, 150], ids=["roomy", "evicting"])
def test_ten_agent_turns_hit_what_was_predicted(kind: str, num_blocks: int) -> None:
    """Lesson 9's agent, two conversations interleaved: system 300, ten tools of 50, +120 a turn; each cached block counted."""
    random = Random(3)
    model = ContextHashModel(tiny_config(max_context=4096))
    with Engine(
        model, num_blocks=num_blocks, block_size=BLOCK, prefix_cache=kind, max_step_tokens=256
    ) as engine:
        predictor = engine.predictor()
        fixed = [random.choices(range(1, 97), k=300 + 10 * 50) for _ in range(2)]
        histories = [list(f) for f in fixed]
        hits = []
        for _turn in range(10):
            for salt, history in zip((None, "second"), histories, strict=True):
                history += random.choices(range(1, 97), k=30)
                predicted = predictor.match(history, salt=salt)
                lease = predictor.commit(history, salt=salt)
                assert lease.match == predicted
                assert engine.match(history, cache_salt=salt) == predicted
                result = engine.generate(
                    history, SamplingParams(max_tokens=90, stop_token_ids=()), cache_salt=salt
                )
                assert (result.cached_tokens, result.lost) == (predicted.hit_tokens, predicted.lost)
                predictor.release(lease, result.token_ids)
                history += result.token_ids
                hits.append(result.cached_tokens)
        assert findable(engine) == predictor.stats().cached_tokens
    whole = [(len(fixed[0]) + 120 * turn - 1) // BLOCK * BLOCK for turn in range(1, 10) for _ in range(2)]
    if num_blocks == 400:
        assert hits == [0, 0, *whole]
    else:
        assert hits != [0, 0, *whole], (
            "nothing was evicted, so this run shows nothing that the roomy one does not"
        )


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), kind=st.sampled_from(["hash", "parts of blocks", "radix"]))
def test_random_conversations_hit_what_was_predicted(data: st.DataObject, kind: str) -> None:
    """Append, edit, repeat and fork conversations one after another on a small pool."""
    block_size = data.draw(st.sampled_from([4, 8, 16]))
    num_blocks = data.draw(st.integers(96 // block_size, 300 // block_size))
    model = ContextHashModel()
    texts: list[list[int]] = [[1]]
    parts = kind == "parts of blocks"
    options = {"prefix_cache": "hash" if parts else kind, "token_granular": parts}
    with Engine(model, num_blocks=num_blocks, block_size=block_size, **options) as engine:
        predictor = engine.predictor()
        for _ in range(data.draw(st.integers(3, 12))):
            stem = data.draw(st.sampled_from(texts))
            cut = data.draw(st.integers(1, len(stem)))
            prompt = [*stem[:cut], *data.draw(st.lists(st.integers(1, 96), max_size=30))][:70]
            salt = data.draw(st.sampled_from([None, None, "a"]))
            max_tokens = data.draw(st.integers(1, 20))
            lease = predictor.commit(prompt, salt=salt)
            result = engine.generate(
                prompt, SamplingParams(max_tokens=max_tokens, stop_token_ids=()), cache_salt=salt
            )
            assert (result.cached_tokens, result.lost) == (lease.match.hit_tokens, lease.match.lost)
            predictor.release(lease, result.token_ids)
            texts.append([*prompt, *result.token_ids])
            assert findable(engine) == predictor.stats().cached_tokens


def findable(engine: Engine) -> int:
    """Tokens that a lookup could find in the engine's own store."""
    kv = engine._core.kv
    if isinstance(kv, RadixStore):
        return kv.cache.stats().cached_tokens
    assert isinstance(kv, PagedStore)
    return PagedCache(kv.manager).stats().cached_tokens


def test_an_engine_without_caching_predicts_nothing() -> None:
    prompt = list(range(1, 40))
    with Engine(ContextHashModel(), num_blocks=32, block_size=4, prefix_cache="none") as engine:
        predictor = engine.predictor()
        for _ in range(2):
            lease = predictor.commit(prompt)
            result = engine.generate(prompt, SamplingParams(max_tokens=3))
            assert result.cached_tokens == lease.match.hit_tokens == 0
            assert result.lost == lease.match.lost
            predictor.release(lease, result.token_ids)
