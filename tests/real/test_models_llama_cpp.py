"""Same text as llama.cpp: a real server on SmolLM2 as a float32 GGUF, and ours on the quantized file that it was made from.

llama.cpp is set to compute in float32 throughout. Its defaults keep keys and values in 16 bits, and its flash attention rounds too: both
move log-probabilities by up to 0.005 here, enough to flip a greedy choice now and then.

The server has no log-probabilities of a prompt. Two exact ways around that, each checked by the other:

- With embeddings on and no pooling it gives the last norm's output for every token of a prompt. The output matrix, which is the file's
  own, makes logits of them: that is one matrix product outside the server.
- A ``logit_bias`` forces the next token. The log-probability reported for it is the model's own, before the bias (``post_sampling_probs``
  off), over the whole vocabulary.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from agentctx.rendering.load import load_tokenizer
from agentctx_engine.models import Model, load_model, open_weights
from agentctx_engine.runtime import Engine, SamplingParams
from tests.engine.reference_models import log_probabilities

from .conftest import StartServer
from .continuations import openings
from .float32_gguf import write_float32

pytestmark = [pytest.mark.real, pytest.mark.slow]

WINDOW = 256
BOUND = 1e-3  # of any log-probability
# The whole lesson has 21,578 tokens, which takes about ten minutes.
TOKENS = int(os.environ.get("AGENTCTX_PERPLEXITY_TOKENS", "1024"))
FLOAT32: dict[str, Any] = {"cache_type_k": 0, "cache_type_v": 0, "flash_attn_type": 0}  # 0: F32, F32, off


@pytest.fixture(scope="module")
def float32_gguf(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_float32(smollm2_gguf, tmp_path_factory.mktemp("float32") / "smollm2-f32.gguf")


@pytest.fixture(scope="module")
def model(smollm2_gguf: Path) -> Model:
    torch.set_num_threads(1)
    return load_model(smollm2_gguf)


@pytest.fixture(scope="module")
def lesson(smollm2_gguf: Path, shared_dir: Path) -> list[int]:
    text = (shared_dir / "reference" / "paged-kv-and-prefix-caching.txt").read_text(encoding="utf-8")
    return [int(token) for token in load_tokenizer(str(smollm2_gguf)).encode(text)]


def windows(tokens: list[int]) -> Iterator[list[int]]:
    for start in range(0, min(TOKENS, len(tokens)), WINDOW):
        yield tokens[start : start + WINDOW]


def of_text(log_probabilities: Tensor, tokens: list[int]) -> Tensor:
    """Those of the text's own tokens, from the second on."""
    return log_probabilities[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]


def in_float64(gguf: Path) -> Any:
    """The same weights in transformers, computed in float64."""
    return AutoModelForCausalLM.from_pretrained(
        str(gguf.parent), gguf_file=gguf.name, dtype=torch.float32
    ).double()


def test_greedy_continuations(
    start_server: StartServer, float32_gguf: Path, smollm2_gguf: Path, model: Model
) -> None:
    """10 prompts, 48 tokens, temperature 0."""
    prompts = openings(smollm2_gguf, begin=False)
    server = start_server(float32_gguf, n_parallel=len(prompts), n_ctx=128 * len(prompts), **FLOAT32)
    greedy = {"temperature": 0, "samplers": ["temperature"], "n_predict": 48}
    answers = server.post("/completion", {"prompt": prompts, "return_tokens": True, **greedy})
    with Engine(model, num_blocks=128) as engine:
        results = engine.generate_many(prompts, SamplingParams(max_tokens=48, stop_token_ids=()))
    assert [len(answer["tokens"]) for answer in answers] == [48] * 10
    assert [list(result.token_ids) for result in results] == [answer["tokens"] for answer in answers]


def test_perplexity_of_the_lesson(
    start_server: StartServer,
    float32_gguf: Path,
    smollm2_gguf: Path,
    model: Model,
    lesson: list[int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In windows of 256 tokens. Not only the text's own tokens: every log-probability of every token is near the server's.

    Where one isn't, float64 says whose rounding it is (in the whole text: one window, llama.cpp off by 1.7e-3, ours by 6e-4).
    """
    server = start_server(
        float32_gguf, n_ctx=WINDOW, n_batch=WINDOW, n_ubatch=WINDOW, embedding=True, pooling_type=0, **FLOAT32
    )
    output = open_weights(float32_gguf).tensor("embedding")  # SmolLM2's are tied
    ours, theirs, difference, far = [], [], 0.0, []
    for tokens in windows(lesson):
        answer = server.post("/embedding", {"content": tokens, "embd_normalize": -1})
        expected = torch.log_softmax(torch.tensor(answer[0]["embedding"]) @ output.T, dim=-1)
        actual = log_probabilities(model, tokens, chunk=100)
        apart = float((actual - expected).abs().max())
        difference = max(difference, apart)
        if apart > BOUND:
            far.append((tokens, actual))
        ours.append(of_text(actual, tokens))
        theirs.append(of_text(expected, tokens))
    perplexities = [math.exp(-float(torch.cat(part).double().mean())) for part in (ours, theirs)]
    with capsys.disabled():
        print(
            f"\n  SmolLM2 on {min(TOKENS, len(lesson)):,} tokens of the lesson: perplexity {perplexities[0]:.4f}, "
            f"llama.cpp {perplexities[1]:.4f}; largest difference of log-probabilities {difference:.1e}"
        )
    assert perplexities[0] == pytest.approx(perplexities[1], rel=0.005)
    exact = in_float64(smollm2_gguf) if far else None
    for tokens, actual in far:
        with torch.no_grad():
            expected = torch.log_softmax(exact(torch.tensor([tokens])).logits[0], dim=-1)
        assert float((actual - expected).abs().max()) <= BOUND


def test_the_servers_own_log_probabilities(
    start_server: StartServer, float32_gguf: Path, model: Model, lesson: list[int]
) -> None:
    """Of the text's tokens, each forced in turn: the output matrix and the softmax are the server's too."""
    tokens = lesson[:32]
    server = start_server(float32_gguf, n_ctx=WINDOW, **FLOAT32)
    theirs = []
    for count in range(1, len(tokens)):
        forced = {"logit_bias": [[tokens[count], 1000]], "n_predict": 1, "n_probs": 1, "return_tokens": True}
        answer = server.post("/completion", {"prompt": tokens[:count], "temperature": 0, **forced})
        assert answer["tokens"] == [tokens[count]]
        theirs.append(answer["completion_probabilities"][0]["logprob"])
    ours = of_text(log_probabilities(model, tokens), tokens)
    assert float((ours - torch.tensor(theirs)).abs().max()) <= 1e-3
