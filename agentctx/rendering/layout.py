"""Pieces, runs and blocks: how a layout of ours becomes token ids and spans.

A block is one tool or one message. It is a list of runs; a run is either one special token or text that is
encoded on its own. Runs never touch without a special token between them, so encoding them one by one
gives what encoding the whole text gives, and a block's tokens don't depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from agentctx.rendering.prompt import Span, TokenIds, Zone
from agentctx.rendering.tokenizer import CharStarts, Tokenizer
from agentctx.surrogates import replace_surrogates

TEMPLATE = "template"


@dataclass(frozen=True, slots=True)
class Piece:
    """Text of one field inside a run."""

    text: str
    field: str = TEMPLATE


@dataclass(frozen=True, slots=True)
class Special:
    """One special token."""

    text: str


Run = Special | Sequence[Piece]


@dataclass(frozen=True, slots=True)
class Block:
    """An encoded block. ``marks`` holds (field, first token, end token, first char, end char), from 0 in the block.

    ``starts``: the character of the block at which each token begins.
    """

    token_ids: TokenIds
    starts: CharStarts
    text: str
    marks: tuple[tuple[str, int, int, int, int], ...]

    def spans(self, zone: Zone, item: int | None, token: int, char: int, note_zone: Zone) -> Iterable[Span]:
        """The block's spans when it begins at the given token and character of a prompt."""
        for name, start, end, char_start, char_end in self.marks:
            here: Zone = "template" if name == TEMPLATE else note_zone if name == "note" else zone
            yield Span(
                token + start,
                token + end,
                char + char_start,
                char + char_end,
                here,
                None if name == TEMPLATE else item,
                name,
            )


def encode_block(runs: Iterable[Run], tokenizer: Tokenizer) -> Block:
    """Encode the runs. Equal neighbouring fields are one mark; a token over two fields belongs to the first."""
    special = tokenizer.special_tokens
    ids: list[TokenIds | list[int]] = []
    places: list[CharStarts | list[int]] = []
    texts: list[str] = []
    marks: list[tuple[str, int, int, int, int]] = []
    token = char = 0

    def mark(name: str, tokens: int, chars: int) -> None:
        nonlocal token, char
        if marks and marks[-1][0] == name:
            last = marks.pop()
            marks.append((name, last[1], token + tokens, last[3], char + chars))
        else:
            marks.append((name, token, token + tokens, char, char + chars))
        token, char = token + tokens, char + chars

    for run in runs:
        if isinstance(run, Special):
            ids.append([special[run.text]])
            places.append([char])
            texts.append(run.text)
            mark(TEMPLATE, 1, len(run.text))
            continue
        pieces = [(piece.field, replace_surrogates(piece.text)) for piece in run if piece.text]
        if not pieces:
            continue
        text = pieces[0][1] if len(pieces) == 1 else "".join(piece for _, piece in pieces)
        encoded, starts = tokenizer.place_ordinary(text)
        ids.append(encoded)
        places.append(starts + np.int32(char))
        texts.append(text)
        cuts = [len(encoded)]
        if len(pieces) > 1:
            ends = np.array([len(piece) for _, piece in pieces], dtype=np.int32)
            cuts = starts.searchsorted(ends.cumsum(dtype=np.int32)).tolist()
        done = 0
        for (name, piece), cut in zip(pieces, cuts, strict=True):
            mark(name, cut - done, len(piece))
            done = cut
    if not ids:
        empty = np.array([], dtype=np.int32)
        return Block(empty, empty, "", ())
    return Block(
        np.concatenate(ids, dtype=np.int32),
        np.concatenate(places, dtype=np.int32),
        "".join(texts),
        tuple(marks),
    )
