"""Tokenizer: the one interface to every vocabulary, and its tiktoken form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from agentctx.errors import UsageError
from agentctx.rendering.embedded import embedded_encoding
from agentctx.rendering.prompt import TokenIds
from agentctx.rendering.special_tokens import SpecialTokens
from agentctx.surrogates import replace_surrogates

if TYPE_CHECKING:
    import tiktoken

CharStarts = npt.NDArray[np.int32]


class Tokenizer(Protocol):
    """Text to token ids and back.

    ``exact`` is False for a stand-in: its counts are estimates for the model in question.
    """

    @property
    def name(self) -> str: ...

    @property
    def exact(self) -> bool: ...

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """Texts that are one token each wherever ``encode`` meets them."""
        ...

    def encode(self, text: str) -> TokenIds:
        """Ids of the text; the text of a special token is that one token. Nothing is added in front."""
        ...

    def encode_ordinary(self, text: str) -> TokenIds:
        """Ids of the text, with the text of a special token read as plain text."""
        ...

    def encode_placed(self, text: str) -> tuple[TokenIds, CharStarts]:
        """``encode``, and for each token the character at which it begins.

        A token that begins inside a character's bytes is said to begin at that character.
        """
        ...

    def place_ordinary(self, text: str) -> tuple[TokenIds, CharStarts]:
        """``encode_ordinary``, and for each token the character at which it begins."""
        ...

    def cut(self, text: str, limit: int) -> int:
        """A place in ``text[:limit]``, as far back as needed, at which the text can be encoded in two halves.

        For every text that shares its first ``limit`` characters with this one, the tokens of the whole are those of the part before the place
        (the same for all these texts), then those of the part behind it. 0 when no such place is known.
        """
        ...

    def decode(self, ids: TokenIds) -> str: ...

    def count(self, text: str) -> int: ...


def byte_starts_to_char_starts(text: str, byte_starts: npt.NDArray[np.int64 | np.int32]) -> CharStarts:
    """Offsets into the UTF-8 bytes of ``text`` turned into character offsets."""
    if text.isascii():
        return byte_starts.astype(np.int32, copy=False)
    data = np.frombuffer(text.encode(), dtype=np.int8)
    char_of_byte = (data >= -64).cumsum(dtype=np.int32)  # bytes below that go on with a character
    char_of_byte -= 1
    return char_of_byte[byte_starts]


class TiktokenTokenizer:
    """A tiktoken ``Encoding``: byte-level BPE whose ids are the encoding's own."""

    def __init__(self, encoding: tiktoken.Encoding, *, exact: bool = True) -> None:
        self.encoding = encoding
        self.name = encoding.name
        self.exact = exact

    @cached_property
    def special_tokens(self) -> Mapping[str, int]:
        return {text: self.encoding.encode_single_token(text) for text in self.encoding.special_tokens_set}

    @cached_property
    def _lengths(self) -> npt.NDArray[np.int32]:
        """Bytes of each token by id. Ids that the encoding leaves unused have length 0."""
        lengths = np.zeros(self.encoding.n_vocab, dtype=np.int32)
        for token in range(self.encoding.n_vocab):
            try:
                lengths[token] = len(self.encoding.decode_single_token_bytes(token))
            except KeyError:
                continue
        return lengths

    def encode(self, text: str) -> TokenIds:
        return self._encode(replace_surrogates(text))

    def encode_ordinary(self, text: str) -> TokenIds:
        return np.array(self.encoding.encode_ordinary(replace_surrogates(text)), dtype=np.int32)

    def encode_placed(self, text: str) -> tuple[TokenIds, CharStarts]:
        text = replace_surrogates(text)
        return self._placed(text, self._encode(text))

    def place_ordinary(self, text: str) -> tuple[TokenIds, CharStarts]:
        text = replace_surrogates(text)
        return self._placed(text, np.array(self.encoding.encode_ordinary(text), dtype=np.int32))

    def _encode(self, text: str) -> TokenIds:
        """Ids of a text without surrogates."""
        ids = self.encoding.encode_to_numpy(text, allowed_special="all", disallowed_special=())
        return ids.astype(np.int32)

    def _placed(self, text: str, ids: TokenIds) -> tuple[TokenIds, CharStarts]:
        lengths = self._lengths.take(ids)
        return ids, byte_starts_to_char_starts(text, lengths.cumsum(dtype=np.int32) - lengths)

    def cut(self, text: str, limit: int) -> int:
        return max(self._special.last_start(text, limit), 0)

    @cached_property
    def _special(self) -> SpecialTokens:
        return SpecialTokens(self.special_tokens)

    def decode(self, ids: TokenIds) -> str:
        return self.encoding.decode(ids.tolist())

    def count(self, text: str) -> int:
        return len(self.encoding.encode_ordinary(replace_surrogates(text)))


def embedded_tokenizer() -> TiktokenTokenizer:
    """The vocabulary that ships with agentctx: a stand-in, so its counts are estimates for any real model."""
    return TiktokenTokenizer(embedded_encoding(), exact=False)


def tiktoken_tokenizer(name: str) -> TiktokenTokenizer:
    """One of tiktoken's encodings, if tiktoken knows it and has it or can fetch it.

    Raises ``UsageError`` otherwise.
    """
    import tiktoken

    try:
        return TiktokenTokenizer(tiktoken.get_encoding(name))
    except ValueError:
        known = ", ".join(sorted(tiktoken.list_encoding_names()))
        raise UsageError(f"unknown tiktoken encoding {name!r}; known: {known}") from None
    except Exception as error:  # whatever the download of the rank file raises
        raise UsageError(
            f"tiktoken can't load {name!r} ({type(error).__name__}): its rank file is downloaded at first use; "
            "run once with a network, set TIKTOKEN_CACHE_DIR, or use the embedded vocabulary"
        ) from error


def with_tokens(tokenizer: TiktokenTokenizer, texts: Iterable[str]) -> TiktokenTokenizer:
    """The tokenizer with further special tokens added behind its own ids: a stand-in for a vocabulary that has them."""
    import tiktoken

    base = tokenizer.encoding
    lacking = [text for text in texts if text not in tokenizer.special_tokens]
    if not lacking:
        return tokenizer
    encoding = tiktoken.Encoding(
        name=f"{base.name}+{len(lacking)}",
        pat_str=base._pat_str,
        mergeable_ranks=base._mergeable_ranks,
        special_tokens={**base._special_tokens, **{text: base.n_vocab + i for i, text in enumerate(lacking)}},
    )
    return TiktokenTokenizer(encoding, exact=False)
