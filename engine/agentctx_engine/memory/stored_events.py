"""Which BlocksStored events tell that blocks of a sequence can be found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .kv_events import BlocksStored
from .kv_sequence import KVSequence
from .layer_groups import LayerGroup


def stored_events(seq: KVSequence, group: LayerGroup, indices: Sequence[int]) -> Iterator[BlocksStored]:
    """One event for each run of consecutive logical blocks in ``indices`` (ascending).

    The parent comes from the text's hash chain, whatever stands before the block in the table.
    """
    hashes = group.own_hashes(seq.digests)
    size = group.block_size
    start = 0
    for end in range(1, len(indices) + 1):
        if end < len(indices) and indices[end] == indices[end - 1] + 1:
            continue
        first, last = indices[start], indices[end - 1] + 1
        yield BlocksStored(
            hashes=tuple(hashes[first:last]),
            parent=hashes[first - 1] if first else None,
            token_ids=tuple(seq.tokens[first * size : last * size].tolist()),
            block_size=size,
            group=group.index,
            adapter=seq.keys.adapter.name if seq.keys.adapter else None,
            session=seq.session,
        )
        start = end
