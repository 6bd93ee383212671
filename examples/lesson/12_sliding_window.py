"""Example 12: what a model with a sliding window can reuse of a prefix that lies far behind.

    python examples/lesson/12_sliding_window.py                        # three settings of llama-server, predicted
    python examples/lesson/12_sliding_window.py http://127.0.0.1:8080  # and what a running one does

The server: llama-server with -np 1 -c 4096 --cache-ram 0 and a model whose window is 128 tokens. Two prompts share 350
tokens; the first goes on for 1,491 more, so that the shared end has long left the window when the second comes.
"""

from __future__ import annotations

import sys

import numpy as np

from agentctx.backends.backend import Options
from agentctx.backends.http import HttpBackend
from agentctx.backends.llama_server import LlamaCompletion
from agentctx.messages import Request
from agentctx.rendering.prompt import Prompt
from agentctx_engine.memory.slot_cache import SlotCache
from agentctx_engine.memory.slot_settings import ModelMemory, ServerSettings

WINDOW = 128
SHARED = [i * i % 251 for i in range(350)]
LONG = SHARED + [(3 * i + 1) % 256 for i in range(1491)]
SHORT = [*SHARED, 255, 254, 253, 252]
REPLY = [7]


def settings(*, checkpoints: int = 32, swa_full: bool = False) -> ServerSettings:
    return ServerSettings(
        n_slots=1,
        kv_unified=False,
        n_ctx=4096,
        cache_ram_mib=0,
        ctx_checkpoints=checkpoints,
        swa_full=swa_full,
    )


memory = ModelMemory(window=WINDOW)
print(f"cells of a local layer: {settings().window_cells(memory)}\n")
print(f"{'':<20} {'prompt':>7} {'cache_n':>8} {'prompt_n':>9}")
for name, given in (
    ("no checkpoints", settings(checkpoints=0)),
    ("default", settings()),
    ("--swa-full", settings(checkpoints=0, swa_full=True)),
):
    cache = SlotCache(given, memory)
    for prompt in (LONG, SHORT):
        answer = cache.serve(prompt, REPLY).answer
        print(f"{name:<20} {len(prompt):>7} {answer.cache_n:>8} {answer.prompt_n:>9}")

cache = SlotCache(settings(), memory)
cache.serve(LONG, REPLY)
[slot] = cache.server.slots
kept = [(checkpoint.oldest, checkpoint.newest) for checkpoint in slot.prompt.checkpoints]
print(f"\ncheckpoints that the first prompt leaves, by positions: {kept}")
print(f"to go on from {len(SHARED)} one must begin at {len(SHARED) - WINDOW} or before")
answer = cache.serve([*LONG, *REPLY, 8, 9], REPLY).answer
print(f"an append-only follow-up of {len(LONG) + 3} tokens: {answer.cache_n} cached")

if len(sys.argv) > 1:
    print(f"\nobserved at {sys.argv[1]}")
    with HttpBackend(LlamaCompletion(), sys.argv[1]) as server:
        for prompt in (LONG, SHORT):
            sent = Prompt(np.array(prompt, np.int32), "", (), Request())
            usage = server.complete(sent, Options(max_tokens=1, temperature=0.0)).usage
            assert usage.cached is not None
            print(f"{'':<20} {len(prompt):>7} {usage.cached:>8} {len(prompt) - usage.cached:>9}")
