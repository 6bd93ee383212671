"""SentencePiece vocabularies in GGUF files (Llama 2, Gemma): merging by score, as llama.cpp does it.

A text, with ``▁`` for each space, is merged from single characters: of all neighbours that together are a token, the pair whose token has the
highest score goes first, of equal scores the leftmost. Characters that are no token become their bytes. No merge can reach over a
place where no token does, so the text is cut before each ``▁`` that follows a character after which no token holds one, and pieces
seen before are remembered.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Mapping, Sequence

SPACE = "▁"


class ScoreMerger:
    """Encodes plain text in which spaces are written as ``▁``. ``ids`` and ``scores``: by token text; ``byte_ids``: by byte, -1 where missing."""

    most_pieces = 200_000

    def __init__(self, ids: Mapping[str, int], scores: Mapping[str, float], byte_ids: Sequence[int]) -> None:
        self.ids = ids
        self.scores = scores
        self.byte_ids = byte_ids
        self.joiners, self._cut = space_cuts(ids)
        self._pieces: dict[str, list[int]] = {}

    def __call__(self, text: str) -> list[int]:
        out: list[int] = []
        pieces = self._pieces
        for piece in self._cut.split(text):
            known = pieces.get(piece)
            if known is None:
                known = self._merge(piece)
                if len(pieces) >= self.most_pieces:
                    pieces.clear()
                if len(piece) <= 100:
                    pieces[piece] = known
            out.extend(known)
        return out

    def _merge(self, text: str) -> list[int]:
        scores = self.scores
        alive = list(text)
        following = [*range(1, len(alive)), -1]
        before = list(range(-1, len(alive) - 1))
        heap: list[tuple[float, int, int]] = []

        def offer(left: int, right: int) -> None:
            if left >= 0 and right >= 0:
                made = alive[left] + alive[right]
                score = scores.get(made)
                if score is not None:
                    heapq.heappush(heap, (-score, left, len(made)))

        for index in range(len(alive) - 1):
            offer(index, index + 1)
        while heap:
            _, left, size = heapq.heappop(heap)
            right = following[left]
            if right < 0 or not alive[left] or len(alive[left]) + len(alive[right]) != size:
                continue
            alive[left] += alive[right]
            alive[right] = ""
            following[left] = following[right]
            if following[left] >= 0:
                before[following[left]] = left
            offer(before[left], left)
            offer(left, following[left])
        return [token for piece in alive if piece for token in self._ids_of(piece)]

    def _ids_of(self, piece: str) -> list[int]:
        known = self.ids.get(piece)
        if known is not None:
            return [known]
        return [self.byte_ids[value] for value in piece.encode() if self.byte_ids[value] >= 0]


def space_cuts(tokens: Iterable[str]) -> tuple[frozenset[str], re.Pattern[str]]:
    """The characters after which some token holds a ``▁``, and where a text may be cut: before each ``▁`` after another character."""
    joiners = frozenset(
        token[at - 1]
        for token in tokens
        for at in range(1, len(token))
        if token[at] == SPACE and token[at - 1] != SPACE
    )
    kept = "".join(sorted(joiners)) + SPACE
    return joiners, re.compile(f"(?<=[^{re.escape(kept)}])(?={SPACE})")
