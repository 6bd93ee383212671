"""Snapshots between engines with other blocks, windows and stores: what is findable is right, and all that whole blocks allow."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agentctx_engine import Engine
from agentctx_engine.models import Family
from agentctx_engine.runtime import SnapshotError

from .test_engine_tiers import ANSWER, VOCABULARY, engine_of, model, texts

WINDOW = 12
Options = dict[str, Any]


@cache
def reference(family: Family) -> Engine:
    return Engine(model(family), num_blocks=64, prefix_cache="none", deterministic=True)


def kept_from(options: Options, family: Family, tokens: int, block_size: int) -> int:
    """Where the windowed layers of a prefix begin."""
    if family == "llama" or options.get("full_window_cache") or options.get("prefix_cache") == "radix":
        return 0
    return max(0, tokens - WINDOW + 1) // block_size * block_size


def findable(options: Options, family: Family, tokens: int) -> int:
    return (
        tokens if options.get("token_granular") else tokens // options["block_size"] * options["block_size"]
    )


@st.composite
def engines(draw: st.DrawFn, family: Family) -> Options:
    options: Options = {"block_size": draw(st.sampled_from([1, 2, 3, 4, 5, 8, 16])), "num_blocks": 120}
    options["host_blocks"] = 0
    kind = draw(st.sampled_from(["windows", "windows", "whole", "parts", "radix"]))
    if kind == "windows":
        options["window_checkpoints"] = draw(st.integers(0, 2))
        options["window_checkpoint_spacing"] = draw(st.sampled_from([1, 8]))
    elif kind == "radix":
        options["prefix_cache"] = "radix"
    else:
        options["full_window_cache"] = True
        options["token_granular"] = kind == "parts"
    return options


@st.composite
def moves(draw: st.DrawFn) -> tuple[Family, Options, Options, int, int | None]:
    """(family, who saves, who restores, the prefix's length, how much of it the latter has cached before)"""
    family = draw(st.sampled_from(["llama", "mistral", "mistral", "gemma3"]))
    tokens = draw(st.integers(1, 60))
    before = draw(st.none() | st.integers(1, tokens))
    return family, draw(engines(family)), draw(engines(family)), tokens, before


WINDOWS = {"num_blocks": 120, "host_blocks": 0, "window_checkpoint_spacing": 8}
WHOLE = {"num_blocks": 120, "host_blocks": 0, "full_window_cache": True}


@settings(
    max_examples=int(os.environ.get("AGENTCTX_SNAPSHOT_EXAMPLES", "20")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(moves())
# Larger blocks, of which the file has the end only, behind a block that is there.
@example(("mistral", {**WINDOWS, "block_size": 4}, {**WINDOWS, "block_size": 8}, 48, 33))
# Blocks that the prefix does not fill.
@example(("gemma3", {**WHOLE, "block_size": 4}, {**WINDOWS, "block_size": 5}, 48, None))
def test_a_snapshot_moves_between_engines(case: tuple[Family, Options, Options, int, int | None]) -> None:
    family, saving, restoring, length, before = case
    text = texts(1, length, seed=length)[0]
    with TemporaryDirectory() as directory:
        path = Path(directory) / "prefix"
        with engine_of(family, **saving) as engine:
            whole = findable(saving, family, length)
            if not whole:
                return
            assert engine.save(text, path).num_tokens == whole
        with engine_of(family, **restoring) as engine:
            dirty(engine)
            if before:
                engine.generate(text[:before], ANSWER)
            usable = whole
            if kept_from(restoring, family, 100, 1):  # windows alone
                usable = whole // restoring["block_size"] * restoring["block_size"]
            begins = kept_from(saving, family, whole, saving["block_size"])
            if begins > kept_from(restoring, family, usable, restoring["block_size"]):
                with pytest.raises(SnapshotError, match="windowed layer"):
                    engine.restore(path)
                found = 0
            else:
                found = engine.restore(path).findable_tokens
                assert found == findable(restoring, family, usable)
            assert engine.state().pool.in_use == 0
            check_answers(engine, family, text, found)


def dirty(engine: Engine) -> None:
    """Leave other texts' keys and values in all blocks."""
    for other in texts(2, 60, seed=99):
        engine.generate(other, ANSWER)
    engine.drop_cached()


def check_answers(engine: Engine, family: Family, text: tuple[int, ...], found: int) -> None:
    random = Random(len(text))
    for shared in (len(text), *random.sample(range(len(text) + 1), min(2, len(text)))):
        prompt = (*text[:shared], *(random.randrange(1, VOCABULARY) for _ in range(3)))
        result = engine.generate(prompt, ANSWER)
        assert result.token_ids == reference(family).generate(prompt, ANSWER).token_ids
        if shared == len(text):
            assert result.cached_tokens >= found
    engine._loop.call(engine._core.kv.check)
