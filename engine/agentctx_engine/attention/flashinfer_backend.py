"""FlashInfer as an attention backend: its wrappers for paged decode and paged prefill, planned once a step and layer group.

Importing this module imports flashinfer; ``attention.named`` does so when the backend is asked for. Interface:
docs.flashinfer.ai, ``BatchDecodeWithPagedKVCacheWrapper`` and ``BatchPrefillWithPagedKVCacheWrapper``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import flashinfer
import torch
from torch import Tensor

from agentctx_engine.attention.batch import Batch
from agentctx_engine.attention.page_lists import PageLists
from agentctx_engine.attention.uploads import upload

_WORKSPACE_BYTES = 128 * 2**20  # what its documentation gives a wrapper


@dataclass(frozen=True, slots=True)
class _Part:
    """The step's single tokens, or its longer chunks, of one layer group: which rows they are, and a planned wrapper."""

    wrapper: Any
    rows: Tensor | None  # None: all of the batch

    def run(self, queries: Tensor, cache: Tensor, out: Tensor, num_tokens: int) -> None:
        chosen = queries[:num_tokens] if self.rows is None else queries[self.rows]
        attended = self.wrapper.run(chosen.contiguous(), (cache[0], cache[1])).flatten(1)
        if self.rows is None:
            out[:num_tokens] = attended
        else:
            out[self.rows] = attended


@dataclass(frozen=True, slots=True)
class FlashInferPlan:
    """One step (an ``AttentionPlan``). Heads and scale are known with the first layer of a group: then it is planned."""

    batch: Batch
    windows: tuple[int | None, ...]
    workspace: Tensor
    parts: dict[int, list[_Part]] = field(default_factory=dict)  # by layer group

    def attend(self, group: int, queries: Tensor, cache: Tensor, scale: float) -> Tensor:
        if group not in self.parts:
            self.parts[group] = self._planned(group, queries, cache, scale)
        out = queries.new_zeros((queries.shape[0], queries.shape[1] * queries.shape[2]))
        for part in self.parts[group]:
            part.run(queries, cache, out, self.batch.num_tokens)
        return out

    def _planned(self, group: int, queries: Tensor, cache: Tensor, scale: float) -> list[_Part]:
        chunks = self.batch.chunks
        window, parts = self.windows[group], []
        settings = {
            "num_qo_heads": queries.shape[1],
            "num_kv_heads": cache.shape[3],
            "page_size": self.batch.block_size,
            "window_left": -1 if window is None else window - 1,  # keys before a token's own
            "sm_scale": scale,
            "q_data_type": queries.dtype,
            "kv_data_type": cache.dtype,
        }
        for single in (True, False):
            chosen = [i for i, chunk in enumerate(chunks) if (len(chunk.token_ids) == 1) is single]
            if not chosen:
                continue
            pages = PageLists.of([chunks[i] for i in chosen], group, self.batch.block_size)
            indptr, last = torch.from_numpy(pages.starts), torch.from_numpy(pages.last_page_lens)
            indices = upload(pages.pages, queries.device)
            wrapper: Any
            if single:
                wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(self.workspace, "NHD")
                wrapper.plan(indptr, indices, last, head_dim=queries.shape[2], **settings)
            else:
                wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(self.workspace, "NHD")
                starts = torch.from_numpy(pages.query_starts)
                wrapper.plan(
                    starts, indptr, indices, last, head_dim_qk=queries.shape[2], causal=True, **settings
                )
            rows = None
            if len(chosen) < len(chunks):
                starts_of = self.batch.query_starts
                rows = upload(
                    [r for i in chosen for r in range(starts_of[i], starts_of[i + 1])], queries.device
                )
            parts.append(_Part(wrapper, rows))
        return parts


class FlashInferAttention:
    """For CUDA. Without CUDA graphs and quantized KV memory, which the Triton backend has."""

    def __init__(self) -> None:
        self._workspaces: dict[torch.device, Tensor] = {}

    def plan(self, batch: Batch, windows: Sequence[int | None], dtype: torch.dtype) -> FlashInferPlan:
        device = batch.token_ids.device
        if device not in self._workspaces:  # one for all wrappers, which run one after the other
            self._workspaces[device] = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        return FlashInferPlan(batch, tuple(windows), self._workspaces[device])
