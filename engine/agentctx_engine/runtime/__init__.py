"""Requests, scheduler, model runner, sampler and the Engine facade."""

from agentctx_engine.runtime.config import EngineConfig
from agentctx_engine.runtime.engine import Engine
from agentctx_engine.runtime.errors import (
    EngineClosedError,
    EngineError,
    EngineMemoryError,
    PromptTooLongError,
    RequestCancelledError,
    RequestError,
    RequestFailedError,
    SnapshotError,
)
from agentctx_engine.runtime.handle import GenerationHandle
from agentctx_engine.runtime.request import FinishReason
from agentctx_engine.runtime.results import EngineState, GenerationResult, SampleResult, TokenEvent
from agentctx_engine.runtime.sampling_params import SamplingParams
from agentctx_engine.runtime.snapshot_file import SavedPrefix, kv_bytes
from agentctx_engine.runtime.snapshots import RestoredPrefix

__all__ = [
    "Engine",
    "EngineClosedError",
    "EngineConfig",
    "EngineError",
    "EngineMemoryError",
    "EngineState",
    "FinishReason",
    "GenerationHandle",
    "GenerationResult",
    "PromptTooLongError",
    "RequestCancelledError",
    "RequestError",
    "RequestFailedError",
    "RestoredPrefix",
    "SampleResult",
    "SamplingParams",
    "SavedPrefix",
    "SnapshotError",
    "TokenEvent",
    "kv_bytes",
]
