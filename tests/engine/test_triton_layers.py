"""The kernels around attention behind the engine: norms, rotation, gate, in Triton's interpreter."""

from __future__ import annotations

from functools import cache

import pytest

from agentctx_engine.models import Family, Model, random_config
from agentctx_engine.models.random_model import RandomWeights
from agentctx_engine.runtime.config import EngineConfig

from .same_runs import assert_same_runs
from .schedules import Arrival, Schedule, run
from .tape import TapeRecorder
from .test_decode_graphs import recorded

pytest.importorskip("triton")
from agentctx_engine.attention.named import attention_backend
from agentctx_engine.attention.triton_backend import TritonAttention


@cache
def model(family: Family, *, fused: bool) -> Model:
    layers = 3 if family == "gemma3" else 2
    config = random_config(family, vocab_size=128, num_layers=layers, num_heads=2, num_kv_heads=1, window=6)
    attention = TritonAttention(fused=True) if fused else attention_backend("reference")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTCTX_ENGINE_KERNELS", "torch")
        return Model(RandomWeights(config, seed=1), attention=attention)


@pytest.mark.parametrize("family", ["llama", "gemma3"])  # of which the second has every norm there is
def test_a_model_answers_the_same_with_them(family: Family) -> None:
    """Chunks, a hit and recorded decodes."""
    config = EngineConfig(block_size=4, num_blocks=12, max_step_tokens=8, max_samples=2)
    text = tuple(range(1, 11))
    schedule = Schedule(config, (Arrival(text, 3, step=0), Arrival((*text[:5], 5), 2, step=2)))
    assert model(family, fused=True).kernels == "triton"
    ours = recorded(model(family, fused=True), schedule, TapeRecorder())
    assert ours.core.runner.graphs is not None
    assert ours.core.runner.graphs.recorded
    assert_same_runs(ours, run(model(family, fused=False), schedule, keep_logits=True))


def test_they_are_brought_along_where_they_are_compiled() -> None:
    # Not in the interpreter, which would take its time for each row.
    assert TritonAttention().layer_kernels is None
    assert model("llama", fused=False).kernels == "torch"
