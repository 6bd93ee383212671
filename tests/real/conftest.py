"""Fixtures of the tests against real servers: tiny models, written once, and servers that always end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require_llama_server, require_package

from . import tiny_gguf
from .chat_models import CHAT_MODELS
from .llama_server import LlamaServer

TinyModel = Callable[[str], Path]
ChatModelFile = Callable[[str], Path]
StartServer = Callable[..., LlamaServer]

_WRITERS = {
    "full attention": tiny_gguf.write_full_attention,
    "sliding window": tiny_gguf.write_sliding_window,
    "hybrid": tiny_gguf.write_hybrid,
}


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    """``tiny_model("full attention" | "sliding window" | "hybrid")``: a random-weight GGUF, written on first use."""
    require_package("gguf")
    folder = tmp_path_factory.mktemp("tiny-models")

    def write(kind: str) -> Path:
        path = folder / f"{kind.replace(' ', '-')}.gguf"
        return path if path.exists() else _WRITERS[kind](path)

    return write


@pytest.fixture(scope="session")
def chat_model(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest, shared_dir: Path
) -> ChatModelFile:
    """``chat_model("SmolLM2" | "Gemma 3" | a name of CHAT_MODELS)``: a model with a real template and a real vocabulary."""
    require_package("gguf")
    folder = tmp_path_factory.mktemp("chat-models")

    def write(name: str) -> Path:
        if name == "SmolLM2":
            smollm2: Path = request.getfixturevalue("smollm2_gguf")
            return smollm2
        gemma: Path = request.getfixturevalue("gemma3_gguf")
        if name == "Gemma 3":
            return gemma
        path = folder / f"{name.replace(' ', '-')}.gguf"
        return path if path.exists() else CHAT_MODELS[name].write(path, shared_dir, gemma)

    return write


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    """``start_server(model, n_parallel=1, …)``: a running llama-server, ended with the test."""
    require_llama_server()
    with ExitStack() as running:

        def start(model: Path, **switches: Any) -> LlamaServer:
            return running.enter_context(LlamaServer(model, **switches))

        yield start
