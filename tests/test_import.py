"""Importing agentctx is cheap and brings no torch."""

from __future__ import annotations

import subprocess
import sys


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_import_brings_no_torch_and_no_http_client() -> None:
    loaded = run("import agentctx, sys; agentctx.History, agentctx.Request; print(*sys.modules)").split()
    assert "agentctx.history" in loaded
    assert not {"torch", "httpx", "typer", "rich", "transformers", "matplotlib"} & set(loaded)


def test_names_are_loaded_when_they_are_used() -> None:
    loaded = run("import agentctx, sys; print(*sys.modules)").split()
    assert not {"agentctx.history", "pydantic", "numpy"} & set(loaded)


def test_checking_a_log_as_sent_loads_nothing_that_counts_tokens() -> None:
    loaded = run("import agentctx.checks.log, sys; print(*sys.modules)").split()
    assert "agentctx.diagnosis" in loaded
    assert not {"numpy", "jinja2", "tiktoken", "agentctx_engine", "agentctx.rendering"} & set(loaded)


def test_the_memory_manager_needs_no_torch() -> None:
    loaded = run("import agentctx_engine.memory, agentctx.caches.registry, sys; print(*sys.modules)").split()
    assert "torch" not in loaded


def test_import_costs_less_than_half_a_second_beyond_its_heaviest_dependencies() -> None:
    cpu = "import time; start = time.process_time(); {}; print(time.process_time() - start)"
    # The least of five runs each: CPU time, so that a busy machine does not count.
    base = min(float(run(cpu.format("import pydantic, tiktoken"))) for _ in range(5))
    ours = min(float(run(cpu.format("import agentctx; agentctx.History"))) for _ in range(5))
    assert ours - base < 0.5


def test_every_public_name_exists() -> None:
    import agentctx

    assert [name for name in agentctx.__all__ if not hasattr(agentctx, name)] == []
