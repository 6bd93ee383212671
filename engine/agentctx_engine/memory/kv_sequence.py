"""KVSequence: one sequence as the memory manager sees it - its text, its hashes and its block tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .block_hash import BlockHasher, ExtraKeys
from .block_table import BlockTable
from .prompt_memory import NO_HINTS, BlockHints

Int32Array = npt.NDArray[np.int32]
TokenIds = Int32Array | Sequence[int]

_MAX_TOKEN_ID = 2**31 - 1


def token_array(token_ids: TokenIds) -> Int32Array:
    """Ids given in any form as int32, shape [tokens]; maybe the caller's own array. ``ValueError`` if they are no ids."""
    tokens = np.asarray(token_ids)
    if tokens.ndim != 1:
        raise ValueError(f"token ids must have one dimension, not {tokens.ndim}")
    if not tokens.size:
        return np.empty(0, dtype=np.int32)
    wide = tokens.dtype != np.int32
    if (
        not np.issubdtype(tokens.dtype, np.integer)
        or tokens.min() < 0
        or (wide and tokens.max() > _MAX_TOKEN_ID)
    ):
        raise ValueError(f"token ids are integers from 0 to {_MAX_TOKEN_ID}, got {tokens.dtype} outside that")
    return tokens.astype(np.int32, copy=False)


class KVSequence:
    """The state of one sequence. Made by ``KVManager.open``; only the manager changes its tables.

        tokens     |------------- text -------------|          num_tokens
        computed   |------ keys and values there ---|···       num_computed_tokens ≤ num_tokens
        slots      |------ blocks to write into ------------|  num_slots

    ``tables[g]`` is the block table of layer group g. ``digests[i]`` is the hash of the text's i-th full block.
    """

    __slots__ = (
        "_buffer",
        "block_size",
        "digests",
        "hasher",
        "hints",
        "keys",
        "num_cached_blocks",
        "num_computed_tokens",
        "num_remembered_tokens",
        "num_tokens",
        "read_cache",
        "session",
        "shadowed_blocks",
        "tables",
        "was_preempted",
    )

    def __init__(
        self,
        token_ids: Int32Array,
        *,
        hasher: BlockHasher,
        block_size: int,
        keys: ExtraKeys,
        tables: list[BlockTable],
        digests: list[bytes] | None = None,
        hints: BlockHints = NO_HINTS,
        read_cache: bool = True,
        session: str | None = None,
    ) -> None:
        """``token_ids`` becomes the sequence's own and may be read-only. ``digests``: hashes of leading blocks that are known already; the rest is computed here. ``hints``: where
        leading blocks were last seen.
        """
        self._buffer = token_ids
        self.num_tokens = len(self._buffer)
        self.hasher = hasher
        self.block_size = block_size
        self.keys = keys
        self.tables = tables
        self.read_cache = read_cache
        self.session = session  # reported in events, never hashed
        self.num_computed_tokens = 0
        self.num_cached_blocks = [0] * len(tables)  # per group: leading blocks that need no hashing any more
        self.num_remembered_tokens = 0  # of the computed tokens, those that the prompt memory has
        self.hints = hints
        # Logical blocks whose contents an older block holds too: that one answers lookups.
        self.shadowed_blocks: set[int] = set()
        self.was_preempted = False
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
        if len(self.tables) == 1:
            return len(self.tables[0].ids) * self.tables[0].block_size
        return min(len(table.ids) * table.block_size for table in self.tables)

    def append(self, token_ids: TokenIds) -> None:
        """Add tokens to the text (sampled ones, or the next turn's). Takes no memory: see ``KVManager.reserve``.

        Costs time in what is added; a block is hashed once, when its last token arrives.
        """
        if len(token_ids) == 1 and self.num_tokens < len(self._buffer):
            self._append_one(int(token_ids[0]))
            return
        added = token_array(token_ids)
        end = self.num_tokens + len(added)
        if not len(added):
            return
        if end > len(self._buffer):
            grown = np.empty(max(end, 2 * len(self._buffer), 64), dtype=np.int32)
            grown[: self.num_tokens] = self._buffer[: self.num_tokens]
            self._buffer = grown
        self._buffer[self.num_tokens : end] = added
        self.num_tokens = end
        self._hash_new_blocks()

    def _append_one(self, token_id: int) -> None:
        """The way of a decoded token, without an array for it."""
        if not 0 <= token_id <= _MAX_TOKEN_ID:
            raise ValueError(f"token ids are integers from 0 to {_MAX_TOKEN_ID}, got {token_id}")
        self._buffer[self.num_tokens] = token_id
        self.num_tokens += 1
        if not self.num_tokens % self.block_size:
            self._hash_new_blocks()

    def block_table(self, group: int = 0) -> Int32Array:
        """int32, shape [blocks]: physical block ids, a view that is valid until the table changes."""
        return self.tables[group].as_array()

    def slot_mapping(self, start: int, end: int, group: int = 0) -> npt.NDArray[np.int64]:
        """int64, shape [end - start]: where the keys and values of these positions are written."""
        return self.tables[group].slot_mapping(start, end)

    def extra_bytes(self, block_index: int) -> bytes:
        """What is hashed with block ``block_index`` besides its parent and its tokens."""
        single = self.keys.single_blocks(self.block_size, self.num_tokens).get(block_index, b"")
        return self.keys.every_block() + single

    def parent_of(self, block_index: int) -> bytes:
        """The hash that block ``block_index`` is chained to."""
        return self.digests[block_index - 1] if block_index else self.hasher.first_parent

    def _hash_new_blocks(self) -> None:
        known = len(self.digests)
        full = self.num_tokens // self.block_size
        if full <= known:
            return
        single = self.keys.single_blocks(self.block_size, self.num_tokens)
        self.digests += self.hasher.chain(
            self._buffer[known * self.block_size : full * self.block_size],
            self.block_size,
            parent=self.digests[-1] if known else None,
            every=self.keys.every_block(),
            single={index - known: extra for index, extra in single.items() if index >= known},
        )
