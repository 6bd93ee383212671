"""KVSequence: one sequence as the memory manager sees it - its text, its hashes and its block tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .block_hash import BlockHasher, ExtraKeys
from .block_table import BlockTable

Int32Array = npt.NDArray[np.int32]
TokenIds = Int32Array | Sequence[int]


class KVSequence:
    """The state of one sequence. Made by ``KVManager.open``; only the manager changes its tables.

        tokens     |------------- text -------------|          num_tokens
        computed   |------ keys and values there ---|···       num_computed_tokens ≤ num_tokens
        slots      |------ blocks to write into ------------|  num_slots

    ``tables[g]`` is the block table of layer group g. ``digests[i]`` is the hash of the text's i-th full block.
    """

    __slots__ = (
        "_buffer",
        "_extra_every",
        "_extra_single",
        "block_size",
        "digests",
        "hasher",
        "keys",
        "num_cached_blocks",
        "num_computed_tokens",
        "num_tokens",
        "read_cache",
        "session",
        "tables",
    )

    def __init__(
        self,
        token_ids: TokenIds,
        *,
        hasher: BlockHasher,
        block_size: int,
        keys: ExtraKeys,
        tables: list[BlockTable],
        digests: list[bytes] | None = None,
        read_cache: bool = True,
        session: str | None = None,
    ) -> None:
        """``digests``: hashes of leading blocks that are known already; the rest is computed here."""
        self._buffer = np.array(token_ids, dtype=np.int32)
        self.num_tokens = len(self._buffer)
        self.hasher = hasher
        self.block_size = block_size
        self.keys = keys
        self.tables = tables
        self.read_cache = read_cache
        self.session = session  # reported in events, never hashed
        self.num_computed_tokens = 0
        self.num_cached_blocks = [0] * len(tables)  # per group: leading blocks that need no hashing any more
        self._extra_every = keys.every_block()
        self._extra_single: dict[int, bytes] = {}
        self.digests: list[bytes] = [] if digests is None else digests
        self._hash_new_blocks()

    def __len__(self) -> int:
        return self.num_tokens

    @property
    def tokens(self) -> Int32Array:
        """int32, shape [num_tokens]: a view that is valid until tokens are appended."""
        return self._buffer[: self.num_tokens]

    @property
    def num_slots(self) -> int:
        """Positions that have a block in every group."""
        return min(len(table) * table.block_size for table in self.tables)

    def append(self, token_ids: TokenIds) -> None:
        """Add tokens to the text (sampled ones, or the next turn's). Takes no memory: see ``KVManager.reserve``.

        Costs time in what is added; a block is hashed once, when its last token arrives.
        """
        added = np.asarray(token_ids, dtype=np.int32)
        end = self.num_tokens + len(added)
        if end > len(self._buffer):
            grown = np.empty(max(end, 2 * len(self._buffer), 64), dtype=np.int32)
            grown[: self.num_tokens] = self._buffer[: self.num_tokens]
            self._buffer = grown
        self._buffer[self.num_tokens : end] = added
        self.num_tokens = end
        self._hash_new_blocks()

    def block_table(self, group: int = 0) -> Int32Array:
        """int32, shape [blocks]: physical block ids, a view that is valid until the table changes."""
        return self.tables[group].as_array()

    def slot_mapping(self, start: int, end: int, group: int = 0) -> npt.NDArray[np.int64]:
        """int64, shape [end - start]: where the keys and values of these positions are written."""
        return self.tables[group].slot_mapping(start, end)

    def extra_bytes(self, block_index: int) -> bytes:
        """What is hashed with block ``block_index`` besides its parent and its tokens."""
        return self._extra_every + self._extra_single.get(block_index, b"")

    def _hash_new_blocks(self) -> None:
        known = len(self.digests)
        full = self.num_tokens // self.block_size
        if full <= known:
            return
        if self.keys.cache_salt is not None or self.keys.images:
            self._extra_single = self.keys.single_blocks(self.block_size, self.num_tokens)
        self.digests += self.hasher.chain(
            self._buffer[known * self.block_size : full * self.block_size],
            self.block_size,
            parent=self.digests[-1] if known else None,
            every=self._extra_every,
            single={index - known: extra for index, extra in self._extra_single.items() if index >= known},
        )
