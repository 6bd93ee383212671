"""PageLists: block tables as FlashInfer takes them, the pages of all sequences in one list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from agentctx_engine.attention.batch import Chunk

Numbers = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class PageLists:
    """Sequence ``i`` has the pages ``pages[starts[i] : starts[i + 1]]``, of which the last holds ``last_page_lens[i]`` (≥ 1) tokens,
    and the rows from ``query_starts[i]`` to ``query_starts[i + 1]``."""

    query_starts: Numbers  # [sequences + 1]
    starts: Numbers  # [sequences + 1]
    pages: Numbers
    last_page_lens: Numbers  # [sequences]

    @classmethod
    def of(cls, chunks: Sequence[Chunk], group: int, block_size: int) -> PageLists:
        """Of one layer group, with the chunks' own tokens, which are in their slots by then."""
        lengths = np.array([chunk.context_len for chunk in chunks], dtype=np.int32)
        counts = -(-lengths // block_size)
        tables = [
            np.asarray(chunk.block_tables[group][:count], dtype=np.int32)
            for chunk, count in zip(chunks, counts, strict=True)
        ]
        return cls(
            query_starts=_running_sum([len(chunk.token_ids) for chunk in chunks]),
            starts=_running_sum(counts.tolist()),
            pages=np.concatenate(tables),
            last_page_lens=(lengths - 1) % block_size + 1,
        )


def _running_sum(counts: Sequence[int]) -> Numbers:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
