"""Snapshots between engines with other blocks, windows and stores: what is findable is right, and all that whole blocks allow."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agentctx_engine import Engine, SamplingParams
from agentctx_engine.models import Family
from agentctx_engine.runtime import SnapshotError
from agentctx_engine.runtime.block_directory import BlockDirectory
from agentctx_engine.runtime.snapshot_file import Snapshot, read_snapshot

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


SAVERS: dict[str, tuple[Family, Options]] = {
    "hash": ("llama", {"host_blocks": 0}),
    "parts of blocks": ("llama", {"host_blocks": 0, "token_granular": True}),
    "over host memory": ("llama", {"host_blocks": 20}),
    "radix": ("llama", {"host_blocks": 0, "prefix_cache": "radix"}),
    "windows": ("mistral", {"host_blocks": 0, "window_checkpoints": 1, "window_checkpoint_spacing": 8}),
    "windows over host memory": ("gemma3", {"host_blocks": 20}),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("saver", SAVERS)
def test_what_is_saved_is_whole_and_right_whatever_others_do(tmp_path: Path, saver: str) -> None:
    """Others take every block that they can have: before, while and after the prefix is computed."""
    family, options = SAVERS[saver]
    random = Random(saver)
    with engine_of(family, **{**options, "num_blocks": 14, "max_step_tokens": 9}) as engine:
        stop = Event()
        growing = [
            engine.submit(text, SamplingParams(max_tokens=46), stop_hook=_until(stop)) for text in texts(2, 8)
        ]
        for number in range(5):
            text = texts(1, random.randint(4, 40), seed=number % 3)[0]
            growing.append(
                engine.submit(
                    texts(1, 8, seed=20 + number)[0], SamplingParams(max_tokens=46, stop_token_ids=())
                )
            )
            saved = engine.save(text, tmp_path / "prefix")
            assert saved.num_tokens == findable({"block_size": 4, **options}, family, len(text))
            check_contents(read_snapshot(tmp_path / "prefix"), family, text, whole="windows" not in saver)
        stop.set()
        for handle in growing:
            handle.result(timeout=60)
        assert engine.state().pool.in_use == 0


def _until(stop: Event) -> Callable[[int, Sequence[int]], bool]:
    return lambda _sample, _output: stop.is_set()


def check_contents(snapshot: Snapshot, family: Family, text: tuple[int, ...], *, whole: bool) -> None:
    """Its keys and values are those of an engine that has nothing else to do."""
    with (
        engine_of(
            family, num_blocks=30, host_blocks=0, full_window_cache=True, token_granular=True
        ) as engine,
        TemporaryDirectory() as directory,
    ):
        engine.save(text, Path(directory) / "prefix")
        wanted = read_snapshot(Path(directory) / "prefix")
    tokens = len(snapshot.token_ids)
    assert snapshot.token_ids.tolist() == list(text[:tokens])
    windows = model(family).config.windows
    for layer, right, window in zip(snapshot.layers, wanted.layers, windows, strict=True):
        assert layer.first == (0 if whole or window is None else max(0, tokens - WINDOW + 1) // 4 * 4)
        assert torch.equal(layer.keys, right.keys[layer.first : tokens])
        assert torch.equal(layer.values, right.values[layer.first : tokens])


@pytest.mark.timeout(120)
def test_saving_waits_for_nobody_s_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nor does anybody wait for a saver, though a request that was there before is still waiting for its blocks."""
    go_on, read, wanted = Event(), BlockDirectory.read, texts(5, 21)
    other = texts(1, 17, seed=9)[0]

    def held(self: BlockDirectory, *arguments: Any) -> Any:
        assert go_on.wait(60)
        return read(self, *arguments)

    with engine_of(disk_dir=tmp_path / "tier", num_blocks=24, host_blocks=2) as engine:
        for prompt in (*wanted, *texts(6, 21, seed=5)):
            engine.generate(prompt, ANSWER)
        monkeypatch.setattr(BlockDirectory, "read", held)
        waiting = engine.submit(wanted[0], ANSWER)
        for _ in range(3):
            assert engine.save(other, tmp_path / "other").num_tokens == 16
            assert engine.generate(other, ANSWER).cached_tokens == 16
        assert not waiting.done
        go_on.set()
        assert waiting.result(timeout=60).disk_tokens
