"""The embedded vocabulary: a byte-level BPE of our own that needs no download.

It stands in for the tokenizer of a model that we don't have. ``scripts/train_vocabulary.py`` trains it;
``data/PROVENANCE.md`` says on what.
"""

from __future__ import annotations

import gzip
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tiktoken

DATA_FILE = "agentctx-32k.bpe.gz"
SIZE = 32_000
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_sep|>",
    "<|im_end|>",
    "<note>",
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
)
# Contractions; a word with one leading character that is no letter or digit; digits in threes; punctuation
# with the line ends behind it; line ends with the blanks before them; blanks (all but the last before a word).
PATTERN = (
    r"'(?:[sdmtSDMT]|ll|LL|ve|VE|re|RE)"
    r"|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)


def read_tokens(data: bytes) -> list[bytes]:
    """Tokens of the packed file in rank order: the 256 bytes, then length-prefixed tokens."""
    raw = gzip.decompress(data)
    tokens = [bytes([value]) for value in range(256)]
    at = 0
    while at < len(raw):
        end = at + 1 + raw[at]
        tokens.append(raw[at + 1 : end])
        at = end
    return tokens


@lru_cache(maxsize=1)
def embedded_encoding() -> tiktoken.Encoding:
    """The vocabulary as a tiktoken ``Encoding``: 32,000 ids, special tokens at the end."""
    import tiktoken

    tokens = read_tokens((files("agentctx.rendering") / "data" / DATA_FILE).read_bytes())
    first_special = SIZE - len(SPECIAL_TOKENS)
    if len(tokens) != first_special:
        raise AssertionError(f"{DATA_FILE} holds {len(tokens)} tokens, not {first_special}: train it again")
    return tiktoken.Encoding(
        name="agentctx-32k",
        pat_str=PATTERN,
        mergeable_ranks={token: rank for rank, token in enumerate(tokens)},
        special_tokens={text: first_special + i for i, text in enumerate(SPECIAL_TOKENS)},
        explicit_n_vocab=SIZE,
    )
