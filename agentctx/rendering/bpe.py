"""Byte-level BPE out of tokens and merges, run by tiktoken where tiktoken gives the same.

A merge list says which *pairs* may merge; tiktoken merges any two neighbours whose bytes together are a token. Where the two may differ
(``last_merges`` tells), the vocabulary is merged here, pair by pair.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, AnyStr

import numpy as np
import numpy.typing as npt

from agentctx.errors import RenderError
from agentctx.rendering.last_merges import last_merges
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
_NO_BYTE = 0xFFFD
# Each letter's byte, as a character; other characters of the range stand for none, and those above it are no Latin-1 anyway.
_BYTES = dict.fromkeys(range(512), _NO_BYTE) | {ord(letter): value for letter, value in _LETTERS.items()}


def token_bytes(text: str) -> bytes | None:
    """The bytes that a byte-level token stands for; ``None`` when its text is not written in byte letters."""
    try:
        return text.translate(_BYTES).encode("latin-1")
    except UnicodeEncodeError:
        return None


class Merges:
    """A merge list. The 256 bytes and whatever else it names are numbered.

    ``tokens``: bytes by number. ``left``/``right``/``made``: what each merge joins and what it makes, by number, int32, shape [merges].
    """

    def __init__(self, pairs: Iterable[tuple[bytes, bytes]]) -> None:
        self.tokens, numbers = _numbered([bytes([value]) for value in range(256)], pairs)
        self.left, self.right, self.made = numbers

    @classmethod
    def written(cls, merges: Iterable[str | Sequence[str]]) -> Merges:
        """From merges in byte letters, as two texts or with a space between; one that is written otherwise can never apply and is left out.

        Raises ``ValueError`` for what are no two texts.
        """
        pairs = (merge.split(" ", 1) if isinstance(merge, str) else merge for merge in merges)
        letters = sorted(_LETTERS, key=_LETTERS.__getitem__)
        texts, numbers = _numbered(letters, pairs)
        made = cls(())
        made.tokens = [token_bytes(text) or b"" for text in texts]
        known = np.fromiter(map(bool, made.tokens), dtype=np.bool_, count=len(texts))
        made.left, made.right, made.made = numbers[:, known[numbers[0]] & known[numbers[1]]]
        return made

    @cached_property
    def rank(self) -> dict[tuple[bytes, bytes], int]:
        """Place of each pair in the list."""
        found: dict[tuple[bytes, bytes], int] = {}
        for place, (left, right) in enumerate(zip(self.left.tolist(), self.right.tolist(), strict=True)):
            found.setdefault((self.tokens[left], self.tokens[right]), place)
        return found

    def ranked(self) -> list[bytes] | None:
        """Tokens by the rank with which tiktoken merges like this list, the 256 bytes first. ``None`` when there may be no such ranks."""
        lengths = np.fromiter(map(len, self.tokens), dtype=np.int32, count=len(self.tokens))
        last = last_merges(self.left, self.right, self.made, lengths)
        if last is None:
            return None
        known = np.flatnonzero(last < len(self.made))
        return [self.tokens[number] for number in known[last[known].argsort(kind="stable")].tolist()]


def _numbered(
    tokens: Iterable[AnyStr], pairs: Iterable[Sequence[AnyStr]]
) -> tuple[list[AnyStr], npt.NDArray[np.int32]]:
    """The tokens and what the pairs name beside them, and the numbers of each pair's parts and of both together, shape [3, pairs]."""
    numbers = {token: number for number, token in enumerate(tokens)}
    number, found = numbers.setdefault, array("i")
    for left, right in pairs:
        found.append(number(left, len(numbers)))
        found.append(number(right, len(numbers)))
        found.append(number(left + right, len(numbers)))
    return list(numbers), np.array(found, dtype=np.int32).reshape(-1, 3).T


def encode_with_tiktoken(
    name: str, ids: Mapping[bytes, int], ranked: Sequence[bytes], pattern: str
) -> tuple[tiktoken.Encoding, EncodeText]:
    """An ``Encoding`` of tokens by rank, the 256 bytes first, and an encoder that gives the vocabulary's own ids."""
    import tiktoken

    own = np.array([ids.get(token, -1) for token in ranked], dtype=np.int64)
    ranks = {token: rank for rank, token in enumerate(ranked)}
    encoding = tiktoken.Encoding(name=name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    ranks.clear()  # it has made tables of its own
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


def byte_level_encoder(name: str, ids: Mapping[bytes, int], merges: Merges, cut: PreTokenizer) -> EncodeText:
    """The fastest encoder that is exact for the vocabulary.

    ``ids``: token bytes to id, without special tokens. Raises ``RenderError`` when there are neither tokens nor merges.
    """
    if not ids:
        raise RenderError(f"{name}: the vocabulary holds no byte-level tokens")
    ranked = merges.ranked() if cut.pattern is not None else None
    if cut.pattern is None or ranked is None or any(token not in ids for token in ranked[256:]):
        return PairMerger(ids, merges, cut)
    if cut.ignore_merges and sum(len(token) > 1 for token in ids) > len(ranked) - 256:
        return PairMerger(ids, merges, cut)  # some tokens are words that merging doesn't give
    return encode_with_tiktoken(name, ids, ranked, cut.pattern)[1]
