"""Prefixes that outlive the process: save, restore, and everything that must be refused."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from agentctx_engine import Engine, SamplingParams
from agentctx_engine.models import Model, random_config, random_model
from agentctx_engine.runtime import EngineMemoryError, SnapshotError, kv_bytes
from agentctx_engine.runtime.config import PrefixCacheKind
from agentctx_engine.runtime.snapshot_file import read_snapshot
from agentctx_engine.runtime.tensor_file import is_temporary

from .killed import kill_while_writing

GREEDY = SamplingParams(max_tokens=6)
PREFIX = np.random.default_rng(0).integers(1, 500, 748).tolist()
QUESTION = [7, 8, 9, 10, 11]


def lesson_model() -> Model:
    """The lesson's shape: 4 layers of 2 KV heads of 32 values, two bytes each: 1,024 bytes a token."""
    return random_model(
        config=random_config("llama", num_layers=4, num_kv_heads=2, head_dim=32), dtype=torch.bfloat16
    )


def engine_of(model: Model | None = None, **options: Any) -> Engine:
    return Engine(model or random_model("llama"), num_blocks=64, **options)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "prefix.kv"
    with engine_of() as engine:
        engine.save(PREFIX[:100], path)
    return path


SECOND_PROCESS = """
    import json, sys
    from pathlib import Path
    from tests.engine.test_engine_snapshots import GREEDY, PREFIX, QUESTION, engine_of, lesson_model
    with engine_of(lesson_model(), token_granular=True) as engine:
        restored = engine.restore(Path(sys.argv[1]))
        result = engine.generate(PREFIX + QUESTION, GREEDY)
        again = engine.generate(PREFIX + QUESTION, GREEDY, reuse=False)
    print(json.dumps([len(restored.token_ids), result.prompt_tokens, result.cached_tokens, result.computed_tokens,
                      result.token_ids == again.token_ids]))
"""


def test_lesson_11_a_new_process_computes_only_the_question(tmp_path: Path, root_dir: Path) -> None:
    path = tmp_path / "agent-prefix.kv"
    with engine_of(lesson_model(), token_granular=True) as engine:
        saved = engine.save(PREFIX, path)
    predicted = kv_bytes(layers=4, kv_heads=2, head_dim=32, value_bytes=2, tokens=748)
    assert (saved.num_tokens, saved.kv_bytes, predicted) == (748, 748 * 1024, 748 * 1024)
    assert path.stat().st_size == saved.file_bytes == saved.header_bytes + 4 * 748 + predicted
    assert int.from_bytes(path.read_bytes()[:8], "little") + 8 == saved.header_bytes
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SECOND_PROCESS), str(path)],
        capture_output=True, text=True, check=True, cwd=root_dir,
    )  # fmt: skip
    assert json.loads(run.stdout) == [748, 753, 748, 5, True]


def test_lesson_11_an_8b_model() -> None:
    """128 KiB a token: 93.5 MiB, 32.7 ms at 3 GB/s, against 12 TFLOP of arithmetic."""
    size = kv_bytes(layers=32, kv_heads=8, head_dim=128, value_bytes=2, tokens=748)
    assert (size / 748, size / 2**20, round(size / 3e9 * 1e3, 1)) == (128 * 1024, 93.5, 32.7)


@pytest.mark.parametrize("kind", ["hash", "radix"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_a_restored_prefix_answers_as_a_computed_one(
    tmp_path: Path, kind: PrefixCacheKind, family: str
) -> None:
    model = random_model(family)  # type: ignore[arg-type]
    with engine_of(model, prefix_cache=kind, snapshot_dir=tmp_path) as engine:
        assert engine.save(PREFIX[:100], "prefix").num_tokens == 96
        wanted = engine.generate(PREFIX[:100] + QUESTION, GREEDY, reuse=False)
    with engine_of(model, prefix_cache=kind, snapshot_dir=tmp_path) as engine:
        assert engine.restore("prefix").findable_tokens == 96
        assert engine.restore("prefix").findable_tokens == 96  # what is there already stays
        result = engine.generate(PREFIX[:100] + QUESTION, GREEDY)
        assert (result.cached_tokens, result.computed_tokens) == (96, 9)
        assert result.token_ids == wanted.token_ids


def test_a_part_of_a_block_is_saved_where_it_can_be_found(tmp_path: Path) -> None:
    with engine_of(token_granular=True) as engine:
        assert engine.save(PREFIX[:101], tmp_path / "prefix").num_tokens == 101
    with engine_of() as engine:  # this one finds whole blocks only
        assert engine.restore(tmp_path / "prefix").findable_tokens == 96
    with engine_of(block_size=4) as engine:  # files hold tokens, not blocks
        assert engine.restore(tmp_path / "prefix").findable_tokens == 100


def test_any_safetensors_reader_opens_it(saved: Path) -> None:
    with safe_open(saved, framework="pt") as file:
        assert file.get_tensor("token_ids").tolist() == PREFIX[:96]
        assert file.get_tensor("layers.3.values").shape == (96, 2, 16)
        assert file.metadata()["dtype"] == "float32"


def test_every_changed_byte_is_noticed(saved: Path) -> None:
    whole = bytearray(saved.read_bytes())
    header = int.from_bytes(whole[:8], "little") + 8
    random = Random(11)
    places = [*range(8), *(random.randrange(header) for _ in range(142))]
    places += [random.randrange(len(whole)) for _ in range(150)]
    assert len(places) == 300
    for place in places:
        wrong = bytearray(whole)
        wrong[place] ^= 1 << random.randrange(8)
        saved.write_bytes(wrong)
        with pytest.raises(SnapshotError, match=r"prefix\.kv: "):
            read_snapshot(saved)
    saved.write_bytes(whole)
    read_snapshot(saved)


@pytest.mark.parametrize("length", [0, 5, 8, 300, -1])
def test_a_file_that_is_cut_off_is_refused(saved: Path, length: int) -> None:
    saved.write_bytes(saved.read_bytes()[:length])
    with (
        engine_of() as engine,
        pytest.raises(SnapshotError, match=r"cut off|damaged|can't be read|no snapshot"),
    ):
        engine.restore(saved)


def test_other_models_are_refused(saved: Path) -> None:
    others = {
        "model is": random_model("llama", seed=1),
        "dtype is|model is": random_model("llama", dtype=torch.bfloat16),
    }
    for message, model in others.items():
        with engine_of(model) as engine, pytest.raises(SnapshotError, match=message):
            engine.restore(saved)


def test_one_changed_weight_is_another_model() -> None:
    class Weights:
        def __init__(self, change: float) -> None:
            from agentctx_engine.models.random_model import RandomWeights

            self._weights, self._change = RandomWeights(random_config("llama"), 0), change
            self.config = self._weights.config

        def tensor(self, name: str) -> torch.Tensor:
            tensor = self._weights.tensor(name)
            if name == "layers.2.down":
                tensor[5, 7] += self._change
            return tensor

    same, other = Model(Weights(0.0)), Model(Weights(1e-3))
    assert same.fingerprint == random_model("llama").fingerprint != other.fingerprint


def test_another_version_is_refused(saved: Path) -> None:
    data = saved.read_bytes()
    saved.write_bytes(data.replace(b'"version":"1"', b'"version":"2"'))
    with engine_of() as engine, pytest.raises(SnapshotError, match="version '2', this engine reads 1"):
        engine.restore(saved)


@pytest.mark.parametrize("name", ["", "a/b", "..", "../x", "a\\b", ".hidden", "c:x", "a\0b"])
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    with engine_of(snapshot_dir=tmp_path) as engine:
        for call in (lambda: engine.save(PREFIX[:32], name), lambda: engine.restore(name)):
            with pytest.raises(SnapshotError, match="no name for a snapshot"):
                call()
    assert list(tmp_path.iterdir()) == []


def test_a_name_needs_a_directory(tmp_path: Path) -> None:
    with engine_of() as engine, pytest.raises(SnapshotError, match="set it, or give a Path"):
        engine.save(PREFIX[:32], "prefix")


def test_what_cannot_be_kept_is_said(tmp_path: Path, saved: Path) -> None:
    with engine_of() as engine:
        with pytest.raises(SnapshotError, match="too short"):
            engine.save([1, 2, 3], tmp_path / "short")
        with pytest.raises(SnapshotError, match="can't be written"):
            engine.save(PREFIX[:32], tmp_path / "nowhere" / "prefix")
        with pytest.raises(SnapshotError, match="can't be read"):
            engine.restore(tmp_path / "missing")
    with (
        Engine(random_model("llama"), num_blocks=3) as small,
        pytest.raises(EngineMemoryError, match="raise num_blocks"),
    ):
        small.restore(saved)


def test_an_engine_that_reuses_nothing_says_so(saved: Path) -> None:
    with engine_of(prefix_cache="none") as engine:
        for call in (lambda: engine.save(PREFIX[:32], saved), lambda: engine.restore(saved)):
            with pytest.raises(SnapshotError, match="reuses nothing"):
                call()


def test_a_snapshot_belongs_to_its_salt(tmp_path: Path) -> None:
    with engine_of() as engine:
        engine.save(PREFIX[:64], tmp_path / "a", cache_salt="a")
    for salt in ("b", None, ""):
        with engine_of() as engine:
            with pytest.raises(SnapshotError, match="another cache_salt"):
                engine.restore(tmp_path / "a", cache_salt=salt)
            assert engine.match(PREFIX[:65], cache_salt=salt).hit_tokens == 0
    with engine_of() as engine:
        engine.restore(tmp_path / "a", cache_salt="a")
        assert engine.match(PREFIX[:65], cache_salt="a").hit_tokens == 64
        assert engine.match(PREFIX[:65]).hit_tokens == 0
    assert b"cache_salt" not in (tmp_path / "a").read_bytes()


SAVE_FOR_EVER = """
    import sys
    from pathlib import Path
    from tests.engine.test_engine_snapshots import PREFIX, engine_of
    with engine_of() as engine:
        print("ready", flush=True)
        while True:
            for number in range(3):
                engine.save(PREFIX[number:number + 96], Path(sys.argv[1]) / f"prefix-{number}")
"""


def test_killed_while_saving_every_file_is_whole(tmp_path: Path) -> None:
    for delay in (0.05, 0.11, 0.23):
        kill_while_writing(SAVE_FOR_EVER, tmp_path, (tmp_path / "prefix-0").exists, delay)
        for file in tmp_path.iterdir():
            if not is_temporary(file):
                assert len(read_snapshot(file).token_ids) == 96
