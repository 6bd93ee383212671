"""DecodeGraphs: steps of single tokens, recorded once for each of a few batch sizes and run again from then on.

Launching the kernels of a decode step one by one takes the host longer than a GPU needs to run them. A CUDA graph
launches them all at once, but always on the same tensors: a step's numbers are copied into those, its batch is
padded to the next recorded size (a *bucket*), and the rows that are asked for are cut out of what comes back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from agentctx_engine.attention.batch import Chunk
from agentctx_engine.attention.decode_batch import DecodeBatch, DecodeBuffers
from agentctx_engine.attention.quantized import Packing
from agentctx_engine.models.config import ModelConfig

Replay = Callable[[], Tensor]
"""Runs what was recorded on what stands in its tensors now; the answer comes in the same tensor each time."""

_WARM_UPS = 2  # runs before a capture: kernels are compiled and libraries take their workspaces in them


@runtime_checkable
class RecordableModel(Protocol):
    """A model whose decode steps can be recorded."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def decodes_in_place(self) -> bool:
        """Whether ``decode`` works with the model's attention backend."""
        ...

    def decode(self, batch: DecodeBatch, kv_caches: Sequence[Tensor]) -> Tensor:
        """Logits [rows, vocab_size]; which kernels run on which tensors doesn't depend on what stands in the tensors."""
        ...


class Recorder(Protocol):
    """How a step is recorded."""

    def record(self, work: Callable[[], Tensor]) -> Replay:
        """``work`` may run any number of times now, or never."""
        ...


class CudaGraphRecorder:
    """``torch.cuda.graph``, all recordings in one memory pool, since no two of them run at once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, work: Callable[[], Tensor]) -> Replay:
        current = torch.cuda.current_stream(self._device)
        aside = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        aside.wait_stream(current)
        with torch.cuda.stream(aside):
            for _ in range(_WARM_UPS):
                work()
        current.wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        # Threads that copy blocks between tiers may go on meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            answer = work()

        def replay() -> Tensor:
            graph.replay()
            return answer

        return replay


class EagerRecorder:
    """Does the work again each time: everything but the graph, for devices that have none."""

    def record(self, work: Callable[[], Tensor]) -> Replay:
        return work


def recorder_for(device: torch.device) -> Recorder:
    """A graph where there are any."""
    return CudaGraphRecorder(device) if device.type == "cuda" else EagerRecorder()


def can_record(model: object) -> bool:
    """Whether the model's decode steps can be recorded, with the attention that it has."""
    return isinstance(model, RecordableModel) and model.decodes_in_place


def buckets_for(most: int) -> tuple[int, ...]:
    """Batch sizes to record for up to ``most`` rows: powers of two to 8, then every eighth, from 256 on every 16th."""
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, most + 16, 16)]
    return (*(size for size in sizes if size < most), most)


@dataclass(frozen=True, slots=True)
class GraphSettings:
    """What is to be recorded, and how."""

    max_samples: int
    max_context: int
    recorder: Recorder

    def make(
        self,
        model: object,
        kv_caches: Sequence[Tensor],
        block_size: int,
        spare_blocks: Sequence[int],
        packing: Packing | None,
    ) -> DecodeGraphs:
        """``spare_blocks``: of each layer group, a block of its layers' memory that no sequence will ever hold."""
        assert isinstance(model, RecordableModel)
        buffers = DecodeBuffers(
            rows=self.max_samples,
            width=-(-self.max_context // block_size),
            block_size=block_size,
            spare_blocks=spare_blocks,
            device=model.device,
            packing=packing,
        )
        return DecodeGraphs(model, kv_caches, buffers, max_samples=self.max_samples, recorder=self.recorder)


class DecodeGraphs:
    """Runs chunks of one token each against the KV memory that it was made for."""

    def __init__(
        self,
        model: RecordableModel,
        kv_caches: Sequence[Tensor],
        buffers: DecodeBuffers,
        *,
        max_samples: int,
        recorder: Recorder,
    ) -> None:
        self.buckets = buckets_for(max_samples)
        self._model, self._caches = model, kv_caches
        self._buffers, self._recorder = buffers, recorder
        self._replays: dict[int, Replay] = {}
        # One for all recordings, which would else keep one each.
        shape = (max_samples, model.config.vocab_size)
        self._logits = torch.zeros(shape, dtype=torch.float32, device=model.device)

    @property
    def recorded(self) -> tuple[int, ...]:
        """Buckets that have come up so far, in the order in which they did."""
        return tuple(self._replays)

    def take(self, chunks: Sequence[Chunk]) -> bool:
        """Whether these chunks are such a step: a token each, and its logits wanted."""
        return len(chunks) <= self.buckets[-1] and all(
            len(chunk.token_ids) == chunk.logit_rows == 1 for chunk in chunks
        )

    def run(self, chunks: Sequence[Chunk], tokens: Tensor | None = None) -> Tensor:
        """Logits [chunks, vocab_size], valid until the next call. ``tokens`` [chunks], on the device, instead of the chunks' own."""
        rows = self.buckets[bisect_left(self.buckets, len(chunks))]
        self._buffers.fill(chunks, rows)
        if tokens is not None:
            self._buffers.first(len(chunks)).token_ids.copy_(tokens)
        replay = self._replays.get(rows)
        if replay is None:
            batch, logits = self._buffers.first(rows), self._logits[:rows]
            replay = self._recorder.record(lambda: logits.copy_(self._model.decode(batch, self._caches)))
            self._replays[rows] = replay
        return replay()[: len(chunks)]
