"""KvStore: what the scheduler asks of the memory manager. Hash chain and radix tree both answer it.

The classes behind it live in ``agentctx_engine.memory`` and hold no tensor: predictions run on the same ones, which is why
a prediction and the engine can't drift apart. Tiers behind the pool (host memory, disk) belong behind ``admit`` and
``reserve``: like the copies of ``reserve``, what they move must be in place before the step's kernels run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from agentctx_engine.memory.prefix_cache import Match, PrefixCache

TokenArray = npt.NDArray[np.int32]
BlockTable = npt.NDArray[np.int32] | Sequence[int]
BlockCopy = tuple[int, int] | tuple[int, int, int]
"""(source block, target block) in all layers, or with a layer group as the third in that group's alone."""


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

    @property
    def loaded_tokens(self) -> tuple[int, int]:
        """Of the last admission's hit, the tokens that come from (host memory, disk)."""
        ...


@dataclass(frozen=True, slots=True)
class PoolState:
    """Blocks, not tokens. ``in_use`` + ``cached`` + ``empty`` = ``total``."""

    total: int
    in_use: int  # held by at least one running sample
    cached: int  # held by none, but a lookup can find them
    empty: int


@dataclass(slots=True)
class CopiedBytes:
    """Bytes moved between tiers since the start."""

    to_host: int = 0
    from_host: int = 0
    to_disk: int = 0
    from_disk: int = 0


@dataclass(frozen=True, slots=True)
class TierState:
    """The tiers behind the pool: blocks that they have and hold, and what was moved since the start."""

    host_total: int
    host_cached: int
    offloaded_blocks: int  # device → host
    loaded_blocks: int  # host → device
    disk_total: int
    disk_cached: int
    written_blocks: int  # host → disk
    read_blocks: int  # disk → device
    failed_blocks: int  # files that were damaged or missing
    copied_bytes: CopiedBytes


@dataclass(frozen=True, slots=True)
class PlacedPrefix:
    """Where the keys and values of a prefix lie, per layer group: ``tables[g]`` from position ``first_tokens[g]`` on.

    A windowed group that keeps its window alone has nothing before. The first ``num_reused`` tokens were there already.
    """

    num_tokens: int
    tables: tuple[BlockTable, ...]
    first_tokens: tuple[int, ...]
    num_reused: int = 0
    holder: object = None  # the store's own, for as long as the blocks are held


class KvStore(Protocol):
    """A refusal (``None``) changes nothing, but for prefixes that were evicted in vain."""

    @property
    def block_size(self) -> int: ...

    @property
    def keeps_all_windows(self) -> bool:
        """Whether windowed layers hold as much of a cached prefix as the others."""
        ...

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

    def writes_in_place(self, sequence: StoredSequence) -> bool:
        """Whether ``reserve`` after one more token would find room for it in blocks that nobody else reads.

        For a sequence whose tokens are all computed. May say no though it would.
        """
        ...

    def prepare(self, sequence: StoredSequence, num_tokens: int) -> bool:
        """Room for computing up to ``num_tokens`` tokens, where ``admit`` leaves that to the moment: in windowed layers.

        False if there is none now; the sequence then can't be part of this step.
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

    def take_copies(self) -> Sequence[BlockCopy]:
        """Copies that admissions since the last call asked for, to be made before anything else is written.

        Neither these nor those of ``reserve`` are the caller's where tiers move blocks as well: the store then makes them.
        """
        ...

    def ready(self, sequence: StoredSequence) -> bool:
        """Whether all that the sequence holds is in place: not while some of it is on its way from another tier."""
        ...

    def broken_among(
        self, waiting: Sequence[StoredSequence], intact: Sequence[StoredSequence]
    ) -> list[StoredSequence]:
        """Those of ``waiting`` that hold blocks which failed to come back: they must be released and admitted anew.

        ``intact``: the others that hold blocks. They have run since they were admitted, so that theirs are good.
        """
        ...

    @property
    def settled(self) -> bool:
        """Nothing is on its way from another tier."""
        ...

    def wait_for_arrival(self, news: Future[None] | None = None) -> None:
        """Return when more blocks have arrived, none is on its way, or ``news`` is done."""
        ...

    def wait_until_safe(self, written: Iterable[Sequence[BlockTable]]) -> None:
        """To be called before anything is written to KV memory: what is about to be overwritten is then copied, and nothing is on its
        way any more into the blocks of ``written``: the tables, per layer group, of each text that is written to.
        """
        ...

    def tier_state(self) -> TierState | None:
        """``None`` without tiers."""
        ...

    def close(self) -> None:
        """Finish what was begun."""
        ...

    def held(self, sequence: StoredSequence, num_tokens: int) -> PlacedPrefix:
        """Where the first ``num_tokens`` tokens of a sequence lie, which it has computed and holds: as many of them as a
        lookup could find.
        """
        ...

    def locate(self, tokens: TokenArray, salt: str | None) -> PlacedPrefix:
        """The longest prefix of a text that a lookup finds, the last token included. Holds nothing: for between steps."""
        ...

    def place(self, tokens: TokenArray, salt: str | None) -> PlacedPrefix | None:
        """Blocks for a text whose keys and values the caller writes, then calls ``placed``. ``None`` without room.

        It counts on nothing in other tiers, which may turn out to be damaged. What ``locate`` finds must have arrived.
        """
        ...

    def placed(self, prefix: PlacedPrefix) -> None:
        """The text of ``place`` is written: let it be found."""
        ...

    def abandon(self, prefix: PlacedPrefix) -> None:
        """The text of ``place`` can't be written: give the blocks back, and let nothing be found that wasn't before."""
        ...

    def drop_cached(self) -> None:
        """Forget every prefix that no sequence holds."""
        ...

    def pool_state(self) -> PoolState: ...

    def check(self) -> None:
        """Raise if the bookkeeping contradicts itself. For any moment between two steps."""
        ...
