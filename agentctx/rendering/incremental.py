"""Encoding only what changed: a new text is cut where the tokens before the cut can't differ.

A tokenizer names such a place itself (``Tokenizer.cut``): before a special token that stands wholly in the part which both texts
share, or at a boundary between words that its pre-tokenizer always keeps. Everything before the cut is taken over, everything behind it is
encoded again; the result is what encoding the whole text gives.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agentctx.common_ends import common_start
from agentctx.rendering.growing import Grown
from agentctx.rendering.prompt import TokenIds
from agentctx.rendering.tokenizer import CharStarts, Tokenizer
from agentctx.rendering.written import Written


@dataclass(frozen=True, slots=True)
class Encoded:
    """A text and its tokens. ``cut``: a place at which every text with the same first ``limit`` characters can be encoded in two halves."""

    text: Written
    tokens: Grown
    cut: int = 0
    limit: int = 0

    @property
    def ids(self) -> TokenIds:
        return self.tokens.ids

    @property
    def starts(self) -> CharStarts:
        """The character at which each token begins."""
        return self.tokens.starts


def encode(tokenizer: Tokenizer, text: str | Written) -> Encoded:
    """Encode the whole text."""
    return Encoded(Written.of(text), Grown.of(*tokenizer.encode_placed(str(text))))


def encode_further(
    tokenizer: Tokenizer, text: str | Written, previous: Encoded | None, known: int = 0
) -> tuple[Encoded, int]:
    """Encode ``text``, taking over from ``previous`` what both share. ``known``: characters of which one knows that they do.

    Returns the tokens and the character from which on they were encoded anew.
    """
    if previous is None:
        return encode(tokenizer, text), 0
    text = Written.of(text)
    # Where the previous text was cut, this one can be too: what stands before need not be looked at.
    first = previous.cut if known >= previous.limit else 0
    before, behind = previous.text.behind(first), text.behind(first)
    shared = common_start(before, behind, max(known - first, 0))
    if shared == len(before) == len(behind):
        return previous, first + shared
    at = tokenizer.cut(behind, shared)
    cut = first + at
    if cut <= 0:
        return encode(tokenizer, text), 0
    kept = int(previous.starts.searchsorted(np.int32(cut)))  # of one type: else all places are converted
    ids, starts = tokenizer.encode_placed(behind[at:])
    tokens = previous.tokens.extended(kept, ids, starts + np.int32(cut))
    return Encoded(text, tokens, cut, first + shared), cut
