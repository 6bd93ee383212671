"""Fingerprint: which model computed some keys and values."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from agentctx_engine.models.config import ModelConfig

_SAMPLES = 4096  # values of each tensor that are hashed as they are
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Fingerprint:
    """Collects a model's config and weights into one SHA-256, tensor by tensor as they are read.

    Of each tensor: name, shape, dtype, the exact sum of all bit patterns, and 4,096 evenly spaced values. So any changed
    weight changes it, at the cost of one pass over memory; it guards against mistakes, not against forgery.
    """

    def __init__(self, config: ModelConfig) -> None:
        self._hash = hashlib.sha256(repr(config).encode())

    def add(self, name: str, tensor: Tensor) -> None:
        bits = tensor.detach().contiguous().view(-1).view(_INTEGERS[tensor.element_size()])
        step = max(1, bits.numel() // _SAMPLES)
        total = int(bits.sum(dtype=torch.int64))
        self._hash.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} {total}".encode())
        self._hash.update(bits[::step].cpu().numpy().tobytes())

    def hexdigest(self) -> str:
        return self._hash.hexdigest()
