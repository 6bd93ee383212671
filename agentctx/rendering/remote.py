"""A tokenizer that someone else runs, such as a llama-server's ``/tokenize``. This room does no network I/O: the caller passes the call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from agentctx.rendering.prompt import TokenIds
from agentctx.rendering.special_tokens import SpecialTokens
from agentctx.rendering.tokenizer import CharStarts, byte_starts_to_char_starts
from agentctx.surrogates import replace_surrogates

TokenizeWithPieces = Callable[[str, bool], Sequence[tuple[int, bytes]]]
"""Text, and whether special tokens are to be read, to token ids with the bytes that each stands for."""
Detokenize = Callable[[Sequence[int]], str]


class RemoteTokenizer:
    """Asks for every encoding.

    ``special_tokens``: texts that the server reads as one token. Without them a text can't be cut safely, and each turn is encoded whole.
    """

    exact = True

    def __init__(
        self,
        tokenize: TokenizeWithPieces,
        detokenize: Detokenize,
        *,
        name: str,
        special_tokens: Mapping[str, int] | None = None,
    ) -> None:
        self._tokenize = tokenize
        self._detokenize = detokenize
        self.name = name
        self.special_tokens = dict(special_tokens or {})
        self._special = SpecialTokens(self.special_tokens)

    def encode(self, text: str) -> TokenIds:
        return self._ask(text, True)[0]

    def encode_ordinary(self, text: str) -> TokenIds:
        return self._ask(text, False)[0]

    def encode_placed(self, text: str) -> tuple[TokenIds, CharStarts]:
        return self._ask(text, True)

    def place_ordinary(self, text: str) -> tuple[TokenIds, CharStarts]:
        return self._ask(text, False)

    def decode(self, ids: TokenIds) -> str:
        return self._detokenize(ids.tolist())

    def count(self, text: str) -> int:
        return len(self.encode_ordinary(text))

    def cut(self, text: str, limit: int) -> int:
        return max(self._special.last_start(text, limit), 0)

    def _ask(self, text: str, read_special: bool) -> tuple[TokenIds, CharStarts]:
        text = replace_surrogates(text)
        if not text:
            return np.array([], dtype=np.int32), np.array([], dtype=np.int32)
        found = self._tokenize(text, read_special)
        data = text.encode()
        starts, at = [], 0
        for _, piece in found:
            starts.append(min(at, len(data) - 1))
            # SentencePiece vocabularies put a blank in front that the text doesn't have.
            put_in = piece[:1] == b" " and data[at : at + 1] != b" "
            at += len(piece) - put_in
        places = byte_starts_to_char_starts(text, np.array(starts, dtype=np.int64))
        return np.array([token for token, _ in found], dtype=np.int32), places
