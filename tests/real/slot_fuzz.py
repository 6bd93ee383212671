"""Random conversation trees against a live llama-server, each request predicted before it is sent.

For a long, recorded run: ``python -m tests.real.slot_fuzz --requests 100 --seed 7`` prints one row for each
(model, setting) and ends with code 1 if any prediction was wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from agentctx_engine.memory.host_prompts import HostEntry
from agentctx_engine.memory.slot_cache import SlotCache
from agentctx_engine.memory.slot_settings import ModelMemory, ServerSettings

from . import tiny_gguf
from .llama_server import LlamaServer


@dataclass(frozen=True, slots=True)
class Model:
    """A tiny model: how it is written, and what its memory is. The byte counts are those of its shape, in F16."""

    write: Callable[[Path], Path]
    memory: ModelMemory


MODELS = {
    "full attention": Model(
        tiny_gguf.write_full_attention, ModelMemory(bytes_per_token=140, overhead_bytes=72)
    ),
    "sliding window": Model(
        tiny_gguf.write_sliding_window,
        ModelMemory(
            window=64,
            bytes_per_token=76,
            overhead_bytes=48,
            window_bytes_per_token=332,
            checkpoint_bytes=144,
        ),
    ),
    "hybrid": Model(
        tiny_gguf.write_hybrid,
        ModelMemory(recurrent=True, bytes_per_token=76, overhead_bytes=48, checkpoint_bytes=580),
    ),
}

# n_ctx is small, so that conversations reach it.
_N_CTX = 2048
SETTINGS: dict[str, ServerSettings] = {
    "defaults": ServerSettings(n_ctx=_N_CTX),
    "one slot": ServerSettings(n_ctx=_N_CTX, n_slots=1, kv_unified=False),
    "one slot, no RAM cache": ServerSettings(n_ctx=_N_CTX, n_slots=1, kv_unified=False, cache_ram_mib=0),
    "two separate slots": ServerSettings(n_ctx=_N_CTX, n_slots=2, kv_unified=False),
    "three separate slots": ServerSettings(n_ctx=1000, n_slots=3, kv_unified=False, cache_ram_mib=-1),
    "no RAM cache": ServerSettings(n_ctx=_N_CTX, cache_ram_mib=0),
    "no checkpoints": ServerSettings(n_ctx=_N_CTX, ctx_checkpoints=0),
    "3 checkpoints, step 64": ServerSettings(n_ctx=_N_CTX, ctx_checkpoints=3, checkpoint_min_step=64),
    "similarity 0": ServerSettings(n_ctx=_N_CTX, slot_prompt_similarity=0.0),
    "similarity 0.5": ServerSettings(n_ctx=_N_CTX, slot_prompt_similarity=0.5),
    "small batches": ServerSettings(n_ctx=_N_CTX, n_batch=128, n_ubatch=64),
    "idle slots kept": ServerSettings(n_ctx=_N_CTX, cache_idle_slots=False),
    "unified cells full": ServerSettings(n_ctx=512, cache_ram_mib=0),
    "RAM cache full": ServerSettings(n_ctx=4 * _N_CTX, cache_ram_mib=1),
    "RAM cache unlimited": ServerSettings(n_ctx=1024, cache_ram_mib=-1),
    "swa-full": ServerSettings(n_ctx=_N_CTX, swa_full=True),
    "cache-reuse 16": ServerSettings(n_ctx=_N_CTX, n_slots=2, cache_ram_mib=0, cache_reuse=16),
}

_SWITCHES = {  # field of ServerSettings → field of xllamacpp.CommonParams
    "n_slots": "n_parallel",
    "cache_reuse": "n_cache_reuse",
    "ctx_checkpoints": "n_ctx_checkpoints",
}


def switches(settings: ServerSettings) -> dict[str, Any]:
    """What LlamaServer is started with so that it has these settings."""
    names = (name for name in ServerSettings.__dataclass_fields__ if name != "cache_prompt")
    return {_SWITCHES.get(name, name): getattr(settings, name) for name in names}


@dataclass(slots=True)
class Mistake:
    """A prediction that the server contradicted."""

    request: int
    predicted: tuple[int, int, int]  # slot, cache_n, prompt_n
    observed: tuple[int, int, int]
    context: str


@dataclass(slots=True)
class Tally:
    """One run against one server."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    refused: int = 0
    evicted_tokens: int = 0
    slot_files: int = 0
    mistakes: list[Mistake] = field(default_factory=list)


class Conversations:
    """Grows a random forest of conversations and picks what is sent next."""

    def __init__(self, seed: int, limit: int) -> None:
        self.random = random.Random(seed)
        self.limit = limit
        self.scale = max(1, limit // _N_CTX)  # a larger context gets longer messages
        self.known: list[list[int]] = []
        self._systems = [self.tokens(size * self.scale) for size in (0, 30, 200, 400)]

    def tokens(self, count: int) -> list[int]:
        return [self.random.randrange(256) for _ in range(count)]

    def next_prompt(self) -> list[int]:
        """Append to a conversation, fork, truncate, repeat, cut out its middle, or start one."""
        draw = self.random
        message = self.tokens(draw.choice([1, 2, 5, 20, 60, 150]) * self.scale)
        kind = draw.random()
        if not self.known or kind < 0.12:
            prompt = draw.choice(self._systems) + message
        else:
            base = self._recent()
            cut = draw.randrange(1, len(base) + 1)
            if kind < 0.55:
                prompt = base + message
            elif kind < 0.75:
                prompt = base[:cut] + message
            elif kind < 0.85:
                prompt = base[:cut]
            elif kind < 0.92:
                prompt = list(base)
            elif kind < 0.97:
                prompt = base[:cut] + base[cut + draw.randrange(1, 20) :] + message
            else:
                prompt = message
        # Some prompts stay too long for the context: the server refuses them, and chooses a slot all the same.
        return prompt if draw.random() < 0.03 else prompt[: self.limit - 2]

    def _recent(self) -> list[int]:
        among = self.known[-6:] if self.random.random() < 0.8 else self.known
        return self.random.choice(among)

    def answered(self, prompt: list[int], reply: list[int]) -> None:
        """A reply came; now and then the client renders it differently."""
        if self.random.random() < 0.1:
            reply = self.tokens(len(reply))
        self.known.append(prompt + reply)


def run(
    model_path: Path,
    memory: ModelMemory,
    settings: ServerSettings,
    *,
    requests: int,
    seed: int,
    start: Callable[..., LlamaServer],
) -> Tally:
    """Send ``requests`` random requests to a fresh server and compare each answer with its prediction.

    ``start`` starts the server; it also ends it should this function fail.
    """
    cache = SlotCache(settings, memory)
    conversations = Conversations(seed, settings.slot_ctx)
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        server = start(model_path, **switches(settings), slot_save_path=f"{folder}/")
        files = SlotFiles(server, cache, conversations.random)
        for number in range(requests):
            if conversations.random.random() < 0.05:
                files.step()
            _one_request(number, server, cache, conversations, tally)
            if len(tally.mistakes) > 2:  # from here on, mistakes only follow from mistakes
                break
        server.stop()
    tally.slot_files = files.steps
    tally.evicted_tokens = cache.stats().evicted_tokens
    cache.check()
    return tally


def _one_request(
    number: int, server: LlamaServer, cache: SlotCache, conversations: Conversations, tally: Tally
) -> None:
    draw = conversations.random
    prompt = conversations.next_prompt()
    body: dict[str, Any] = {
        "prompt": prompt,
        "n_predict": draw.choice([0, 1, 2, 5, 12, 30]),
        "return_tokens": True,
        "temperature": 1.0,
        "seed": number,
    }
    options: dict[str, Any] = {}
    if draw.random() < 0.12:
        options["id_slot"] = draw.randrange(cache.server.settings.n_slots)
    if draw.random() < 0.06:
        options["cache_prompt"] = False
    ids = np.array(prompt, dtype=np.int32)
    foreseen = cache.match(ids, **options)
    tally.requests += 1
    if len(prompt) >= cache.server.settings.slot_ctx:
        assert cache.serve(ids, [], **options).answer.refused
        assert server.status_of("/completion", {**body, **options}) == 400
        tally.refused += 1
        return
    lease = cache.commit(ids, **options)
    answer = server.post("/completion", {**body, **options})
    cache.release(lease, answer["tokens"])
    assert foreseen == lease.match
    assert foreseen.hit_tokens == lease.answer.cache_n
    assert foreseen.hit_tokens + sum(tokens for _, tokens in foreseen.lost) == len(prompt)
    predicted = (lease.answer.slot, lease.answer.cache_n, lease.answer.prompt_n)
    observed = (answer["id_slot"], answer["timings"]["cache_n"], answer["timings"]["prompt_n"])
    if predicted != observed:
        tally.mistakes.append(
            Mistake(number, predicted, observed, f"{len(prompt)} tokens, {options}, {lease}")
        )
    if number % 5 == 0:
        held = [slot.prompt.num_tokens for slot in cache.server.slots]
        seen = [slot.get("n_prompt_tokens", 0) for slot in server.get("/slots")]
        # A slot that never served a request reports nothing: it may hold a restored file all the same.
        assert all(ours == theirs or theirs == 0 for ours, theirs in zip(held, seen, strict=True)), (
            held,
            seen,
        )
    tally.prompt_tokens += len(prompt)
    tally.cached_tokens += observed[1]
    conversations.answered(prompt, answer["tokens"])


class SlotFiles:
    """Saves, restores and erases random slots, on the server and in the model of it."""

    def __init__(self, server: LlamaServer, cache: SlotCache, draw: random.Random) -> None:
        self.server, self.cache, self.random = server, cache, draw
        self.saved: dict[str, HostEntry] = {}
        self.steps = 0

    def step(self) -> None:
        slot = self.random.randrange(self.cache.server.settings.n_slots)
        name = f"{self.random.randrange(4)}.bin"
        kind = self.random.random()
        held = self.cache.server.slots[slot].prompt.num_tokens
        if kind < 0.5 and held:
            self.saved[name] = self.cache.save(slot)
            answer = self.server.post(f"/slots/{slot}?action=save", {"filename": name})
            assert answer["n_saved"] == held
        elif kind < 0.9 and name in self.saved:
            self._restore(slot, name)
        elif kind >= 0.9:
            assert self.server.post(f"/slots/{slot}?action=erase", {})["n_erased"] == self.cache.erase(slot)
        else:
            return
        self.steps += 1

    def _restore(self, slot: int, name: str) -> None:
        try:
            self.cache.restore(slot, self.saved[name])
            expected = 200
        except MemoryError:
            expected = 400
        assert self.server.status_of(f"/slots/{slot}?action=restore", {"filename": name}) == expected


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100, help="for each model and setting")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--setting", choices=SETTINGS, action="append")
    options = parser.parse_args()
    requests = mistakes = 0
    print(
        f"{'model':<16}{'setting':<26}{'requests':>9}{'prompt tokens':>15}{'cached':>9}{'evicted':>9}{'wrong':>7}{'s':>7}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for name, model in MODELS.items():
            path = model.write(Path(folder) / f"{name.replace(' ', '-')}.gguf")
            for label in options.setting or SETTINGS:
                began = time.monotonic()
                with ExitStack() as running:
                    tally = run(
                        path,
                        model.memory,
                        SETTINGS[label],
                        requests=options.requests,
                        seed=options.seed,
                        start=lambda model, _running=running, **switches: _running.enter_context(
                            LlamaServer(model, **switches)
                        ),
                    )
                share = tally.cached_tokens / max(1, tally.prompt_tokens)
                print(
                    f"{name:<16}{label:<26}{tally.requests:>9}{tally.prompt_tokens:>15,}{share:>9.1%}{tally.evicted_tokens:>9,}"
                    f"{len(tally.mistakes):>7}{time.monotonic() - began:>7.1f}",
                    flush=True,
                )
                for mistake in tally.mistakes:
                    print("   ", mistake)
                requests += tally.requests
                mistakes += len(tally.mistakes)
    print(f"{requests} requests, {mistakes} wrong predictions")
    return int(mistakes > 0)


if __name__ == "__main__":
    sys.exit(main())
