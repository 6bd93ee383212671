"""Checkpoints are untrusted: whatever is wrong with one is a ``CheckpointError`` that names the file and the tensor or field."""

from __future__ import annotations

import json
import pickle
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from agentctx_engine.models import CheckpointError, load_model
from agentctx_engine.models.gguf_header import read_header

from .gguf_models import HEADS, ROWS, VOCABULARY, WIDTH, write_gguf

MANY = settings(max_examples=150, deadline=None, database=None, suppress_health_check=list(HealthCheck))
ONES = np.ones((2, 2), np.float32)


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = write_gguf(tmp_path_factory.mktemp("gguf") / "model.gguf")
    load_model(path)
    return path.read_bytes()


def loads_or_says_why(path: Path) -> None:
    try:
        load_model(path)
    except CheckpointError as error:
        assert str(path.name) in str(error)  # noqa: PT017


def test_a_gguf_file_cut_anywhere(gguf_bytes: bytes, tmp_path: Path) -> None:
    path = tmp_path / "cut.gguf"

    @MANY
    @given(length=st.one_of(st.integers(0, 2000), st.integers(0, len(gguf_bytes) - 33)))
    def check(length: int) -> None:
        path.write_bytes(gguf_bytes[:length])
        with pytest.raises(CheckpointError, match=r"cut\.gguf"):
            load_model(path)

    check()


def test_a_gguf_header_with_other_bytes(gguf_bytes: bytes, tmp_path: Path) -> None:
    """Counts, lengths, types, offsets and shapes of any value: it loads, or the file is named. No other error, no huge allocation."""
    path = tmp_path / "changed.gguf"
    path.write_bytes(gguf_bytes)
    header = min(info.start for info in read_header(path).tensors.values())

    @MANY
    @given(
        at=st.integers(4, header - 8),
        value=st.one_of(st.binary(min_size=1, max_size=8), st.just(b"\xff" * 8)),
    )
    def check(at: int, value: bytes) -> None:
        path.write_bytes(gguf_bytes[:at] + value + gguf_bytes[at + len(value) :])
        loads_or_says_why(path)

    check()


GGUF_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "a missing tensor": ({"tensors": {"blk.0.ffn_up.weight": None}}, "tensor 'blk.0.ffn_up.weight': is missing"),
    "a missing norm": ({"tensors": {"output_norm.weight": None}}, "tensor 'output_norm.weight': is missing"),
    "no embedding": ({"tensors": {"token_embd.weight": None}}, "tensor 'token_embd.weight': is missing"),
    "a wrong shape": (
        {"tensors": {"blk.0.ffn_up.weight": ONES}},
        r"tensor 'blk.0.ffn_up.weight': has shape \[2, 2\], the header's settings say \[3, 256\]",
    ),
    "an unknown architecture": ({"architecture": "mamba"}, "field 'general.architecture' is 'mamba'"),
    "another rope scaling": (
        {"settings": {"rope.scaling.type": "longrope", "rope.scaling.factor": 2}},
        "field 'llama.rope.scaling.type' is 'longrope'",
    ),
    "heads that don't share": ({"settings": {"attention.head_count_kv": 3}}, "4 heads can't share 3 KV heads"),
    "a partial rotation": ({"settings": {"rope.dimension_count": 32}}, "field 'llama.rope.dimension_count'"),
    "too few rope divisors": (
        {"tensors": {"rope_freqs.weight": np.ones(7, np.float32)}},
        r"tensor 'rope_freqs.weight': has shape \[7\], a head has 32 pairs",
    ),
    "a rope divisor of zero": (
        {"tensors": {"rope_freqs.weight": np.zeros(32, np.float32)}},
        "tensor 'rope_freqs.weight': has a value that is not a positive number",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", GGUF_FAULTS)
def test_a_gguf_file_with(fault: str, tmp_path: Path) -> None:
    changes, message = GGUF_FAULTS[fault]
    path = write_gguf(tmp_path / "model.gguf", **changes)
    with pytest.raises(CheckpointError, match=rf"model\.gguf.*{message}"):
        load_model(path)


@pytest.mark.parametrize("data", [b"", b"GGUF", b"PK\x03\x04 a zip", b"GGUF" + struct.pack("<IQQ", 9, 0, 0)])
def test_no_gguf_file(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=r"model\.gguf"):
        load_model(path)


CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": ROWS,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 128,
    "tie_word_embeddings": True,
}
SAFETENSORS_SHAPES = {
    "model.embed_tokens.weight": (VOCABULARY, WIDTH),
    "model.layers.0.input_layernorm.weight": (WIDTH,),
    "model.layers.0.self_attn.q_proj.weight": (WIDTH, WIDTH),
    "model.layers.0.self_attn.k_proj.weight": (WIDTH, WIDTH),
    "model.layers.0.self_attn.v_proj.weight": (WIDTH, WIDTH),
    "model.layers.0.self_attn.o_proj.weight": (WIDTH, WIDTH),
    "model.layers.0.post_attention_layernorm.weight": (WIDTH,),
    "model.layers.0.mlp.gate_proj.weight": (ROWS, WIDTH),
    "model.layers.0.mlp.up_proj.weight": (ROWS, WIDTH),
    "model.layers.0.mlp.down_proj.weight": (WIDTH, ROWS),
    "model.norm.weight": (WIDTH,),
}
UP = "model.layers.0.mlp.up_proj.weight"


def write_directory(
    path: Path,
    config: Mapping[str, Any] | None = None,
    tensors: Mapping[str, torch.Tensor | None] | None = None,
) -> Path:
    """A Llama of one layer in Hugging Face format; what is ``None`` is left out."""
    settings = {**CONFIG, **(config or {})}
    (path / "config.json").write_text(json.dumps({k: v for k, v in settings.items() if v is not None}))
    changed = {name: torch.ones(shape) for name, shape in SAFETENSORS_SHAPES.items()} | dict(tensors or {})
    save_file(
        {name: value for name, value in changed.items() if value is not None}, path / "model.safetensors"
    )
    return path


DIRECTORY_FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "a missing tensor": ({"tensors": {UP: None}}, f"tensor '{UP}': is in none"),
    "a wrong shape": (
        {"tensors": {UP: torch.ones(2, 2)}},
        rf"model\.safetensors, tensor '{UP}': has shape \[2, 2\], config.json says \[3, 256\]",
    ),
    "whole numbers": ({"tensors": {UP: torch.ones(ROWS, WIDTH, dtype=torch.int8)}}, f"tensor '{UP}': has type torch.int8"),
    "an unknown architecture": ({"config": {"model_type": "mamba"}}, r"config\.json: field 'model_type' is 'mamba'"),
    "a missing field": ({"config": {"hidden_size": None}}, r"config\.json: field 'hidden_size' is missing"),
    "a field of the wrong kind": ({"config": {"hidden_size": "256"}}, r"config\.json: field 'hidden_size' is '256'"),
    "a negative size": ({"config": {"vocab_size": -1}}, r"config\.json: field 'vocab_size' is -1"),
    "quantized weights": (
        {"config": {"quantization_config": {"quant_method": "awq"}}},
        r"config\.json: field 'quantization_config'",
    ),
    "another rope": (
        {"config": {"rope_scaling": {"rope_type": "longrope", "factor": 2.0}}},
        r"config\.json: field 'rope_type' is 'longrope'",
    ),
    "a rope that turns nothing": (
        {"config": {"rope_theta": 1.0}},
        r"config\.json: has settings that don't fit: a rope base of 1\.0",
    ),
    "an empty blend": (
        {"config": {"rope_scaling": {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}}},
        r"config\.json: has settings that don't fit: llama3's low_freq_factor",
    ),
    "an odd head": ({"config": {"head_dim": 63}}, r"config\.json: has settings that don't fit: a head of 63"),
}  # fmt: skip


@pytest.mark.parametrize("fault", DIRECTORY_FAULTS)
def test_a_directory_with(fault: str, tmp_path: Path) -> None:
    changes, message = DIRECTORY_FAULTS[fault]
    with pytest.raises(CheckpointError, match=message) as caught:
        load_model(write_directory(tmp_path, **changes))
    assert str(caught.value).count(str(tmp_path)) == 1  # one error, not one about another


def test_a_safetensors_file_cut_or_changed(tmp_path: Path) -> None:
    weights = write_directory(tmp_path) / "model.safetensors"
    load_model(tmp_path)
    whole = weights.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")

    @MANY
    @given(length=st.integers(0, len(whole) - 1))
    def cut(length: int) -> None:
        weights.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            load_model(tmp_path)

    @MANY
    @given(at=st.integers(0, header - 1), value=st.binary(min_size=1, max_size=8))
    def change(at: int, value: bytes) -> None:
        weights.write_bytes(whole[:at] + value + whole[at + len(value) :])
        try:
            load_model(tmp_path)
        except CheckpointError as error:
            assert str(tmp_path) in str(error)  # noqa: PT017

    cut()
    change()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, '{"model_type": 3}', "\ud800"])
def test_a_broken_config(text: str, tmp_path: Path) -> None:
    write_directory(tmp_path)
    (tmp_path / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(CheckpointError, match=r"config\.json"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    "file", ["../outside.safetensors", "/etc/passwd", "pytorch_model.bin", 3, "gone.safetensors"]
)
def test_an_index_that_points_elsewhere(file: object, tmp_path: Path) -> None:
    model = write_directory(tmp_path)
    (model / "model.safetensors.index.json").write_text(
        json.dumps(
            {
                "weight_map": {
                    **dict.fromkeys(load_file(model / "model.safetensors"), "model.safetensors"),
                    UP: file,
                }
            }
        )
    )
    with pytest.raises(CheckpointError, match=f"tensor '{UP}'"):
        load_model(model)


class Trap:
    """Its pickle makes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.path,)


def test_pickled_weights_are_refused_unread(tmp_path: Path) -> None:
    write_directory(tmp_path)
    sprung = tmp_path / "sprung"
    data = pickle.dumps(Trap(sprung))
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"has no model\.safetensors; convert"):
        load_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"model\.safetensors: can't be read"):
        load_model(tmp_path)
    (tmp_path / "model.gguf").write_bytes(data)
    with pytest.raises(CheckpointError, match="is not a GGUF file"):
        load_model(tmp_path / "model.gguf")
    assert not sprung.exists()


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not there; give a GGUF file or a directory"):
        load_model(tmp_path / "gone")
