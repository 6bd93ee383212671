"""The tokenizer in a GGUF file, with llama.cpp's rules.

Byte-level BPE (``gpt2``), SentencePiece by scores (``llama``) and BPE over raw text (``gemma4``) are built here. The other kinds
(``bert``, ``t5``, ``rwkv``, ``plamo2``) are refused; a running server's ``/tokenize`` serves them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from agentctx.errors import InputError
from agentctx.rendering.bpe import EncodeText, Merges, byte_level_encoder, merge_pieces, token_bytes
from agentctx.rendering.model_tokenizer import ModelTokenizer, Rules, TokenTexts
from agentctx.rendering.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from agentctx.rendering.special_tokens import SpecialTokens
from agentctx.rendering.spm import SPACE, ScoreMerger, space_cuts

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6
# llama.cpp makes these control tokens whatever type the file gives them.
_ALWAYS_CONTROL = frozenset(
    (
        *(
            "<|eot_id|>",
            "<|im_end|>",
            "<|end|>",
            "<|return|>",
            "<|call|>",
            "<|flush|>",
            "<|calls|>",
            "<end_of_turn>",
        ),
        *(
            "<|endoftext|>",
            "</s>",
            "<|eom_id|>",
            "<EOT>",
            "_<EOT>",
            "[EOT]",
            "[EOS]",
            "<|end_of_text|>",
            "<eos>",
        ),
        *("<end_of_utterance>", "<turn|>", "<|tool_response>", "<｜end▁of▁sentence｜>", "[e~["),
        *(
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
        ),
        *(
            "<|prefix|>",
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
        ),
        *(
            "<|code_suffix|>",
            "<|suffix|>",
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
        ),
        *(
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
            "<|fim_pad|>",
            "<fim-pad>",
            "<fim_pad>",
            "<PAD>",
            "[PAD]",
        ),
        *("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>", "<|file_sep|>"),
    )
)
_ALWAYS_USER_DEFINED = frozenset(("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"))
_MODELS = ("gpt2", "llama", "gemma4")
_OTHER_VOCABULARY = (
    "convert the model again, or name its tokenizer.json behind its template: TEMPLATE.jinja@TOKENIZER"
)


def gguf_tokenizer(metadata: Mapping[str, Any], file: str) -> ModelTokenizer:
    """Build the tokenizer that a GGUF's metadata describes.

    Raises ``InputError`` for a vocabulary that is missing, broken, or of a kind that isn't built here.
    """
    model = metadata.get("tokenizer.ggml.model")
    tokens = metadata.get("tokenizer.ggml.tokens")
    if model not in _MODELS:
        raise InputError(
            f"tokenizer model {model!r} is not built here (known: {', '.join(_MODELS)})",
            file=file,
            field="tokenizer.ggml.model",
            remedy="use a running server's tokenizer",
        )
    if not isinstance(tokens, list) or not tokens:
        raise InputError(
            "the file has no vocabulary", file=file, field="tokenizer.ggml.tokens", remedy=_OTHER_VOCABULARY
        )
    types = _types(metadata, tokens)
    if model == "llama":
        return _by_scores(metadata, tokens, types, file)
    name = "gemma4" if model == "gemma4" else str(metadata.get("tokenizer.ggml.pre") or "default")
    cut = PRE_TOKENIZERS.get(name)
    if cut is None:
        raise InputError(
            f"pre-tokenizer {name!r} is not known here",
            file=file,
            field="tokenizer.ggml.pre",
            remedy="use a running server's tokenizer",
        )
    return _by_merges(metadata, tokens, types, cut, file)


def _types(metadata: Mapping[str, Any], tokens: list[str]) -> npt.NDArray[np.int32]:
    given = metadata.get("tokenizer.ggml.token_type")
    types = np.full(len(tokens), _NORMAL, dtype=np.int32)
    if given is not None:
        types[: len(given)] = np.asarray(given, dtype=np.int32)[: len(tokens)]
    for index, text in enumerate(tokens):
        if text in _ALWAYS_CONTROL:
            types[index] = _CONTROL
        elif text in _ALWAYS_USER_DEFINED:
            types[index] = _USER_DEFINED
    if "<|tool_response>" in tokens and "</s>" in tokens:
        types[tokens.index("</s>")] = _NORMAL
    return types


def _special(tokens: list[str], types: npt.NDArray[np.int32]) -> tuple[SpecialTokens, frozenset[int]]:
    """Tokens that are found in the text before anything else, and those of them that always are."""
    marked = np.flatnonzero((types == _UNKNOWN) | (types == _CONTROL) | (types == _USER_DEFINED)).tolist()
    plain = frozenset(np.flatnonzero(types == _USER_DEFINED).tolist())
    return SpecialTokens({tokens[index]: index for index in marked}), plain


def _finish(
    metadata: Mapping[str, Any],
    tokens: list[str],
    types: npt.NDArray[np.int32],
    encode: EncodeText,
    pieces: list[bytes],
    rules: Rules,
    add_bos: bool,
    default_ids: tuple[int, int],
) -> ModelTokenizer:
    special, plain = _special(tokens, types)
    named = str(metadata.get("general.name") or "").lower()
    stripped: frozenset[int] = frozenset()
    if "phi-3" in named or "phi3" in named:
        kept = {"<unk>", "<s>", "<|endoftext|>"}
        stripped = frozenset(token for text, token in special.ids.items() if text not in kept)

    def text_of(key: str, default: int) -> str:
        index = int(metadata.get(f"tokenizer.ggml.{key}_token_id", default))
        return tokens[index] if 0 <= index < len(tokens) else ""

    add = bool(metadata.get("tokenizer.ggml.add_bos_token", add_bos))
    return ModelTokenizer(
        name=str(metadata.get("general.name") or metadata.get("tokenizer.ggml.model")),
        special=special,
        encode_text=encode,
        texts=TokenTexts(dict(enumerate(pieces))),
        rules=Rules(
            phantom_space=rules.phantom_space,
            blanks_as=rules.blanks_as,
            stripped_right=stripped,
            plain_special=plain,
            words_end_at_spaces=rules.words_end_at_spaces,
        ),
        bos=text_of("bos", default_ids[0]),
        eos=text_of("eos", default_ids[1]),
        add_bos=add,
    )


def _by_merges(
    metadata: Mapping[str, Any], tokens: list[str], types: npt.NDArray[np.int32], cut: PreTokenizer, file: str
) -> ModelTokenizer:
    merges = metadata.get("tokenizer.ggml.merges")
    if not isinstance(merges, list):
        raise InputError(
            "the file has no merges", file=file, field="tokenizer.ggml.merges", remedy=_OTHER_VOCABULARY
        )
    if not cut.byte_level:
        encode, pieces = _raw_bpe(tokens, types, merges, cut)
        rules = Rules(blanks_as=SPACE)
        return _finish(metadata, tokens, types, encode, pieces, rules, True, (-1, -1))
    pieces = []
    ids: dict[bytes, int] = {}
    for index, text in enumerate(tokens):
        raw = token_bytes(text) if types[index] in (_NORMAL, _UNUSED) else None
        pieces.append(text.encode("utf-8", errors="surrogateescape") if raw is None else raw)
        if raw:
            ids.setdefault(raw, index)
    encode = byte_level_encoder(file, ids, Merges.written(merge for merge in merges if " " in merge), cut)
    rules = Rules(words_end_at_spaces=cut.words_end_at_spaces)
    return _finish(metadata, tokens, types, encode, pieces, rules, cut.add_bos, (11, 11))


def _byte_ids(tokens: list[str]) -> list[int]:
    """Id of each byte's own token: ``<0x0A>``, or the bare character; -1 where there is none."""
    index = {text: number for number, text in enumerate(tokens)}
    found = []
    for value in range(256):
        bare = chr(value) if value < 128 else ""
        found.append(index.get(f"<0x{value:02X}>", index.get(bare, -1)))
    return found


def _raw_pieces(tokens: list[str], types: npt.NDArray[np.int32]) -> list[bytes]:
    pieces = []
    for text, kind in zip(tokens, types.tolist(), strict=True):
        if kind == _BYTE:
            pieces.append(bytes([int(text[3:5], 16)]) if len(text) == 6 else text.encode())
        elif kind in (_NORMAL, _UNUSED):
            pieces.append(text.replace(SPACE, " ").encode("utf-8", errors="surrogateescape"))
        else:
            pieces.append(text.encode("utf-8", errors="surrogateescape"))
    return pieces


def _by_scores(
    metadata: Mapping[str, Any], tokens: list[str], types: npt.NDArray[np.int32], file: str
) -> ModelTokenizer:
    scores = metadata.get("tokenizer.ggml.scores")
    if scores is None or len(scores) < len(tokens):
        raise InputError(
            "the vocabulary has no scores",
            file=file,
            field="tokenizer.ggml.scores",
            remedy=_OTHER_VOCABULARY,
        )
    ids = {text: index for index, text in enumerate(tokens)}
    by_text = {text: float(scores[index]) for text, index in ids.items()}
    encode = ScoreMerger(ids, by_text, _byte_ids(tokens))
    phantom = bool(metadata.get("tokenizer.ggml.add_space_prefix", True))
    # With no token reaching over a blank, a blank between two letters is a boundary here too.
    ends = not any(letter.isascii() and letter.isalpha() for letter in encode.joiners)
    rules = Rules(phantom_space=phantom, blanks_as=SPACE, words_end_at_spaces=ends)
    return _finish(metadata, tokens, types, encode, _raw_pieces(tokens, types), rules, True, (1, 2))


def _raw_bpe(
    tokens: list[str], types: npt.NDArray[np.int32], merges: list[str], cut: PreTokenizer
) -> tuple[EncodeText, list[bytes]]:
    """BPE over raw UTF-8 with ``▁`` for blanks (Gemma 4): lines are words, and a line of newlines is one token if there is one."""
    ids = {text: index for index, text in enumerate(tokens)}
    byte_ids = _byte_ids(tokens)
    rank: dict[tuple[bytes, bytes], int] = {}
    for number, merge in enumerate(merges):
        at = merge.find(" ", 1)
        if at > 0:
            rank.setdefault((merge[:at].encode(), merge[at + 1 :].encode()), number)
    by_bytes = {text.encode("utf-8", errors="surrogateescape"): index for text, index in ids.items()}
    known: dict[str, list[int]] = {}
    _, blanks = space_cuts(ids)

    def word(text: str) -> list[int]:
        if not text.strip("\n") and text in ids:
            return [ids[text]]
        found: list[int] = []
        for piece in merge_pieces([letter.encode() for letter in text], rank):
            token = by_bytes.get(piece)
            found.extend([token] if token is not None else [byte_ids[b] for b in piece if byte_ids[b] >= 0])
        return found

    def encode(text: str) -> list[int]:
        out: list[int] = []
        for piece in (piece for line in cut.split(text) for piece in blanks.split(line)):
            if piece not in known:
                if len(known) > 200_000:
                    known.clear()
                known[piece] = word(piece)
            out.extend(known[piece])
        return out

    return encode, _raw_pieces(tokens, types)
