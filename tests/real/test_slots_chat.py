"""Slots under chat completions: where user messages begin decides where checkpoints stand."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentctx_engine.memory.slot_cache import SlotCache
from agentctx_engine.memory.slot_settings import ServerSettings

from .conftest import StartServer
from .llama_server import LlamaServer
from .slot_fuzz import MODELS, switches

pytestmark = pytest.mark.real

REQUESTS = 25
USER = list(b"<|im_start|>user")  # the template's mark, in a vocabulary of bytes

SETTINGS = {
    "defaults": ServerSettings(n_ctx=4096),
    "one slot, no RAM cache": ServerSettings(n_ctx=4096, n_slots=1, kv_unified=False, cache_ram_mib=0),
    "3 checkpoints, step 64": ServerSettings(n_ctx=4096, ctx_checkpoints=3, checkpoint_min_step=64),
    "small batches": ServerSettings(n_ctx=4096, n_batch=128, n_ubatch=64, checkpoint_min_step=32),
}

Messages = list[dict[str, str]]


class Chats:
    """Random chats: new ones, follow-ups, forks, edits of an earlier message."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.known: list[Messages] = []

    def words(self, most: int) -> str:
        return "".join(self.random.choice("abcdefgh ") for _ in range(self.random.randrange(1, most)))

    def user(self) -> dict[str, str]:
        return {"role": "user", "content": self.words(120)}

    def next_chat(self) -> Messages:
        draw = self.random
        kind = draw.random()
        if not self.known or kind < 0.15:
            return [{"role": "system", "content": "x" * draw.choice([20, 200])}, self.user()]
        chat = draw.choice(self.known[-5:])
        if kind < 0.55:
            return [*chat, self.user()]
        if kind < 0.65:
            return [*chat, {"role": "tool", "content": self.words(150)}]
        if kind < 0.85:
            return [*chat[: draw.randrange(1, len(chat))], self.user()]
        edited = draw.randrange(len(chat))
        return [*chat[:edited], {**chat[edited], "content": self.words(60)}, *chat[edited + 1 :], self.user()]


def tokens_of(server: LlamaServer, chat: Messages) -> tuple[list[int], list[int]]:
    """The prompt's token ids, and where its user messages begin."""
    text = server.post("/apply-template", {"messages": chat})["prompt"]
    ids: list[int] = server.post("/tokenize", {"content": text, "add_special": True, "parse_special": True})[
        "tokens"
    ]
    return ids, [start for start in range(len(ids)) if ids[start : start + len(USER)] == USER]


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("model", ["sliding window", "hybrid"])
def test_chat_turns_are_predicted(
    model: str, setting: str, tiny_model: Callable[[str], Path], start_server: StartServer
) -> None:
    settings = SETTINGS[setting]
    cache = SlotCache(settings, MODELS[model].memory)
    chats = Chats(seed=len(model) + len(setting))
    server = start_server(tiny_model(model), **switches(settings))
    for number in range(REQUESTS):
        chat = chats.next_chat()
        ids, user_starts = tokens_of(server, chat)
        if len(ids) > settings.slot_ctx - 64:
            chats.known.clear()
            continue
        lease = cache.commit(np.array(ids, dtype=np.int32), user_starts=user_starts)
        answer = server.post(
            "/v1/chat/completions",
            {
                "messages": chat,
                "max_tokens": chats.random.choice([1, 3, 20]),
                "seed": number,
                "return_tokens": True,
                "verbose": True,
            },
        )
        details: dict[str, Any] = answer["__verbose"]
        cache.release(lease, details["tokens"])
        assert details["id_slot"] == lease.answer.slot
        assert answer["timings"]["cache_n"] == lease.answer.cache_n
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == lease.answer.cache_n
        assert answer["usage"]["prompt_tokens"] == len(ids)
        reply = answer["choices"][0]["message"]["content"] or ""
        chats.known.append([*chat, {"role": "assistant", "content": reply}])
    cache.check()
