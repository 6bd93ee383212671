"""The snapshot file: keys and values of one prefix. See ``tensor_file`` for the layout around them.

    token_ids     int32 [tokens]
    layers.i.keys, layers.i.values    [kept tokens, kv_heads, head_dim]

A windowed layer keeps the end of the prefix only: ``layers.i.first`` in the metadata is the position of its first token.
The metadata holds besides what must be equal where the file is used again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from agentctx_engine.runtime.errors import SnapshotError
from agentctx_engine.runtime.kv_store import TokenArray
from agentctx_engine.runtime.tensor_file import read_tensors, write_tensors


@dataclass(frozen=True, slots=True)
class LayerKv:
    """One layer's part: ``keys`` and ``values`` [tokens − first, kv_heads, head_dim] of positions from ``first`` on."""

    first: int
    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A prefix with its keys and values, on the CPU. ``identity``: what must be equal where they are used again."""

    token_ids: TokenArray
    layers: tuple[LayerKv, ...]
    identity: Mapping[str, str]

    @property
    def kv_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for layer in self.layers for t in (layer.keys, layer.values))


@dataclass(frozen=True, slots=True)
class SavedPrefix:
    """What ``Engine.save`` wrote: ``file_bytes`` = ``header_bytes`` + 4 a token + ``kv_bytes``."""

    path: Path
    num_tokens: int
    header_bytes: int
    kv_bytes: int
    file_bytes: int


def kv_bytes(*, layers: int, kv_heads: int, head_dim: int, value_bytes: int, tokens: int) -> int:
    """Bytes of keys and values of ``tokens`` tokens in ``layers`` layers that keep them all."""
    return 2 * layers * kv_heads * head_dim * value_bytes * tokens


def write_snapshot(path: Path, snapshot: Snapshot) -> SavedPrefix:
    """Atomic and durable, see ``write_tensors``."""
    tensors = list(_tensors(snapshot))
    first = {f"layers.{i}.first": str(layer.first) for i, layer in enumerate(snapshot.layers)}
    header = write_tensors(path, tensors, {**snapshot.identity, **first}, durable=True)
    tokens, kv = len(snapshot.token_ids), snapshot.kv_bytes
    return SavedPrefix(path, tokens, header, kv, header + 4 * tokens + kv)


def read_snapshot(path: Path, expected: Mapping[str, str] | None = None) -> Snapshot:
    """Read and check a file, see ``read_tensors``. That its layers are a model's own is for the caller to check."""
    tensors, metadata = read_tensors(path, expected or {})
    try:
        token_ids = tensors.pop("token_ids")
        if token_ids.dtype != torch.int32 or token_ids.dim() != 1 or not len(token_ids):
            raise ValueError(f"its tokens are {token_ids.dtype} of shape {tuple(token_ids.shape)}")
        if len(tensors) % 2:
            raise ValueError(f"{len(tensors)} tensors are no pairs of keys and values")
        layers = tuple(
            LayerKv(int(metadata[f"layers.{i}.first"]), tensors[f"layers.{i}.keys"], tensors[f"layers.{i}.values"])
            for i in range(len(tensors) // 2)
        )  # fmt: skip
        for layer in layers:
            if layer.first < 0 or not len(layer.keys) == len(layer.values) == len(token_ids) - layer.first:
                raise ValueError("a layer doesn't hold the tokens that it says")
    except (ValueError, KeyError, TypeError) as error:
        raise SnapshotError(f"{path}: is no snapshot of a prefix ({error})") from error
    return Snapshot(token_ids.numpy(), layers, metadata)


def _tensors(snapshot: Snapshot) -> Iterator[tuple[str, Tensor]]:
    yield "token_ids", torch.from_numpy(np.ascontiguousarray(snapshot.token_ids, dtype=np.int32))
    for index, layer in enumerate(snapshot.layers):
        yield f"layers.{index}.keys", layer.keys.contiguous()
        yield f"layers.{index}.values", layer.values.contiguous()
