"""Paged attention: the batch that describes a step, KV memory, and the backends."""

from agentctx_engine.attention.backend import AttentionBackend, AttentionPlan
from agentctx_engine.attention.batch import Batch, Chunk
from agentctx_engine.attention.cpu import CpuAttention
from agentctx_engine.attention.reference import ReferenceAttention

__all__ = ["AttentionBackend", "AttentionPlan", "Batch", "Chunk", "CpuAttention", "ReferenceAttention"]
