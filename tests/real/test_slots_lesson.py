"""The lesson's examples 11 and 12 on a live server of the same shape."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agentctx_engine.memory.slot_cache import SlotCache
from agentctx_engine.memory.slot_settings import ServerSettings

from .conftest import StartServer
from .slot_fuzz import MODELS, switches
from .tiny_gguf import write_sliding_window

pytestmark = pytest.mark.real

SHARED = [i * i % 251 for i in range(350)]
LONG = SHARED + [(3 * i + 1) % 256 for i in range(1491)]
SHORT = [*SHARED, 255, 254, 253, 252]


@pytest.mark.parametrize(
    ("switches", "cache_n"),
    [({"n_ctx_checkpoints": 0}, 0), ({}, 0), ({"n_ctx_checkpoints": 0, "swa_full": True}, 350)],
    ids=["no checkpoints", "default", "swa-full"],
)
def test_example_12(
    switches: dict[str, int], cache_n: int, tmp_path: Path, start_server: StartServer
) -> None:
    model = write_sliding_window(tmp_path / "window-128.gguf", window=128)
    server = start_server(model, n_ctx=4096, n_parallel=1, cache_ram_mib=0, **switches)
    first = server.post("/completion", {"prompt": LONG, "n_predict": 1})["timings"]
    second = server.post("/completion", {"prompt": SHORT, "n_predict": 1})["timings"]
    assert (first["cache_n"], first["prompt_n"]) == (0, 1841)
    assert (second["cache_n"], second["prompt_n"]) == (cache_n, 354 - cache_n)


# A slot file holds what is inside the window and no more: the server then asks for a checkpoint, four tokens before the
# end of the prompt, and gives one less.
RESTORED = {"full attention": 748, "sliding window": 743, "hybrid": 748}


@pytest.mark.parametrize("kind", RESTORED)
def test_example_11_restored_in_a_new_process(
    kind: str, tiny_model: Callable[[str], Path], start_server: StartServer, tmp_path: Path
) -> None:
    """All 748 tokens come back, and a request of 753 computes five; SlotCache says so before it is sent."""
    prompt = [(7 * i * i + i) % 256 for i in range(748)]
    settings = ServerSettings(n_slots=1, kv_unified=False, n_ctx=4096, cache_ram_mib=0)
    model = tiny_model(kind)
    before, after = (SlotCache(settings, MODELS[kind].memory) for _ in range(2))

    first = start_server(model, **switches(settings), slot_save_path=f"{tmp_path}/")
    reply = first.post("/completion", {"prompt": prompt, "n_predict": 1, "return_tokens": True})["tokens"]
    saved = first.post("/slots/0?action=save", {"filename": "prefix.bin"})
    first.stop()
    before.serve(prompt, reply)
    after.restore(0, before.save(0))

    second = start_server(model, **switches(settings), slot_save_path=f"{tmp_path}/")
    restored = second.post("/slots/0?action=restore", {"filename": "prefix.bin"})
    assert saved["n_saved"] == restored["n_restored"] == 748
    assert saved["n_written"] == restored["n_read"]
    longer = [*prompt, 1, 2, 3, 4, 5]
    timings = second.post("/completion", {"prompt": longer, "n_predict": 1})["timings"]
    assert timings["cache_n"] == RESTORED[kind]
    assert after.match(longer).hit_tokens == RESTORED[kind]
