"""What a model asks of an attention backend.

A step is planned once (which keys each sequence reads, and the masks), and the plan is run once per layer, after the
layer's keys and values have been written to their slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from agentctx_engine.attention.batch import Batch
from agentctx_engine.attention.decode_batch import DecodeBatch
from agentctx_engine.attention.quantized import Packing


class AttentionPlan(Protocol):
    """One step, ready to run on any layer."""

    def attend(self, group: int, queries: Tensor, cache: Tensor, scale: float) -> Tensor:
        """Softmax attention of every token over its sequence's positions up to its own, within the group's window.

        group: which of the windows given to ``plan`` the layer has, and whose block tables it reads.
        queries: [rows, heads, head_dim]; rows beyond the batch's tokens are padding.
        cache: [2, num_blocks, block_size, kv_heads, head_dim]; query head ``h`` reads KV head
            ``h * kv_heads // heads``.
        scale: multiplies the scores before the softmax.
        Returns [rows, heads * head_dim] in the queries' dtype; padding rows are 0.
        """
        ...


class AttentionBackend(Protocol):
    """Plans steps."""

    def plan(self, batch: Batch, windows: Sequence[int | None], dtype: torch.dtype) -> AttentionPlan:
        """``windows`` has one entry per layer group: how many tokens a token sees, itself included, or ``None``
        for all. ``dtype`` is that of queries, keys and values."""
        ...


@runtime_checkable
class DecodePlanner(Protocol):
    """A backend whose decode steps can be recorded and run again."""

    def plan_decode(
        self, batch: DecodeBatch, windows: Sequence[int | None], dtype: torch.dtype
    ) -> AttentionPlan:
        """As ``plan``. Which kernels run doesn't depend on what stands in the batch's tensors; rows of length 0 give 0."""
        ...


@runtime_checkable
class PackedPlan(Protocol):
    """A plan for a batch whose KV memory is quantized: ``attend`` then takes a layer's rows of bytes as its cache."""

    def write_packed(self, group: int, keys: Tensor, values: Tensor, cache: Tensor) -> None:
        """Put the step's keys and values, each [tokens, kv_heads, head_dim], into ``cache`` [2, num_blocks, row_bytes]."""
        ...


@runtime_checkable
class PackedBackend(Protocol):
    """A backend that may read and write quantized KV memory as it is."""

    def reads_packed(self, packing: Packing) -> bool:
        """Whether it does so with this one; its plans of such batches are ``PackedPlan``s."""
        ...


class FusedKernels(Protocol):
    """Kernels for the rest of a decoder layer, which a backend may bring along."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """``x`` [rows, size] over each row's root mean square, times ``weight`` [size]."""
        ...

    def add_rms_norm(self, x: Tensor, added: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """(``x + added``, its norm), each [rows, size]."""
        ...

    def gate(self, gate_up: Tensor, activation: Literal["silu", "gelu_tanh"]) -> Tensor:
        """[rows, 2 * size] → the activation of a row's first half times its second."""
        ...

    def rotate_and_write(self, qkv: Tensor, turn: Tensor, cache: Tensor, slots: Tensor, heads: int) -> None:
        """Turn the queries among the first ``heads`` heads of ``qkv`` [rows, heads + kv_heads, head_dim] in place by ``turn``
        [rows, 1, head_dim // 2] complex64; store turned keys, and values, at ``slots``, one for each of the first rows."""
        ...


@runtime_checkable
class KernelBackend(Protocol):
    """A backend that brings layer kernels along."""

    @property
    def layer_kernels(self) -> FusedKernels | None: ...
