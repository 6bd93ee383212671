"""Block hashes: one digest per full block, chained, so that it stands for the whole prefix up to that block's end.

    digest[i] = H(digest[i - 1] ‖ tokens of block i as big-endian int32 ‖ extra bytes of block i)

The first parent is H("NONE"). With SHA-256 and no extra keys, equal text gives equal digests in every process and in
every implementation of this rule.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Algorithm = Literal["sha256", "fast"]

_MASK = (1 << 64) - 1
_SLAB = 256  # blocks that are packed at a time, so that a long text needs no second copy in memory


@dataclass(frozen=True, slots=True)
class ImageSpan:
    """Tokens ``start … start + length - 1`` stand for an image (or other media) with this content hash."""

    content_hash: str
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class Adapter:
    """The LoRA adapter that computes the sequence: its keys and values differ, so nothing is shared across it.

    ``path`` names the weights, since one name may be loaded again from elsewhere.
    """

    name: str
    path: str = ""


@dataclass(frozen=True, slots=True)
class ExtraKeys:
    """What makes equal tokens stand for different contents, besides the tokens.

    ``cache_salt`` enters the first block only; the chain carries it on. ``adapter`` enters every block, an image
    those blocks that it overlaps, with its place relative to the block. Kind and length of each part are hashed
    with it, so that a salt never collides with an adapter of the same name.
    """

    cache_salt: str | None = None
    adapter: Adapter | None = None
    images: tuple[ImageSpan, ...] = ()

    @property
    def namespace(self) -> bytes:
        """Bytes that are equal iff two sequences may share their first block, images aside."""
        return self._salt_part() + self._adapter_part()

    def every_block(self) -> bytes:
        """Extra bytes of all blocks."""
        return self._adapter_part()

    def single_blocks(self, block_size: int, num_tokens: int) -> dict[int, bytes]:
        """Extra bytes that only some blocks have, by block index, for the blocks of the first ``num_tokens``."""
        if self.cache_salt is None and not self.images:
            return {}
        parts: dict[int, bytes] = {}
        if self.cache_salt is not None:
            parts[0] = self._salt_part()
        for image in self.images:
            last = min(image.start + image.length, num_tokens) - 1
            if last < image.start:
                continue
            for index in range(image.start // block_size, last // block_size + 1):
                offset = struct.pack(">q", image.start - index * block_size)
                parts[index] = parts.get(index, b"") + _part(b"I", offset, image.content_hash.encode())
        return parts

    def _salt_part(self) -> bytes:
        return b"" if self.cache_salt is None else _part(b"S", self.cache_salt.encode())

    def _adapter_part(self) -> bytes:
        if self.adapter is None:
            return b""
        return _part(b"A", self.adapter.name.encode(), self.adapter.path.encode())


NO_KEYS = ExtraKeys()


def _part(kind: bytes, *fields: bytes) -> bytes:
    """One extra key, framed: no two sequences of parts give the same bytes."""
    framed = b"".join(struct.pack(">I", len(field)) + field for field in fields)
    return kind + struct.pack(">I", len(framed)) + framed


class BlockHasher:
    """Computes chains of block digests.

    ``sha256``: 32-byte digests, the same in every process; two texts never meet in practice, so a digest is trusted
    without comparing tokens. ``fast``: 8-byte digests from the interpreter's keyed string hash under a random seed,
    about twice as fast, different in every process, and not collision-proof: for one trusted user.

    ``seed`` replaces the text ``NONE`` (sha256) or the random bytes (fast) that the first parent is made from.
    """

    __slots__ = ("algorithm", "first_parent")

    def __init__(self, algorithm: Algorithm = "sha256", *, seed: bytes | None = None) -> None:
        self.algorithm = algorithm
        if algorithm == "sha256":
            self.first_parent = hashlib.sha256(b"NONE" if seed is None else seed).digest()
        elif algorithm == "fast":
            self.first_parent = _fast_digest(os.urandom(16) if seed is None else seed)
        else:
            raise ValueError(f"unknown hash algorithm {algorithm!r}; known are 'sha256' and 'fast'")

    def chain(
        self,
        token_ids: Int32Array | Sequence[int],
        block_size: int,
        *,
        parent: bytes | None = None,
        every: bytes = b"",
        single: Mapping[int, bytes] | None = None,
    ) -> list[bytes]:
        """Digests of the full blocks of ``token_ids``, which follow ``parent`` (the start of a text if None).

        ``every``: extra bytes of each block. ``single``: extra bytes by block index *within ``token_ids``*.
        Trailing tokens that fill no block are not hashed.
        """
        tokens = np.asarray(token_ids, dtype=np.int32)
        num_blocks = len(tokens) // block_size
        digest = self.first_parent if parent is None else parent
        digests: list[bytes] = []
        for first in range(0, num_blocks, _SLAB):
            last = min(first + _SLAB, num_blocks)
            data = tokens[first * block_size : last * block_size].astype(">i4").tobytes()
            if every or single:
                extras = [every + (single or {}).get(index, b"") for index in range(first, last)]
                digest = self._extend_with(digests, digest, data, 4 * block_size, extras)
            else:
                digest = self._extend(digests, digest, data, 4 * block_size)
        return digests

    def _extend(self, digests: list[bytes], digest: bytes, data: bytes, step: int) -> bytes:
        """Add the digests of ``data`` in steps of ``step`` bytes; returns the last. The hot loop: no call of our own."""
        add = digests.append
        if self.algorithm == "sha256":
            sha256 = hashlib.sha256
            for start in range(0, len(data), step):
                digest = sha256(digest + data[start : start + step]).digest()
                add(digest)
        else:
            for start in range(0, len(data), step):
                digest = (hash(digest + data[start : start + step]) & _MASK).to_bytes(8, "big")
                add(digest)
        return digest

    def _extend_with(
        self, digests: list[bytes], digest: bytes, data: bytes, step: int, extras: list[bytes]
    ) -> bytes:
        """The same with extra bytes for each block."""
        for index, extra in enumerate(extras):
            digest = self._hash_bytes(digest + data[index * step : (index + 1) * step] + extra)
            digests.append(digest)
        return digest

    def partial(self, parent: bytes, token_ids: Int32Array | Sequence[int], extra: bytes = b"") -> bytes:
        """Key of a block that is only partly filled.

        It can't equal a full block's, where the parent is followed by a token id: no id is negative.
        """
        data = np.asarray(token_ids, dtype=">i4").tobytes()
        return self._hash_bytes(parent + _part(b"\xff", data, extra))

    def _hash_bytes(self, data: bytes) -> bytes:
        if self.algorithm == "sha256":
            return hashlib.sha256(data).digest()
        return _fast_digest(data)


def _fast_digest(data: bytes) -> bytes:
    return (hash(data) & _MASK).to_bytes(8, "big")
