"""Looking ahead: a GPU runs the step that probably comes next while the host still deals with the tokens of this one.

The scheduler isn't asked before those tokens are known, so that what it decides, counts and caches is what it would have
been. What is launched early is only the step that it will most likely plan: every running sample goes on by one token,
whose id is taken where it was chosen, on the device. If it plans that step, or a part of it because some samples have
ended, the work is done already; if not, it was done in vain. It does no harm: it writes only behind its samples' texts,
into blocks that no other sequence reads, where whoever computes those tokens writes again.

::

    device   | step n        | step n + 1            | step n + 2
    host       launch n + 1 │ wait for n, take its tokens, schedule n + 1, launch n + 2 │ wait for n + 1 …
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from agentctx_engine.attention.uploads import upload_index
from agentctx_engine.runtime.kv_store import BlockTable, KvStore
from agentctx_engine.runtime.request import Sample
from agentctx_engine.runtime.sampler import Sampled, SamplingRow
from agentctx_engine.runtime.scheduler import ScheduledChunk, Scheduler, Step


@dataclass(slots=True)
class Launched:
    """A step whose kernels run, or have run: a row of ``tokens`` for each of ``samples``."""

    samples: Sequence[Sample]
    tokens: Sampled | None  # None: no sample gets a token
    logits: Sequence[npt.NDArray[np.float32] | None] = ()  # of the samples that keep them
    wanted: frozenset[Sample] | None = None  # None: all of them are


@dataclass(frozen=True, slots=True)
class Ahead:
    """A step that was launched before it was planned."""

    chunks: dict[Sample, tuple[ScheduledChunk, tuple[int, ...]]]  # with the blocks that it wrote to
    launched: Launched

    def part(self, step: Step, block_size: int) -> Launched | None:
        """What it did of ``step``; ``None`` unless that is all of it."""
        if step.copies or step.admitted or step.preempted or not step.chunks:
            return None
        for chunk in step.chunks:
            early, blocks = self.chunks.get(chunk.sample, (None, ()))
            if early is None or (chunk.start, chunk.count, chunk.last) != (early.start, 1, True):
                return None
            if blocks != written_blocks(chunk.block_tables, chunk.start, block_size):
                return None
        kept = frozenset(chunk.sample for chunk in step.chunks)
        return Launched(self.launched.samples, self.launched.tokens, self.launched.logits, kept)


def written_blocks(tables: Sequence[BlockTable], position: int, block_size: int) -> tuple[int, ...]:
    """Per layer group, the block that holds ``position``."""
    return tuple(int(table[position // block_size]) for table in tables)


def next_step(
    kv: KvStore, scheduler: Scheduler, step: Step, launched: Launched, max_context: int
) -> list[ScheduledChunk] | None:
    """One token for each running sample that won't have ended with ``step``; ``None`` if another step is as likely."""
    samples = [s for s in launched.samples if launched.wanted is None or s in launched.wanted]
    if not all(chunk.last for chunk in step.chunks) or set(samples) != set(scheduler.running):
        return None
    going_on = [sample for sample in scheduler.running if not _ends_next(sample, max_context)]
    if scheduler.waiting and (step.admitted or len(going_on) < len(samples)):
        return None  # somebody may be admitted
    chunks = []
    for sample in going_on:
        # With a penalty the next token depends on which this one is.
        if sample.request.params.penalises or not kv.writes_in_place(sample.kv):
            return None
        chunks.append(ScheduledChunk(sample, sample.num_tokens, 1, True, sample.kv.block_tables))
    return chunks or None


def rows_of(launched: Launched, chunks: Sequence[ScheduledChunk]) -> Tensor:
    """The tokens [chunks] that a step takes over from the step before, on the device."""
    assert launched.tokens is not None
    ids = launched.tokens.ids
    place = {sample: row for row, sample in enumerate(launched.samples)}
    rows = [place[chunk.sample] for chunk in chunks]
    return ids if rows == list(range(len(ids))) else ids[upload_index(rows, ids.device)]


def sampling_row(sample: Sample, *, ahead: bool = False) -> SamplingRow:
    """For the sample's next token, or ``ahead`` for the one after it."""
    request = sample.request
    return SamplingRow(
        params=request.params,
        seed=request.seed,
        sample_index=sample.index,
        position=len(sample.output) + ahead,
        seen_ids=sample.seen_ids() if request.params.penalises else (),
    )


def _ends_next(sample: Sample, max_context: int) -> bool:
    """Whether the token that is on its way is the last one, whichever it is."""
    return len(sample.output) + 1 >= sample.request.params.max_tokens or sample.num_tokens + 1 >= max_context
