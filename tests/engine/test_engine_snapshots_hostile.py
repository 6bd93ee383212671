"""Snapshot files whose checksum holds and whose contents are wrong, and restores that fail half-way: nothing is lost or found."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentctx_engine import Engine
from agentctx_engine.models import Family
from agentctx_engine.runtime import EngineMemoryError, SnapshotError
from agentctx_engine.runtime.block_directory import BlockDirectory
from agentctx_engine.runtime.core import EngineCore
from agentctx_engine.runtime.model_runner import ModelRunner
from agentctx_engine.runtime.tiers import TierCopier

from .test_engine_tiers import ANSWER, ask, engine_of, texts, uncached

[TEXT] = texts(1, 40)
Header = dict[str, Any]


class Files:
    """A good file taken apart, to be put together otherwise under a checksum that holds."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with engine_of(num_blocks=16, host_blocks=0) as engine:
            engine.save(TEXT, path)
        whole = path.read_bytes()
        end = 8 + int.from_bytes(whole[:8], "little")
        self.head: Header = json.loads(whole[8:end])
        self.data = whole[end:]

    def write(self, head: Header) -> None:
        """With the right checksum, unless ``head`` states one of its own."""
        states = head.get("__metadata__")
        if isinstance(states, dict) and states.get("sha256") == self.head["__metadata__"]["sha256"]:
            states["sha256"] = "0" * 64
            states["sha256"] = hashlib.sha256(_header(head) + self.data).hexdigest()
        self.path.write_bytes(_header(head) + self.data)


def _header(head: Header) -> bytes:
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("hostile") / "prefix.kv")


@pytest.fixture(scope="module", params=["hash", "radix"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with engine_of(num_blocks=16, host_blocks=0, prefix_cache=request.param) as engine:
        yield engine


def without(name: str) -> Callable[[Header], object]:
    return lambda head: head.pop(name)


def with_entry(name: str, **fields: Any) -> Callable[[Header], object]:
    return lambda head: head[name].update(fields)


def with_metadata(**fields: Any) -> Callable[[Header], object]:
    return lambda head: head["__metadata__"].update({k.replace("_", "."): v for k, v in fields.items()})


def fewer_layers(head: Header) -> None:
    for name in ("layers.1.keys", "layers.1.values"):
        del head[name]


def more_layers(head: Header) -> None:
    for name in ("keys", "values"):
        head[f"layers.2.{name}"] = head[f"layers.0.{name}"]
    head["__metadata__"]["layers.2.first"] = "0"


def narrow_heads(head: Header) -> None:
    """Half of the values of each head, in both tensors of a layer."""
    for name in ("layers.1.keys", "layers.1.values"):
        entry = head[name]
        tokens, heads, size = entry["shape"]
        start, end = entry["data_offsets"]
        entry.update(shape=[tokens, heads, size // 2], data_offsets=[start, (start + end) // 2])


def one_layer_starts_later(head: Header) -> None:
    """As if layer 1 had a window."""
    for name in ("layers.1.keys", "layers.1.values"):
        entry = head[name]
        tokens, heads, size = entry["shape"]
        start, end = entry["data_offsets"]
        entry.update(shape=[tokens - 4, heads, size], data_offsets=[start + (end - start) // tokens * 4, end])
    head["__metadata__"]["layers.1.first"] = "4"


def half_floats(head: Header) -> None:
    """Both tensors of all layers in two bytes a value, which is half of what is there."""
    for name, entry in head.items():
        if name.startswith("layers"):
            start, end = entry["data_offsets"]
            entry.update(dtype="F16", data_offsets=[start, (start + end) // 2])


def huge_and_empty(head: Header) -> None:
    entry = head["layers.0.keys"]
    entry.update(shape=[1 << 40, 0, 1 << 40], data_offsets=[0, 0])


WRONG: dict[str, Callable[[Header], object]] = {
    "a layer too few": fewer_layers,
    "a layer too many": more_layers,
    "values of a layer missing": without("layers.1.values"),
    "no tokens": without("token_ids"),
    "where a layer begins missing": lambda head: head["__metadata__"].pop("layers.1.first"),
    "another name": lambda head: head.update({"layers.7.keys": head.pop("layers.1.keys")}),
    "heads of another size": narrow_heads,
    "another shape of the same bytes": with_entry("layers.1.keys", shape=[40, 1, 32]),
    "keys and values of different shapes": with_entry("layers.0.values", shape=[40, 32]),
    "a number": with_entry("layers.0.values", shape=[], data_offsets=[0, 4]),
    "another type": half_floats,
    "integers": with_entry("layers.1.values", dtype="I32"),
    "tokens that are no integers": with_entry("token_ids", dtype="F32"),
    "tokens that are bytes": with_entry("token_ids", dtype="I8", shape=[160]),
    "tokens in rows": with_entry("token_ids", shape=[40, 1]),
    "not one token": with_entry("token_ids", shape=[0], data_offsets=[0, 0]),
    "a full layer from its middle on": one_layer_starts_later,
    "a layer before the beginning": with_metadata(layers_0_first="-1"),
    "a layer from somewhere on": with_metadata(layers_0_first="soon"),
    "a layer from a list on": with_metadata(layers_0_first=[0]),
    "more than there is memory for": with_entry("layers.0.keys", shape=[1 << 40], data_offsets=[0, 0]),
    "more than can be counted": with_entry("layers.0.keys", shape=[1 << 80], data_offsets=[0, 0]),
    "nothing of huge size": huge_and_empty,
    "less than nothing": with_entry("layers.0.keys", shape=[-1, 2, 16]),
    "beyond the file": with_entry("layers.0.keys", data_offsets=[0, 1 << 60]),
    "no place": with_entry("layers.0.keys", data_offsets=None),
    "a type of no name": with_entry("layers.0.keys", dtype={}),
    "a checksum that is no text": with_metadata(sha256="\ud800" * 64),
    "another prefix": with_metadata(prefix="0" * 64),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_file_is_refused_and_costs_nothing(files: Files, engine: Engine, wrong: str) -> None:
    engine.drop_cached()
    head = deepcopy(files.head)
    WRONG[wrong](head)
    files.write(head)
    for _ in range(2):  # a lost block would be missed the second time at the latest
        with pytest.raises(SnapshotError, match=r"prefix\.kv: |windowed layer"):
            engine.restore(files.path)
    is_as_it_was(engine)
    assert ask(engine, (*TEXT, 1))[0] == 0
    files.write(deepcopy(files.head))
    engine.drop_cached()
    assert engine.restore(files.path).findable_tokens == 40
    assert ask(engine, (*TEXT, 1))[0] == 40


def is_as_it_was(engine: Engine) -> None:
    pool = engine.state().pool
    assert (pool.in_use, pool.empty + pool.cached) == (0, pool.total)
    engine._loop.call(engine._core.kv.check)
    assert engine.match((*TEXT, 1)).hit_tokens == 0


NUMBERS = st.integers(-2, 90) | st.sampled_from([1 << 31, 1 << 63, 1 << 80]) | st.floats(0, 50)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.sampled_from(["", "0", "F32", "F16", "BF16", "I32", "I8", "é"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_whatever_a_header_says_a_restore_is_right_or_refused(
    files: Files, engine: Engine, data: st.DataObject
) -> None:
    engine.drop_cached()
    head = deepcopy(files.head)
    for _ in range(data.draw(st.integers(1, 3))):
        place: Any = head
        fields = list(place)
        while True:
            field = data.draw(st.sampled_from(fields))
            deeper = place[field]
            if not isinstance(deeper, (dict, list)) or not deeper or data.draw(st.booleans()):
                break
            place, fields = deeper, list(deeper) if isinstance(deeper, dict) else list(range(len(deeper)))
        if isinstance(place, dict) and data.draw(st.booleans()):
            moved = place.pop(field)
            if data.draw(st.booleans()):
                place[data.draw(st.sampled_from([*head, "layers.2.keys", "layers.0.first"]))] = moved
        else:
            place[field] = data.draw(VALUES)
    files.write(head)
    try:
        restored = engine.restore(files.path)
    except SnapshotError:
        is_as_it_was(engine)
        return
    # Another place in the file may be given for a tensor, but nothing else may have been wrong.
    assert restored.findable_tokens == 40
    assert engine.state().pool.in_use == 0
    for name, entry in files.head.items():
        if name != "__metadata__":
            assert (head[name]["dtype"], head[name]["shape"]) == (entry["dtype"], entry["shape"])


STORES: dict[str, dict[str, Any]] = {
    "hash": {"host_blocks": 0},
    "hash, parts of blocks": {"host_blocks": 0, "token_granular": True},
    "hash over host memory": {"host_blocks": 40},
    "radix": {"host_blocks": 0, "prefix_cache": "radix"},
}


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, RuntimeError])
@pytest.mark.parametrize(
    ("store", "fails"),
    [(store, fails) for store in STORES for fails in ("waiting", "first layer", "last layer")]
    + [("hash over host memory", "moving")],
)
def test_a_restore_that_fails_half_way_costs_no_block(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: str, fails: str, error: type[Exception]
) -> None:
    """``moving``: the blocks that made room never reached the host, where they could be found already."""
    options = {"num_blocks": 22, **STORES[store]}
    short = texts(1, 22, seed=3)[0]
    first, second = texts(2, 41)
    with engine_of(**options) as engine:
        length = engine.save(short, tmp_path / "short").num_tokens
    countdown = {"moving": 1, "waiting": 1, "first layer": 1, "last layer": 2}[fails]

    def failing(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal countdown
            countdown -= 1
            if countdown == 0:
                raise error("injected")
            return original(*arguments)

        return call

    with engine_of(**options) as engine:
        for prompt in (first, second):
            ask(engine, prompt)
        owner, name = {
            "moving": (TierCopier, "_move_down"),
            "waiting": (type(engine._core.kv), "wait_until_safe"),
        }.get(fails, (ModelRunner, "write_layer"))
        monkeypatch.setattr(owner, name, failing(getattr(owner, name)))
        with pytest.raises(RuntimeError if error is RuntimeError else EngineMemoryError, match="injected"):
            engine.restore(tmp_path / "short")
        is_as_it_was(engine)
        for prompt in (second, first, (*short, 1, 2)):
            ask(engine, prompt)
        engine.drop_cached()
        assert engine.restore(tmp_path / "short").findable_tokens == length
        assert ask(engine, (*short, 1, 2))[0] == length


@pytest.mark.timeout(120)
@pytest.mark.parametrize("waiting", [False, True], ids=["alone", "others wait for the files"])
@pytest.mark.parametrize("family", ["llama", "mistral"])
@pytest.mark.parametrize("seed", range(2))
def test_a_restored_prefix_counts_on_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, family: Family, waiting: bool, seed: int
) -> None:
    """The tiers below hold the prefix too, in files of which some are damaged."""
    random = Random(seed)
    restoring, settle, read = Event(), EngineCore.settle, BlockDirectory.read

    def tell_and_settle(self: EngineCore) -> None:
        restoring.set()
        settle(self)

    def wait_and_read(self: BlockDirectory, *arguments: Any) -> Any:
        assert restoring.wait(60)
        return read(self, *arguments)

    # A branch point at the end of the prefix, from which it can be continued when others have left it behind.
    points = {"window_checkpoints": 2, "window_checkpoint_spacing": 8}
    with engine_of(family, disk_dir=tmp_path / "tier", host_blocks=2, num_blocks=24, **points) as engine:
        engine.save(TEXT, tmp_path / "prefix")
        for other in texts(3, 41, seed=5):
            engine.generate(other, ANSWER)
        engine._loop.call(lambda: [f.result() for f in engine._core.kv._tiers.copier._writing])  # type: ignore[attr-defined]
        for file in sorted(tmp_path.rglob("tier/**/*.kv")):
            if seed == 0 or random.random() < 0.4:
                file.write_bytes(file.read_bytes()[: random.choice([0, 100, -1])])
        monkeypatch.setattr(EngineCore, "settle", tell_and_settle)
        monkeypatch.setattr(BlockDirectory, "read", wait_and_read)
        prompt = (*TEXT, 1, 2)
        waiter = engine.submit(prompt, ANSWER) if waiting else None
        assert engine.restore(tmp_path / "prefix").findable_tokens == 40
        restoring.set()  # it may have come before the other was admitted
        assert engine.match(prompt).hit_tokens == 40
        assert ask(engine, prompt, family) == (40, 0, 0)
        if waiter is not None:
            assert waiter.result().token_ids == uncached(family, prompt)
