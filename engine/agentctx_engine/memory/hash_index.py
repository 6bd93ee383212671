"""HashIndex: which block answers for a hash, as a dictionary in parts that grow one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

_SHARDS = 32  # a power of two, at most 256


class HashIndex:
    """A mapping of hashes (bytes, at least one) to block ids.

    The interpreter never uses the place of a deleted entry again: a dictionary that loses as many entries as it gains
    is built anew from time to time, and then stands in memory twice. At a million hashes that is 80 MB and a pause of
    tenths of a second. Here the last byte of a hash says which of 32 dictionaries holds it, so that both are 1/32.
    """

    __slots__ = ("_shard_of", "_shards")

    def __init__(self) -> None:
        self._shards: list[dict[bytes, int]] = [{} for _ in range(_SHARDS)]
        self._shard_of = self._shards * (256 // _SHARDS)  # by last byte

    def __len__(self) -> int:
        return sum(map(len, self._shards))

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._shard_of[digest[-1]]

    def __getitem__(self, digest: bytes) -> int:
        return self._shard_of[digest[-1]][digest]

    def __setitem__(self, digest: bytes, block: int) -> None:
        self._shard_of[digest[-1]][digest] = block

    def get(self, digest: bytes) -> int | None:
        return self._shard_of[digest[-1]].get(digest)

    def items(self) -> Iterator[tuple[bytes, int]]:
        for shard in self._shards:
            yield from shard.items()

    def clear(self) -> None:
        for shard in self._shards:
            shard.clear()

    def add(self, digests: Sequence[bytes], blocks: Sequence[int]) -> list[int]:
        """Let ``blocks[i]`` answer for ``digests[i]`` unless another does; returns the i where another does."""
        shard_of = self._shard_of
        answering = [
            shard_of[digest[-1]].setdefault(digest, block)
            for digest, block in zip(digests, blocks, strict=True)
        ]
        if answering == blocks:
            return []
        return [i for i, (holder, block) in enumerate(zip(answering, blocks, strict=True)) if holder != block]

    def discard(self, digests: Iterable[bytes]) -> None:
        """Forget ``digests``, all of which must be there."""
        shard_of = self._shard_of
        for digest in digests:
            del shard_of[digest[-1]][digest]

    def run(self, digests: Sequence[bytes]) -> list[int]:
        """The blocks of the longest run of ``digests``, from its start, that are all there."""
        shard_of = self._shard_of
        blocks: list[int] = []
        start, step = 0, 16
        # In strides that double: a miss at the start costs little, a long hit is found in one go.
        while start < len(digests):
            found = [shard_of[digest[-1]].get(digest) for digest in digests[start : start + step]]
            if None in found:
                blocks += found[: found.index(None)]  # type: ignore[arg-type]  # none is None up to there
                break
            blocks += found  # type: ignore[arg-type]
            start, step = start + step, step * 2
        return blocks
