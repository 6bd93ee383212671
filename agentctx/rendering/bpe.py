"""Byte-level BPE out of tokens and merges, run by tiktoken where tiktoken gives the same.

A merge list says which *pairs* may merge; tiktoken merges any two neighbours whose bytes together are a token. The two agree when every
token is what merging its own bytes gives (``is_canonical``): a stretch of text that ends up as one token was, just before, split in
the one way that its merge names. Vocabularies for which that fails are merged here, pair by pair.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from agentctx.errors import RenderError
from agentctx.rendering.pretokenizers import PreTokenizer

if TYPE_CHECKING:
    import tiktoken

EncodeText = Callable[[str], list[int]]
"""Plain text to token ids."""


def byte_letters() -> dict[str, int]:
    """The letters with which byte-level BPE files write bytes: printable Latin-1 as itself, the rest from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(0x100 + i): b for i, b in enumerate(rest)}


_LETTERS = byte_letters()


def token_bytes(text: str) -> bytes | None:
    """The bytes that a byte-level token stands for; ``None`` when its text is not written in byte letters."""
    try:
        return bytes([_LETTERS[letter] for letter in text])
    except KeyError:
        return None


def split_merges(merges: Sequence[str]) -> list[tuple[bytes, bytes]]:
    """Merges in order as pairs of bytes; a merge that is not written in byte letters can never apply and is left out."""
    pairs = []
    for merge in merges:
        left, _, right = merge.partition(" ") if merge[:1] != " " else (" ", "", merge[2:])
        a, b = token_bytes(left), token_bytes(right)
        if a and b:
            pairs.append((a, b))
    return pairs


class Merges:
    """A merge list, indexed."""

    def __init__(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        self.rank: dict[tuple[bytes, bytes], int] = {}
        self.made: dict[bytes, tuple[int, bytes, bytes]] = {}
        for rank, pair in enumerate(pairs):
            self.rank.setdefault(pair, rank)
            self.made.setdefault(pair[0] + pair[1], (rank, *pair))

    def is_canonical(self) -> bool:
        """Whether merging each token's own bytes gives that token, so that tiktoken's rule gives what the pairs give."""
        made = self.made
        for rank, left, right in made.values():
            if len(left) > 1 and (left not in made or made[left][0] >= rank):
                return False
            if len(right) > 1 and (right not in made or made[right][0] >= rank):
                return False
            if self._crossed(left, right, rank):
                return False
        return True

    def _crossed(self, left: bytes, right: bytes, limit: int) -> bool:
        """Whether some merge joins an end of ``left`` with a beginning of ``right`` before merge ``limit`` joins the two whole.

        The end pieces that ``left`` shows while it is being built each live from the merge that makes them to the merge that uses them
        up; the same holds for the beginnings of ``right``. A pair that lives at the time of its own merge would be taken.
        """
        rights = self._spine(right, limit, first=True)
        for end, born, used in self._spine(left, limit, first=False):
            for beginning, born_too, used_too in rights:
                rank = self.rank.get((end, beginning), limit)
                # Of equal merges the leftmost goes first: inside ``left`` before the crossing, the crossing before inside ``right``.
                if max(born, born_too) < rank < used and rank <= used_too and rank < limit:
                    return True
        return False

    def _spine(self, token: bytes, used: int, *, first: bool) -> list[tuple[bytes, int, int]]:
        pieces = []
        while True:
            made = self.made.get(token) if len(token) > 1 else None
            if made is None:
                pieces.append((token, -1, used))
                return pieces
            pieces.append((token, made[0], used))
            used, token = made[0], made[1] if first else made[2]


def encode_with_tiktoken(
    name: str, ids: Mapping[bytes, int], merges: Merges, pattern: str
) -> tuple[tiktoken.Encoding, EncodeText]:
    """An ``Encoding`` whose ranks are the merge order, and an encoder that gives the vocabulary's own ids."""
    import numpy as np
    import tiktoken

    singles = [bytes([value]) for value in range(256)]
    ranked = [*singles, *(token for token in merges.made if token in ids)]
    own = np.array([ids.get(token, -1) for token in ranked], dtype=np.int64)
    encoding = tiktoken.Encoding(
        name=name,
        pat_str=pattern,
        mergeable_ranks={token: rank for rank, token in enumerate(ranked)},
        special_tokens={},
    )
    every_byte_known = bool((own[:256] >= 0).all())

    def encode(text: str) -> list[int]:
        found = own[encoding.encode_ordinary(text)] if text else own[:0]
        # llama.cpp drops bytes that the vocabulary lacks.
        result: list[int] = (found if every_byte_known else found[found >= 0]).tolist()
        return result

    return encoding, encode


class PairMerger:
    """Merges pair by pair, word by word; words seen before are remembered."""

    most_words = 200_000

    def __init__(self, ids: Mapping[bytes, int], merges: Merges, cut: PreTokenizer) -> None:
        self.ids = ids
        self.rank = merges.rank
        self.cut = cut
        self._words: dict[str, list[int]] = {}

    def __call__(self, text: str) -> list[int]:
        out: list[int] = []
        for word in self.cut.split(text):
            known = self._words.get(word)
            if known is None:
                known = self._merge(word.encode())
                if len(self._words) >= self.most_words:
                    self._words.clear()
                self._words[word] = known
            out.extend(known)
        return out

    def _merge(self, word: bytes) -> list[int]:
        if self.cut.ignore_merges and word in self.ids:
            return [self.ids[word]]
        pieces = merge_pieces([word[i : i + 1] for i in range(len(word))], self.rank)
        found: list[int] = []
        for piece in pieces:
            known = [piece] if piece in self.ids else [piece[i : i + 1] for i in range(len(piece))]
            found.extend(self.ids[part] for part in known if part in self.ids)
        return found


def merge_pieces(pieces: list[bytes], rank: Mapping[tuple[bytes, bytes], int]) -> list[bytes]:
    """Merge neighbours, lowest rank first, of equal ranks the leftmost."""
    following = [*range(1, len(pieces)), -1]
    before = list(range(-1, len(pieces) - 1))
    alive: list[bytes | None] = list(pieces)
    heap: list[tuple[int, int, bytes, bytes]] = []

    def offer(left: int, right: int) -> None:
        a, b = alive[left], alive[right]
        if left >= 0 and right >= 0 and a is not None and b is not None and (a, b) in rank:
            heapq.heappush(heap, (rank[a, b], left, a, b))

    for index in range(len(pieces) - 1):
        offer(index, index + 1)
    while heap:
        _, left, a, b = heapq.heappop(heap)
        right = following[left]
        if right < 0 or alive[left] != a or alive[right] != b:
            continue
        alive[left], alive[right] = a + b, None
        following[left] = following[right]
        if following[left] >= 0:
            before[following[left]] = left
        offer(before[left], left)
        offer(left, following[left])
    return [piece for piece in alive if piece is not None]


def byte_level_encoder(
    name: str, ids: Mapping[bytes, int], merges: Sequence[tuple[bytes, bytes]], cut: PreTokenizer
) -> EncodeText:
    """The fastest encoder that is exact for the vocabulary.

    ``ids``: token bytes to id, without special tokens. Raises ``RenderError`` when there are neither tokens nor merges.
    """
    if not ids:
        raise RenderError(f"{name}: the vocabulary holds no byte-level tokens")
    index = Merges(merges)
    whole_words_only = cut.ignore_merges and any(len(token) > 1 and token not in index.made for token in ids)
    unmade = any(token not in ids for token in index.made)
    if cut.pattern is not None and not whole_words_only and not unmade and index.is_canonical():
        return encode_with_tiktoken(name, ids, index, cut.pattern)[1]
    return PairMerger(ids, index, cut)
