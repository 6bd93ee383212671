"""KvStore: what the scheduler asks of the memory manager. Hash chain and radix tree both answer it.

The classes behind it live in ``agentctx_engine.memory`` and hold no tensor: predictions run on the same ones, which is why
a prediction and the engine can't drift apart. Tiers behind the pool (host memory, disk) belong behind ``admit`` and
``reserve``: like the copies of ``reserve``, what they move must be in place before the step's kernels run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from agentctx_engine.memory.prefix_cache import Match, PrefixCache

TokenArray = npt.NDArray[np.int32]
BlockTable = npt.NDArray[np.int32] | Sequence[int]
BlockCopy = tuple[int, int]  # (source block, target block), in all layers


class StoredSequence(Protocol):
    """One sample's text, and the blocks that it holds while it runs."""

    @property
    def tokens(self) -> TokenArray:
        """Prompt and output; a view that is valid until the next ``append``."""
        ...

    @property
    def num_tokens(self) -> int: ...

    @property
    def block_tables(self) -> tuple[BlockTable, ...]:
        """Per layer group; position ``p`` lies in entry ``p // block_size``. Valid until the sequence changes."""
        ...


@dataclass(frozen=True, slots=True)
class PoolState:
    """Blocks, not tokens. ``in_use`` + ``cached`` + ``empty`` = ``total``."""

    total: int
    in_use: int  # held by at least one running sample
    cached: int  # held by none, but a lookup can find them
    empty: int


class KvStore(Protocol):
    """A refusal (``None``) changes nothing, but for prefixes that were evicted in vain."""

    @property
    def block_size(self) -> int: ...

    @property
    def capacity_tokens(self) -> int:
        """Tokens of one sample that has the pool to itself."""
        ...

    def match(self, tokens: TokenArray, salt: str | None) -> Match:
        """The longest prefix that a new sequence would reuse now. Changes nothing."""
        ...

    def predictor(self) -> PrefixCache:
        """An empty cache of this kind and size that holds no tensors: it answers as the store does, from its start on."""
        ...

    def open(self, tokens: TokenArray, salt: str | None, *, reuse: bool = True) -> StoredSequence:
        """A sequence with this text and no blocks. ``reuse=False``: it will read nothing that others computed."""
        ...

    def append(self, sequence: StoredSequence, token_id: int) -> None:
        """A sampled token joins the text. Takes no block."""
        ...

    def admit(self, sequence: StoredSequence, *, headroom: int = 0) -> Match | None:
        """Pin the longest cached prefix and take blocks for the rest of the text.

        ``None`` unless ``headroom`` blocks can still be had afterwards.
        """
        ...

    def reserve(self, sequence: StoredSequence) -> Sequence[BlockCopy] | None:
        """Room for what was appended; a shared block that would be written is replaced by a copy, to be made first.

        ``None`` if no block is left.
        """
        ...

    def scheduled(self, sequence: StoredSequence, num_tokens: int) -> None:
        """The step being planned will have computed the first ``num_tokens`` tokens.

        Their full blocks may become findable at once: every layer writes the whole step's keys and values before it
        reads any, so that whoever is admitted later in the same step can share them.
        """
        ...

    def computed(self, sequence: StoredSequence, num_tokens: int) -> None:
        """The step has run: the first ``num_tokens`` tokens are valid."""
        ...

    def fork(self, sequence: StoredSequence) -> tuple[StoredSequence, Sequence[BlockCopy]] | None:
        """A second sequence on the same blocks, and the copies to make before anything else is written.

        ``None`` if no block is left for its own part.
        """
        ...

    def release(self, sequence: StoredSequence) -> None:
        """Give every block back and keep the text. What a lookup can find stays so until its block is taken."""
        ...

    def drop_cached(self) -> None:
        """Forget every prefix that no sequence holds."""
        ...

    def pool_state(self) -> PoolState: ...

    def check(self) -> None:
        """Raise if the bookkeeping contradicts itself. For any moment between two steps."""
        ...
