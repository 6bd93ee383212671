"""``tokenizer.json``: built as a tiktoken encoding where that is exact, run by the package ``tokenizers`` where it is not."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from agentctx.errors import InputError, UsageError
from agentctx.rendering.bpe import Merges, byte_level_encoder, token_bytes
from agentctx.rendering.model_tokenizer import ModelTokenizer, Rules, TokenTexts
from agentctx.rendering.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from agentctx.rendering.prompt import TokenIds
from agentctx.rendering.special_tokens import SpecialTokens
from agentctx.rendering.tokenizer import CharStarts, Tokenizer
from agentctx.rendering.tokenizer_file import MergesNotLast, TokenizerFile, read_tokenizer_file
from agentctx.surrogates import replace_surrogates

if TYPE_CHECKING:
    import tokenizers

_MOST_IDS = 1 << 24
_GPT2, _DIGITS = PRE_TOKENIZERS["gpt-2"], PRE_TOKENIZERS["smollm"]


def load_tokenizer_json(path: Path) -> Tokenizer:
    """The tokenizer of a ``tokenizer.json``.

    Raises ``InputError`` for a file that is none, ``UsageError`` when it needs ``tokenizers`` and that isn't installed.
    """
    try:
        return _built(read_tokenizer_file(path), path)
    except MergesNotLast:
        return _built(read_tokenizer_file(path, whole=True), path)


def _built(file: TokenizerFile, path: Path) -> Tokenizer:
    cut = _cut_of_file(file.data)
    if cut is not None:
        return _byte_level(file, cut, str(path))
    added = file.data.get("added_tokens") or []
    del file  # the library parses the file once more
    return LibraryTokenizer.from_file(path, added)


def _cut_of_file(data: dict[str, Any]) -> PreTokenizer | None:
    """The pre-tokenizer of a file every rule of which is one that is known exactly, so that its tokenizer is built here."""
    model, added, normaliser = data["model"], data.get("added_tokens") or [], data.get("normalizer")
    plain = model.get("type") in ("BPE", None) and not any(
        model.get(key)
        for key in (
            "dropout",
            "unk_token",
            "continuing_subword_prefix",
            "end_of_word_suffix",
            "byte_fallback",
        )
    )
    simple = not any(token.get(key) for token in added for key in ("lstrip", "rstrip", "single_word"))
    if not plain or not simple or not (normaliser is None or _is_nfc(normaliser)):
        return None
    return _cut_of(data.get("pre_tokenizer"), bool(model.get("ignore_merges")))


def _is_nfc(normaliser: Any) -> bool:
    return isinstance(normaliser, dict) and normaliser.get("type") == "NFC"


def _byte_level(file: TokenizerFile, cut: PreTokenizer, name: str) -> ModelTokenizer:
    """The tokenizer built here. Takes the vocabulary out of the parsed file: it is large."""
    added = file.data.get("added_tokens") or []
    special = {token["content"]: int(token["id"]) for token in added}
    texts: dict[int, bytes] = {index: text.encode() for text, index in special.items()}
    ids: dict[bytes, int] = {}
    for text, index in file.data["model"].pop("vocab").items():
        raw = token_bytes(text)
        if raw and text not in special:
            ids[raw] = index
            texts.setdefault(index, raw)
    if any(type(index) is not int or not 0 <= index < _MOST_IDS for index in texts):
        raise InputError(f"a token's id is no number below {_MOST_IDS:,}", file=name, field="model.vocab")
    token_texts = TokenTexts(texts)
    del texts
    try:
        encode = byte_level_encoder(name, ids, Merges.written(file.merges), cut)
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(f"a merge is no two texts: {error}", file=name, field="model.merges") from error
    return ModelTokenizer(
        name=Path(name).parent.name or "tokenizer.json",
        special=SpecialTokens(special),
        encode_text=encode,
        texts=token_texts,
        rules=Rules(
            words_end_at_spaces=cut.words_end_at_spaces,
            plain_special=frozenset(int(token["id"]) for token in added if not token.get("special")),
        ),
        normalise=_nfc if _is_nfc(file.data.get("normalizer")) else None,
    )


def _cut_of(config: Any, ignore_merges: bool) -> PreTokenizer | None:
    """The pre-tokenizer that a file describes; ``None`` when it is none of the known kind."""
    steps = (
        config.get("pretokenizers", [])
        if isinstance(config, dict) and config.get("type") == "Sequence"
        else [config]
    )
    if not all(isinstance(step, dict) for step in steps) or not steps or steps[-1].get("type") != "ByteLevel":
        return None
    if steps[-1].get("add_prefix_space"):
        return None
    own_cut = steps[-1].get("use_regex", True)
    before = steps[:-1]
    if not before:
        return _with(_GPT2, ignore_merges) if own_cut else None
    if (
        len(before) == 1
        and before[0].get("type") == "Digits"
        and before[0].get("individual_digits")
        and own_cut
    ):
        return _with(_DIGITS, ignore_merges)
    if own_cut or not all(
        step.get("type") == "Split" and step.get("behavior") == "Isolated" and not step.get("invert")
        for step in before
    ):
        return None
    given = tuple(_spelled(step.get("pattern", {}).get("Regex", "")) for step in before)
    if given == (_CL100K_IN_FILES,):
        return _with(_CL100K, ignore_merges)
    for known in PRE_TOKENIZERS.values():
        if known.byte_level and given in (known.stages, _ORIGINALS.get(known.stages)):
            return _with(known, ignore_merges)
    return None


# What the models' own files write where llama.cpp had to write it otherwise.
_CASELESS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_ORIGINALS = {
    PRE_TOKENIZERS[name].stages: (PRE_TOKENIZERS[name].stages[0].replace(spelled, _CASELESS),)
    for name, spelled in (
        ("llama3", "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"),
        ("qwen2", "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"),
        ("qwen35", "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"),
    )
}
# What a vocabulary of tiktoken's becomes when transformers converts it. The library's expressions are Ruby's, in which ``{1,3}+`` is any
# number of threes, so that a number is one piece; to tiktoken it is three digits, kept.
_CL100K_IN_FILES = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_CL100K_PATTERN = _CL100K_IN_FILES.replace("{1,3}+", "+")
_CL100K = PreTokenizer((_CL100K_PATTERN,), _CL100K_PATTERN)


def _spelled(pattern: str) -> str:
    """A pattern with its escaped line ends written as llama.cpp writes them."""
    return pattern.replace("\r", r"\r").replace("\n", r"\n")


def _with(cut: PreTokenizer, ignore_merges: bool) -> PreTokenizer:
    return PreTokenizer(cut.stages, cut.pattern, ignore_merges, False, cut.words_end_at_spaces)


# What NFC may put together: a character with the marks behind it, and the parts of a Hangul syllable.
_COMPOSING = re.compile(
    r"[\u1100-\u11ff\uac00-\ud7a3\ua960-\ua97f\ud7b0-\ud7ff]+|\w[^\w\s\x00-\u02ff]+|.", re.DOTALL
)


def _nfc(text: str) -> tuple[str, npt.NDArray[np.int32] | None]:
    """NFC, and where in the original each character of the result begins."""
    if text.isascii() or unicodedata.is_normalized("NFC", text):
        return text, None
    made = unicodedata.normalize("NFC", text)
    origin: list[int] = []
    at = 0
    for match in _COMPOSING.finditer(text):
        origin.extend([match.start()] * len(unicodedata.normalize("NFC", match.group())))
        at = match.end()
    if len(origin) != len(
        made
    ):  # a composition over the assumed boundaries: keep the order, give up the exact place
        origin = np.linspace(0, max(at - 1, 0), num=len(made)).astype(int).tolist()
    return made, np.array(origin, dtype=np.int32)


class LibraryTokenizer:
    """Any ``tokenizer.json``, run by the package ``tokenizers`` (extra ``tokenizers``)."""

    exact = True

    def __init__(
        self, inner: tokenizers.Tokenizer, name: str, special: Mapping[str, int], *, simple: bool
    ) -> None:
        self.inner = inner
        self.name = name
        self.special_tokens = dict(special)
        self._special = SpecialTokens(self.special_tokens)
        # With tokens that swallow blanks, or that are only looked for between words, no cut before one is safe.
        self._cuttable = simple

    @classmethod
    def from_file(cls, path: Path, added: Sequence[Mapping[str, Any]]) -> LibraryTokenizer:
        """Load; ``added`` are the file's added tokens."""
        try:
            import tokenizers
        except ModuleNotFoundError:
            raise UsageError(
                f"{path}: this tokenizer needs the package tokenizers; install it with: pip install 'agentctx-sdk[tokenizers]'"
            ) from None
        try:
            inner = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the package raises plain exceptions
            raise InputError(f"tokenizers can't load it: {error}", file=str(path)) from error
        special = {token["content"]: int(token["id"]) for token in added}
        simple = not any(
            token.get(key) for token in added for key in ("lstrip", "rstrip", "single_word", "normalized")
        )
        return cls(inner, path.parent.name or path.name, special, simple=simple)

    def encode(self, text: str) -> TokenIds:
        return self.encode_placed(text)[0]

    def encode_ordinary(self, text: str) -> TokenIds:
        return self.place_ordinary(text)[0]

    def encode_placed(self, text: str) -> tuple[TokenIds, CharStarts]:
        return self._placed(self.inner, text)

    def place_ordinary(self, text: str) -> tuple[TokenIds, CharStarts]:
        return self._placed(self._literal, text)

    @cached_property
    def _literal(self) -> tokenizers.Tokenizer:
        """A copy that reads special tokens as plain text."""
        copy = type(self.inner).from_str(self.inner.to_str())
        copy.encode_special_tokens = True
        return copy

    @staticmethod
    def _placed(inner: tokenizers.Tokenizer, text: str) -> tuple[TokenIds, CharStarts]:
        found = inner.encode(replace_surrogates(text), add_special_tokens=False)
        starts = np.array([start for start, _ in found.offsets], dtype=np.int32)
        return np.array(found.ids, dtype=np.int32), np.maximum.accumulate(starts) if len(starts) else starts

    def decode(self, ids: TokenIds) -> str:
        return str(self.inner.decode(ids.tolist(), skip_special_tokens=False))

    def count(self, text: str) -> int:
        return len(self.encode_ordinary(text))

    def cut(self, text: str, limit: int) -> int:
        return max(self._special.last_start(text, limit), 0) if self._cuttable else 0
