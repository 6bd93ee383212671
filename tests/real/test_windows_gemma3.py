"""Gemma 3 (window 512) on a live llama-server: what its sliding windows spare, by the CacheModel, with checkpoints and without."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from agentctx.backends.backend import Options
from agentctx.backends.http import HttpBackend
from agentctx.backends.llama_server import LlamaCompletion
from agentctx.caches.model import Arrival, CacheModel
from agentctx.caches.registry import parse_cache
from agentctx.messages import Request
from agentctx.rendering import Prompt

from .conftest import StartServer

pytestmark = [pytest.mark.real, pytest.mark.slow, pytest.mark.xdist_group("gemma3")]

CONTEXT = 4096
REQUESTS = 20  # for each of the three settings
LONGEST = 800  # tokens of a random request: longer than the window
CACHE = f"llama-server:1,ram=0,ctx={CONTEXT},window=512"
SETTINGS = {
    "no checkpoints": ({"n_ctx_checkpoints": 0}, f"{CACHE},checkpoints=0"),
    "default": ({}, CACHE),
    "swa-full": ({"swa_full": True}, f"{CACHE},swa_full=1"),
}
# 1,841 tokens, then 720 that share 700, then 730 that extend the 720.
EXAMPLE_12 = {"no checkpoints": [0, 0, 720], "default": [0, 0, 720], "swa-full": [0, 700, 720]}


def send(backend: HttpBackend, cache: CacheModel, ids: list[int], options: Options) -> tuple[int, int | None]:
    """One request: what the model of the cache said before, and what the server did."""
    prompt = Prompt(np.asarray(ids, np.int32), "", (), Request())
    arrival = Arrival(cache_prompt=options.cache_prompt)
    predicted = cache.predict(prompt.token_ids, arrival)
    completion = backend.complete(prompt, options)
    assert completion.reply_ids is not None
    cache.commit(prompt.token_ids, completion.reply_ids, arrival)
    assert completion.usage.prompt == len(ids)
    return predicted.cached, completion.usage.cached


@pytest.mark.parametrize("setting", SETTINGS)
def test_example_12_and_branching_requests(
    setting: str, gemma3_gguf: Path, start_server: StartServer
) -> None:
    switches, spec = SETTINGS[setting]
    server = start_server(gemma3_gguf, n_ctx=CONTEXT, n_parallel=1, cache_ram_mib=0, **switches)
    cache = parse_cache(spec)
    draw = random.Random(len(setting))

    def tokens(count: int) -> list[int]:
        return [draw.randrange(1000, 200_000) for _ in range(count)]

    with HttpBackend(LlamaCompletion(), server.url) as backend:
        one = Options(max_tokens=1, temperature=0.0)
        long = tokens(1841)
        short = [*long[:700], *tokens(20)]
        seen = [send(backend, cache, ids, one) for ids in (long, short, [*short, *tokens(10)])]
        assert [observed for _, observed in seen] == EXAMPLE_12[setting]
        assert [predicted for predicted, _ in seen] == EXAMPLE_12[setting]

        known = [short]
        for number in range(REQUESTS):
            stem = draw.choice(known[-4:])
            cut = len(stem) if draw.random() < 0.5 else draw.randrange(1, len(stem) + 1)
            ids = [*stem[:cut], *tokens(draw.choice([0, 1, 5, 30, 120, 400]))][:LONGEST]
            options = Options(
                max_tokens=draw.choice([1, 4, 12]),
                temperature=1.0,
                seed=number,
                cache_prompt=draw.random() > 0.05,
            )
            predicted, observed = send(backend, cache, ids, options)
            assert observed == predicted, (setting, number, len(stem), cut, len(ids))
            known.append(ids)
