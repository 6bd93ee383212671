"""Slot files over a restart, through the CacheModel: all tokens come back, and the next request computes only its new ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agentctx.backends.backend import Options
from agentctx.backends.http import HttpBackend
from agentctx.backends.llama_server import LlamaCompletion, LlamaServer
from agentctx.caches.llama_server import LlamaServerModel
from agentctx.caches.model import Arrival
from agentctx.messages import Request
from agentctx.rendering import Prompt
from agentctx_engine.memory.slot_settings import ServerSettings

from .conftest import StartServer, TinyModel
from .slot_fuzz import MODELS, switches

pytestmark = pytest.mark.real

SETTINGS = ServerSettings(n_slots=2, kv_unified=False, n_ctx=8192, cache_ram_mib=0)
# A slot file holds of a sliding window what is inside it, no more: the server then goes back to a checkpoint four tokens
# before the end of the prompt, and one token before that.
RESTORED = {"full attention": 748, "sliding window": 743, "hybrid": 748}


def prompt(ids: list[int]) -> Prompt:
    return Prompt(np.asarray(ids, np.int32), "", (), Request())


@pytest.mark.parametrize("kind", RESTORED)
def test_example_11_over_a_restart(
    kind: str, tiny_model: TinyModel, start_server: StartServer, tmp_path: Path
) -> None:
    before, after = (LlamaServerModel(SETTINGS, MODELS[kind].memory) for _ in range(2))
    model = tiny_model(kind)
    head = prompt([(7 * i * i + i) % 256 for i in range(748)])
    longer = prompt([*head.token_ids.tolist(), 1, 2, 3, 4, 5])

    first = start_server(model, **switches(SETTINGS), slot_save_path=f"{tmp_path}/")
    with HttpBackend(LlamaCompletion(), first.url) as backend, LlamaServer(first.url) as server:
        completion = backend.complete(head, Options(max_tokens=1, temperature=0.0, slot=0))
        assert completion.reply_ids is not None
        saved = server.save_slot(0, "head.bin")
    first.stop()
    before.commit(head.token_ids, completion.reply_ids, Arrival(slot=0))
    after.restore(1, before.save(0))

    second = start_server(model, **switches(SETTINGS), slot_save_path=f"{tmp_path}/")
    with HttpBackend(LlamaCompletion(), second.url) as backend, LlamaServer(second.url) as server:
        restored = server.restore_slot(1, "head.bin")
        assert saved["n_saved"] == restored["n_restored"] == 748
        predicted = after.predict(longer.token_ids)
        answer = backend.complete(
            longer, Options(max_tokens=1, temperature=0.0)
        )  # it finds its slot by itself
        assert answer.reply_ids is not None
        served = after.commit(longer.token_ids, answer.reply_ids)
        again = backend.complete(longer, Options(max_tokens=1, temperature=0.0, slot=0))
    assert answer.usage.cached == predicted.cached == RESTORED[kind]
    assert answer.usage.prompt == 753
    assert answer.slot == served.slot == 1
    assert again.usage.cached == after.predict(longer.token_ids, Arrival(slot=0)).cached == 0
