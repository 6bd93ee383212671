"""Example 10: what a server with one slot reuses of an agent's turns, and what a clock in the system prompt does to it.

    python examples/lesson/10_slot_cache.py                          # on the bundled engine
    python examples/lesson/10_slot_cache.py http://127.0.0.1:8080    # on a llama-server started with -np 1 --cache-ram 0

The prompts are token ids, the same for every model. ``cache_n`` is predicted before each turn and observed after it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from agentctx.backends.backend import Backend, Options
from agentctx.backends.engine import tiny_engine
from agentctx.backends.http import HttpBackend
from agentctx.backends.llama_server import LlamaCompletion
from agentctx.caches.registry import parse_cache
from agentctx.messages import Request
from agentctx.rendering.prompt import Prompt, TokenIds

REPLY = 8
OPENING = [1, 2, 3]  # every template opens with the same few tokens
CLOCK = [11, 12, 13, 14, 15, 16, 17]  # "Time: 10:0", before the minute


def prompts(clock: bool) -> Iterator[TokenIds]:
    """Four turns of 34, 56, 78 and 100 tokens; with a clock 12 more. A generator: each prompt takes the reply before it."""
    body = list(range(50, 50 + (35 if clock else 31)))
    reply: TokenIds | None = None
    for turn in range(4):
        if reply is not None:
            body += [
                *reply.tolist(),
                *range(100 + 14 * turn, 114 + 14 * turn),
            ]  # the reply, then 14 new tokens
        head = [*OPENING, *CLOCK, 30 + turn] if clock else OPENING
        reply = yield np.array(head + body, np.int32)


@contextmanager
def backend() -> Iterator[tuple[Backend, str]]:
    if len(sys.argv) > 1:
        with HttpBackend(LlamaCompletion(), sys.argv[1]) as server:
            yield server, "llama-server:slots=1,ram=0"
    else:
        # Reuse token by token, as a slot does: a radix tree with pages of one token.
        with tiny_engine(256, block_size=1, radix=True) as engine:
            yield engine, "radix:page=1"


with backend() as (server, spec):
    cache = parse_cache(spec)
    options = Options(
        max_tokens=REPLY, temperature=0.0, extra={"ignore_eos": True} if len(sys.argv) > 1 else {}
    )
    for name, clock in (("append-only", False), ("a clock in the system prompt", True)):
        print(f"{name}\n{'prompt':>8} {'predicted':>10} {'cache_n':>8} {'processed':>10}")
        processed = 0
        turns = prompts(clock)
        token_ids = next(turns, None)
        while token_ids is not None:
            predicted = cache.predict(token_ids).cached
            answer = server.complete(Prompt(token_ids, "", (), Request()), options)
            reply, observed = answer.reply_ids, answer.usage.cached
            assert reply is not None
            assert observed is not None
            cache.commit(token_ids, reply)
            processed += len(token_ids) - observed
            print(f"{len(token_ids):>8} {predicted:>10} {observed:>8} {len(token_ids) - observed:>10}")
            try:
                token_ids = turns.send(reply)
            except StopIteration:
                token_ids = None
        print(f"tokens processed: {processed}\n")
