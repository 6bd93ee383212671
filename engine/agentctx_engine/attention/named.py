"""Attention backends by name, imported when they are chosen."""

from __future__ import annotations

import importlib.util

import torch

from agentctx_engine.attention.backend import AttentionBackend
from agentctx_engine.attention.cpu import CpuAttention
from agentctx_engine.attention.reference import ReferenceAttention


def attention_backend(name: str) -> AttentionBackend:
    """``cpu``, ``reference``, ``triton`` or ``flashinfer``.

    Raises ``ValueError`` for another name, ``ImportError`` without the package that it needs, ``RuntimeError`` without the GPU.
    """
    match name:
        case "cpu":
            return CpuAttention()
        case "reference":
            return ReferenceAttention()
        case "triton":
            if importlib.util.find_spec("triton") is None:
                raise ImportError("the Triton attention backend needs the package triton: pip install triton")
            from agentctx_engine.attention.triton_backend import TritonAttention

            return TritonAttention()
        case "flashinfer":
            if importlib.util.find_spec("flashinfer") is None:
                raise ImportError(
                    "the FlashInfer attention backend needs the package flashinfer: pip install flashinfer-python, "
                    "or take 'triton'"
                )
            if not torch.cuda.is_available():
                raise RuntimeError(
                    "the FlashInfer attention backend needs a CUDA GPU: take 'triton' or 'cpu'"
                )
            from agentctx_engine.attention.flashinfer_backend import FlashInferAttention

            return FlashInferAttention()
    raise ValueError(f"attention backend {name!r}: must be 'cpu', 'reference', 'triton' or 'flashinfer'")


def accelerated_attention(device: torch.device) -> AttentionBackend:
    """The fastest backend for a device that isn't the CPU: Triton where it is installed and there are CUDA cores."""
    has_triton = device.type == "cuda" and importlib.util.find_spec("triton") is not None
    return attention_backend("triton" if has_triton else "reference")
