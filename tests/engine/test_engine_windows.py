"""Sliding windows on the running engine: what is kept, what can be continued, and that answers never change."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentctx_engine import Engine, SamplingParams
from agentctx_engine.memory import Lost
from agentctx_engine.models import Model, load_model, random_config, random_model
from agentctx_engine.runtime import SnapshotError
from agentctx_engine.runtime.paged_store import PagedStore

WINDOW, FIRST, SHARED, SECOND = 128, 1841, 350, 354
GREEDY = SamplingParams(max_tokens=4, stop_token_ids=())
_random = Random(12)
FIRST_PROMPT = [_random.randrange(1, 256) for _ in range(FIRST)]
SECOND_PROMPT = FIRST_PROMPT[:SHARED] + [_random.randrange(1, 256) for _ in range(SECOND - SHARED)]
POINTS = tuple(range(256, FIRST, 256))
QUESTION = [_random.randrange(1, 256) for _ in range(30)]


@cache
def gemma() -> Model:
    """Gemma 3's shape, tiny: two layers of window 128, then one that sees everything, and again."""
    return random_model(config=random_config("gemma3", vocab_size=256, num_layers=6, window=WINDOW))


def engine_of(model: Model | None = None, **options: Any) -> Engine:
    return Engine(
        model or gemma(), **{"num_blocks": 2000, "block_size": 2, "full_window_cache": False, **options}
    )


def windowed_blocks(engine: Engine) -> tuple[int, int]:
    """(in use, cached) in the pool of the windowed layers."""
    kv = engine._core.kv
    assert isinstance(kv, PagedStore)
    kv.check()
    pool = kv.manager.pools[1]
    return pool.num_used_blocks, pool.num_cached_blocks


def test_layers_stand_in_the_group_of_their_window() -> None:
    config = random_config("gemma3", num_layers=6, window=WINDOW)
    assert [group.window for group in config.layer_groups] == [None, WINDOW]
    assert config.group_of_layer == (1, 1, 0, 1, 1, 0)


@cache
def uncached(prompt: tuple[int, ...]) -> tuple[int, ...]:
    with engine_of(prefix_cache="none", full_window_cache=True) as engine:
        return engine.generate(prompt, GREEDY).token_ids


def ask(engine: Engine, prompt: list[int]) -> tuple[int, int, dict[Lost, int]]:
    """(cached, computed, what was lost), having checked the answer against an engine without a cache."""
    result = engine.generate(prompt, GREEDY)
    assert result.token_ids == uncached(tuple(prompt))
    return result.cached_tokens, result.computed_tokens, dict(result.lost)


def test_lesson_12_a_branch_far_back_is_computed_again_unless_windows_are_kept_whole() -> None:
    with engine_of() as engine:
        assert ask(engine, FIRST_PROMPT)[:2] == (0, FIRST)
        cached, computed, lost = ask(engine, SECOND_PROMPT)
        assert (cached, computed, lost[Lost.WINDOW]) == (0, SECOND, SHARED)
    with engine_of(full_window_cache=True) as engine:
        assert ask(engine, FIRST_PROMPT)[:2] == (0, FIRST)
        assert ask(engine, SECOND_PROMPT)[:2] == (SHARED, SECOND - SHARED)


def test_lesson_12_text_that_only_grows_is_reused_whole() -> None:
    with engine_of() as engine:
        ask(engine, FIRST_PROMPT)
        longer = FIRST_PROMPT + list(uncached(tuple(FIRST_PROMPT)))
        cached, computed, _ = ask(engine, longer + QUESTION)
        # All but the last token of the answer, which was never computed; in blocks of 2.
        assert (cached, computed) == (FIRST + 3, 1 + len(QUESTION))


def test_windowed_layers_keep_their_window() -> None:
    window_blocks = WINDOW // 2
    with engine_of(max_step_tokens=64) as engine:
        held: list[int] = []

        def look(_sample: int, _output: object) -> bool:
            held.append(windowed_blocks(engine)[0])
            return False

        engine.generate(FIRST_PROMPT, SamplingParams(max_tokens=40, stop_token_ids=()), stop_hook=look)
        assert max(held[1:]) <= window_blocks + 1
        in_use, cached = windowed_blocks(engine)
        # The end, and the branch point at token 1,024.
        assert (in_use, cached) == (0, cached)
        assert cached <= 2 * window_blocks + 2
        whole = engine._core.runner.kv_caches
        assert whole[0].shape[1] < whole[2].shape[1] // 3 or whole[0].shape[1] <= 2001


@pytest.mark.parametrize(("count", "reusable"), [(0, ()), (2, POINTS[-2:]), (7, POINTS), (99, POINTS)])
def test_branch_points_can_be_continued(count: int, reusable: tuple[int, ...]) -> None:
    with engine_of(window_checkpoints=count, window_checkpoint_spacing=256) as engine:
        ask(engine, FIRST_PROMPT)
        for point in POINTS:
            branch = [*FIRST_PROMPT[: point + 10], 5, 6, 7]
            match = engine.match(branch)
            if point in reusable:
                assert (
                    point <= match.hit_tokens <= point + 10
                )  # more where the end's window reaches back so far
            else:
                assert match.hit_tokens < point
                assert match.stop is Lost.WINDOW
        if reusable:
            point = min(reusable)
            cached, computed, lost = ask(engine, [*FIRST_PROMPT[: point + 10], 5, 6, 7])
            assert (cached, computed, lost[Lost.WINDOW]) == (point, 13, 10)


def test_the_real_gemma_3(gemma3_gguf: Path) -> None:
    """Window 512, 18 layers of which three see everything."""
    model = load_model(gemma3_gguf)
    random = Random(3)
    first = [2, *(random.randrange(1000, 200_000) for _ in range(1299))]
    second = first[:350] + [random.randrange(1000, 200_000) for _ in range(4)]
    longer = first + [random.randrange(1000, 200_000) for _ in range(20)]
    options: dict[str, Any] = {"num_blocks": 700, "block_size": 5}
    with engine_of(model, prefix_cache="none", full_window_cache=True, **options) as engine:
        wanted = [engine.generate(prompt, GREEDY).token_ids for prompt in (first, second, longer)]
    for whole, cached in ((False, (0, 0, 1300)), (True, (0, 350, 1300))):
        with engine_of(model, full_window_cache=whole, **options) as engine:
            for prompt, expected in zip(
                (first, longer, second), (cached[0], cached[2], cached[1]), strict=True
            ):
                result = engine.generate(prompt, GREEDY)
                assert result.cached_tokens == expected
                assert result.token_ids == wanted[(first, second, longer).index(prompt)]


@pytest.mark.parametrize("family", ["mistral", "gemma3"])
def test_a_prediction_is_what_happens(family: str) -> None:
    """Conversations that grow and branch, one after another, on a small pool."""
    random = Random(7)
    model = random_model(config=random_config(family, vocab_size=256, num_layers=3, window=24))  # type: ignore[arg-type]
    texts: list[list[int]] = [[random.randrange(256) for _ in range(100)]]
    options: dict[str, Any] = {"num_blocks": 60, "block_size": 8, "max_step_tokens": 32, "max_samples": 4}
    with engine_of(model, window_checkpoints=2, window_checkpoint_spacing=40, **options) as engine:
        predictor = engine.predictor()
        hits = 0
        for _ in range(40):
            stem = random.choice(texts[-4:])
            prompt = (
                stem[: random.choice([len(stem), random.randrange(1, len(stem))])]
                + [random.randrange(256)] * 3
            )
            lease = predictor.commit(prompt)
            result = engine.generate(
                prompt, SamplingParams(max_tokens=random.randrange(1, 30), stop_token_ids=())
            )
            assert (result.cached_tokens, result.lost) == (lease.match.hit_tokens, lease.match.lost)
            predictor.release(lease, result.token_ids)
            texts.append([*prompt, *result.token_ids])
            hits += result.cached_tokens
        assert hits


def test_a_snapshot_of_windows_is_continued(tmp_path: Path) -> None:
    with engine_of() as engine:
        saved = engine.save(FIRST_PROMPT, tmp_path / "windows")
    with engine_of(full_window_cache=True) as engine:
        assert engine.save(FIRST_PROMPT, tmp_path / "whole").kv_bytes > 2 * saved.kv_bytes
        with pytest.raises(SnapshotError, match="full_window_cache=True"):
            engine.restore(tmp_path / "windows")
    longer = FIRST_PROMPT + QUESTION
    for file in ("windows", "whole"):
        with engine_of() as engine:
            assert engine.restore(tmp_path / file).findable_tokens == FIRST - 1
            assert ask(engine, longer)[0] == FIRST - 1
    with engine_of(block_size=16) as engine:
        assert engine.restore(tmp_path / "windows").findable_tokens == 1840
        assert ask(engine, longer)[0] == 1840
    with engine_of(block_size=128, num_blocks=30) as engine, pytest.raises(SnapshotError, match="block size"):
        engine.restore(tmp_path / "windows")
