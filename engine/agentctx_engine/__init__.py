"""The bundled paged engine: token ids in, token ids out.

``agentctx_engine.memory`` is free of torch and stays so when it is imported; the names below load torch when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentctx_engine.runtime import Engine, EngineConfig, GenerationResult, SamplingParams

__all__ = ["Engine", "EngineConfig", "GenerationResult", "SamplingParams"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("agentctx_engine.runtime"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
