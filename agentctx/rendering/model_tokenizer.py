"""ModelTokenizer: special tokens around an encoder for plain text. What GGUF and tokenizer.json vocabularies become."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from agentctx.rendering.bpe import EncodeText
from agentctx.rendering.prompt import TokenIds
from agentctx.rendering.special_tokens import SpecialTokens
from agentctx.rendering.tokenizer import CharStarts
from agentctx.surrogates import replace_surrogates

# A cut before the blank can't move: a letter, a blank, a letter. ASCII, so that no vocabulary's idea of a letter differs.
_WORD_END = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])")
_WORD_END_WINDOW = 512
_C_SPACE = " \t\n\v\f\r"

Normalise = Callable[[str], tuple[str, npt.NDArray[np.int32] | None]]
"""Text to normalised text, with the character of the original at which each of its characters begins (``None``: the same)."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How a vocabulary treats the text around special tokens.

    ``phantom_space``: a blank is put before plain text at the beginning and behind a special token. ``blanks_as``: what a blank is
    written as before encoding. ``stripped_right``: special tokens that swallow the white space behind them. ``plain_special``: special
    tokens that are taken as such even in text whose special tokens are not to be read.
    """

    phantom_space: bool = False
    blanks_as: str = " "
    stripped_right: frozenset[int] = field(default=frozenset(), repr=False)
    plain_special: frozenset[int] = field(default=frozenset(), repr=False)
    words_end_at_spaces: bool = False


class TokenTexts:
    """The bytes that each token stands for, in one row: as objects of their own they'd take five times the room.

    ``lengths``: number of bytes by id, int32, shape [ids]; 0 for an id that stands for nothing.
    """

    def __init__(self, texts: Mapping[int, bytes]) -> None:
        self.lengths = np.zeros(max(texts, default=-1) + 1, dtype=np.int32)
        for index, text in texts.items():
            self.lengths[index] = len(text)
        self._ends = np.cumsum(self.lengths, dtype=np.int64)
        self._row = b"".join(texts[index] for index in sorted(texts))

    def __getitem__(self, index: int) -> bytes:
        end = int(self._ends[index])
        return self._row[end - int(self.lengths[index]) : end]


@dataclass
class ModelTokenizer:
    """A model's own vocabulary. ``texts``: the bytes of each token.

    ``bos``/``eos``: the texts of these tokens, empty when there is none. ``add_bos``: the server puts ``bos`` in front.
    """

    name: str
    special: SpecialTokens
    encode_text: EncodeText
    texts: TokenTexts
    rules: Rules = field(default_factory=Rules)
    normalise: Normalise | None = None
    bos: str = ""
    eos: str = ""
    add_bos: bool = False
    exact: bool = True

    def __post_init__(self) -> None:
        plain = {text: token for text, token in self.special.ids.items() if token in self.rules.plain_special}
        self._plain_special = SpecialTokens(plain)

    @property
    def special_tokens(self) -> Mapping[str, int]:
        return self.special.ids

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Bytes that each token stands for, by id."""
        return self.texts.lengths

    def encode(self, text: str) -> TokenIds:
        return self._encode(text, self.special)[0]

    def encode_ordinary(self, text: str) -> TokenIds:
        return self._encode(text, self._plain_special)[0]

    def encode_placed(self, text: str) -> tuple[TokenIds, CharStarts]:
        return self._encode(text, self.special)

    def place_ordinary(self, text: str) -> tuple[TokenIds, CharStarts]:
        return self._encode(text, self._plain_special)

    def count(self, text: str) -> int:
        return len(self.encode_ordinary(text))

    def decode(self, ids: TokenIds) -> str:
        return b"".join(self.texts[token] for token in ids.tolist()).decode("utf-8", errors="replace")

    def cut(self, text: str, limit: int) -> int:
        place = self.special.last_start(text, limit)
        if self.rules.words_end_at_spaces and not self.rules.phantom_space:
            # Also the blank and the letter behind the cut must be in the shared part.
            low = max(0, limit - _WORD_END_WINDOW)
            for match in _WORD_END.finditer(text, low, limit):
                place = max(place, match.start())
        return max(place, 0)

    def _encode(self, text: str, special: SpecialTokens) -> tuple[TokenIds, CharStarts]:
        text = replace_surrogates(text)
        ids: list[npt.NDArray[np.int32]] = []
        starts: list[npt.NDArray[np.int32]] = []
        fresh, strip = True, False
        for start, end, token in special.split(text):
            if token >= 0:
                ids.append(np.array([token], dtype=np.int32))
                starts.append(np.array([start], dtype=np.int32))
                fresh, strip = True, token in self.rules.stripped_right
                continue
            if strip:
                start += len(text[start:end]) - len(text[start:end].lstrip(_C_SPACE))
            if start < end:
                found, places = self._plain(text[start:end], fresh and self.rules.phantom_space)
                ids.append(found)
                starts.append(places + np.int32(start))
            fresh = strip = False
        empty = np.array([], dtype=np.int32)
        return (np.concatenate(ids) if ids else empty, np.concatenate(starts) if starts else empty)

    def _plain(self, text: str, phantom: bool) -> tuple[TokenIds, CharStarts]:
        """Ids of plain text, and where in it each begins."""
        origin: npt.NDArray[np.int32] | None = None
        if self.normalise is not None:
            text, origin = self.normalise(text)
        written = f" {text}" if phantom else text
        if self.rules.blanks_as != " ":
            written = written.replace(" ", self.rules.blanks_as)
        ids = np.array(self.encode_text(written), dtype=np.int32)
        lengths = self.lengths[ids].astype(np.int64)
        bytes_before = np.cumsum(lengths) - lengths
        # A token with the sign for a blank is as long as the blank, also where the text has the sign itself.
        spaced = text.replace(self.rules.blanks_as, " ")
        places = self._characters(spaced, bytes_before - 1 if phantom else bytes_before)
        return ids, places if origin is None else origin[places]

    def _characters(self, text: str, byte_starts: npt.NDArray[np.int64]) -> CharStarts:
        byte_starts = np.maximum(byte_starts, 0)
        if text.isascii():
            return np.minimum(byte_starts, max(len(text) - 1, 0)).astype(np.int32)
        data = np.frombuffer(text.encode(), dtype=np.uint8)
        character = np.cumsum((data & 0xC0) != 0x80, dtype=np.int32) - 1
        places: CharStarts = character[np.minimum(byte_starts, len(data) - 1)]
        return places
