"""Every type of tensor that a GGUF file may hold, from blocks of random bytes, against gguf's own reader and dequantization."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentctx_engine.models import CheckpointError, gguf_file, load_model, open_weights

from .gguf_models import ROWS, WIDTH, write_gguf

TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
GATE = "blk.0.ffn_gate.weight"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # random scales overflow
@pytest.mark.parametrize("at_once", [gguf_file._ELEMENTS_AT_ONCE, WIDTH + 1], ids=["whole", "by rows"])
@pytest.mark.parametrize("name", TYPES)
def test_a_tensor_of_random_blocks(
    name: str, at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = GGMLQuantizationType[name]
    block, size = GGML_QUANT_SIZES[kind]
    row = WIDTH // block * size
    monkeypatch.setattr(gguf_file, "_ELEMENTS_AT_ONCE", at_once)

    @settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(data=st.binary(min_size=ROWS * row, max_size=ROWS * row))
    def check(data: bytes) -> None:
        blocks = np.frombuffer(data, np.uint8).reshape(ROWS, row)
        path = write_gguf(tmp_path / "model.gguf", tensors={GATE: (blocks, kind)})
        stored = next(t for t in gguf.GGUFReader(path).tensors if t.name == GATE)
        expected = gguf.dequantize(stored.data, stored.tensor_type)
        actual = open_weights(path).tensor("layers.0.gate").float().numpy()
        assert actual.shape == (ROWS, WIDTH)
        assert np.array_equal(actual, expected.reshape(ROWS, WIDTH), equal_nan=True)

    check()


def test_a_type_that_nobody_dequantizes_is_named(tmp_path: Path) -> None:
    kind = GGMLQuantizationType.Q8_K
    row = GGML_QUANT_SIZES[kind][1]
    path = write_gguf(tmp_path / "model.gguf", tensors={GATE: (np.zeros((ROWS, row), np.uint8), kind)})
    with pytest.raises(CheckpointError, match=rf"model\.gguf, tensor '{GATE}': has type Q8_K"):
        load_model(path)
