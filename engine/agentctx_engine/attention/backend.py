"""What a model asks of an attention backend.

A step is planned once (which keys each sequence reads, and the masks), and the plan is run once per layer, after the
layer's keys and values have been written to their slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from agentctx_engine.attention.batch import Batch
from agentctx_engine.attention.decode_batch import DecodeBatch


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
