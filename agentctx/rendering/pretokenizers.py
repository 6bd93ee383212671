"""Pre-tokenizers: how byte-level BPE vocabularies cut a text into words before they merge bytes.

GGUF files name theirs (``tokenizer.ggml.pre``); the names, flags and expressions are llama.cpp's, whose behaviour is the reference. A
pre-tokenizer is a list of expressions, each of which cuts every piece that the ones before it left: what matches is a piece, and so is
the text between two matches. tiktoken takes one expression, so the common lists are also given as one that cuts the same way
(``pattern``); the others are cut here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

# What \s means to llama.cpp and to tiktoken. Python's \s also holds U+001C to U+001F.
_SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_CONTRACTION = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_DIGITS_GPT2 = r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?![^\s\p{N}])|\s+"
_LLAMA3 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}"
_QWEN2 = rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BLANKS}"
)
# llama.cpp writes "not a to z" where the models' own files write "upper case, title case, other letters, marks".
_UPPER, _LOWER = r"(?:(?=\p{L})[^a-z])", r"(?:(?=\p{L})[^A-Z])"


def _cased(after: str, digits: str) -> str:
    start = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{start}{_UPPER}*{_LOWER}+{after}|{start}{_UPPER}+{_LOWER}*{after}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_BLANKS}"
    )


_ASCII_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_DEEPSEEK_CJK = "[一-龥\u3040-ゟ゠-ヿ]"
_DEEPSEEK_WORDS = (
    rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_BLANKS}"
)
# The three expressions as one: a run of blanks also ends before a digit or a CJK piece, and what no alternative takes (control and unassigned
# characters) is one piece, except the last before a word, which begins it.
_CJK_SET = _DEEPSEEK_CJK[1:-1]
_DEEPSEEK_LETTER = rf"[[\p{{L}}\p{{M}}]--[{_CJK_SET}]]"
_DEEPSEEK_OTHER = rf"[^\s\p{{L}}\p{{M}}\p{{N}}\p{{P}}\p{{S}}{_CJK_SET}]"
_CJK_LETTER = rf"[[\p{{L}}\p{{M}}]&&[{_CJK_SET}]]"
_CJK_MARK = rf"[[\p{{P}}\p{{S}}]&&[{_CJK_SET}]]"
_CJK_OTHER = rf"[[{_CJK_SET}]--[\p{{L}}\p{{M}}\p{{P}}\p{{S}}]]"
_DEEPSEEK3 = (
    rf"\p{{N}}{{1,3}}|{_CJK_OTHER}?{_CJK_LETTER}+|{_CJK_MARK}+|{_CJK_OTHER}+(?={_CJK_OTHER}{_CJK_LETTER})|{_CJK_OTHER}+"
    rf"|{_ASCII_PUNCTUATION}[A-Za-z]+"
    rf"|[^\r\n\p{{L}}\p{{P}}\p{{S}}\p{{N}}{_CJK_SET}]?{_DEEPSEEK_LETTER}+"
    rf"| ?[[\p{{P}}\p{{S}}]--[{_CJK_SET}]]+[\r\n]*|\s*[\r\n]+|\s+(?![^\s\p{{N}}{_CJK_SET}])|\s+"
    rf"|{_DEEPSEEK_OTHER}+(?={_DEEPSEEK_OTHER}{_DEEPSEEK_LETTER})|{_DEEPSEEK_OTHER}+"
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"


@dataclass(frozen=True)
class PreTokenizer:
    """One way of cutting. ``stages`` are llama.cpp's expressions in order.

    ``pattern``: one expression that cuts the same way, in tiktoken's dialect, or ``None``. ``ignore_merges``: a piece that is a token is taken
    whole. ``add_bos``: the default for such vocabularies. ``words_end_at_spaces``: a letter, a space and a letter always have a cut before
    the space, whatever stands around them. ``byte_level``: False for vocabularies over raw UTF-8 with ``▁`` for spaces.
    """

    stages: tuple[str, ...]
    pattern: str | None = None
    ignore_merges: bool = False
    add_bos: bool = False
    words_end_at_spaces: bool = True
    byte_level: bool = True

    @cached_property
    def _compiled(self) -> tuple[Any, ...]:
        import regex  # type: ignore[import-untyped]

        return tuple(regex.compile(_python(stage)) for stage in self.stages)

    def split(self, text: str) -> list[str]:
        """The pieces of the text, in order; joined they are the text."""
        pieces = [text] if text else []
        for stage in self._compiled:
            pieces = [part for piece in pieces for part in _cut(stage, piece)]
        return pieces


def _cut(stage: Any, piece: str) -> list[str]:
    parts: list[str] = []
    at = 0
    for match in stage.finditer(piece):
        start, end = match.span()
        if start > at:
            parts.append(piece[at:start])
        if end > start:
            parts.append(piece[start:end])
        at = max(at, end)
    if at < len(piece):
        parts.append(piece[at:])
    return parts


def _python(stage: str) -> str:
    """The expression in the dialect of the package ``regex``, with ``\\s`` spelled out."""
    out: list[str] = []
    inside = False
    at = 0
    while at < len(stage):
        char, pair = stage[at], stage[at : at + 2]
        if pair == r"\s":
            out.append(_SPACE if inside else f"[{_SPACE}]")
        elif pair == r"\S":
            out.append(f"[^{_SPACE}]")
        elif char == "\\":
            out.append(pair)
        else:
            inside = (inside or char == "[") and char != "]"
            out.append(char)
        at += 2 if char == "\\" else 1
    return "".join(out)


def _one(pattern: str, **flags: Any) -> PreTokenizer:
    return PreTokenizer((pattern,), pattern, **flags)


_GPT2_CUT = PreTokenizer((_GPT2,), rf"{_GPT2}|\s+")
_DIGITS_CUT = PreTokenizer((r"\p{N}", _GPT2), _DIGITS_GPT2)
_LLAMA3_CUT = _one(_LLAMA3, ignore_merges=True, add_bos=True)
_QWEN2_CUT = _one(_QWEN2)
_GPT4O_CUT = _one(_cased(f"{_CONTRACTION}?", r"\p{N}{1,3}"))
_DEEPSEEK3_CUT = PreTokenizer((r"\p{N}{1,3}", f"{_DEEPSEEK_CJK}+", _DEEPSEEK_WORDS), _DEEPSEEK3)
# Written in escapes: composed letters (Unicode NFC) would be other letters here.
_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af"
    "\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5"
    "\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba"
    "\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45"
    "\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe"
    "\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102"
    "\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3"
    "\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06"
    "\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df"
    "\U0001e900-\U0001e943"
)
# llama.cpp's "[一-龥ࠀ-一가-퟿]+" without the blanks in it, which it takes for \\s only.
_FROM_SAMARITAN = r"[\u0800-\u167f\u1681-\u1fff\u200b-\u2027\u202a-\u202e\u2030-\u205e\u2060-\u2fff\u3001-\u9fa5\uac00-\ud7ff]+"
_NEWLINES = r"[^\n]+|[\n]+"

_KINDS: dict[str, PreTokenizer] = {
    "llama3": _LLAMA3_CUT,
    "smaug": _one(_LLAMA3),
    "gpt2": _GPT2_CUT,
    "digits-gpt2": _DIGITS_CUT,
    "qwen2": _QWEN2_CUT,
    "qwen35": _one(_QWEN35),
    "ufakzeka": _one(rf"{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}"),
    "gpt4o": _GPT4O_CUT,
    "tekken": _one(_cased("", r"\p{N}"), ignore_merges=True, add_bos=True),
    "deepseek3": _DEEPSEEK3_CUT,
    "deepseek-llm": PreTokenizer(
        (
            r"[\r\n]",
            rf"\s?[{_LETTERS}]+",
            r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3001\u3002]+",
            r"\s+$",
            _FROM_SAMARITAN,
            r"\p{N}+",
        )
    ),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _FROM_SAMARITAN, r"\p{N}")),
    "falcon": PreTokenizer((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "bloom": PreTokenizer((_BLOOM,)),
    "viking": PreTokenizer((_BLOOM, r"\p{N}")),
    "bailingmoe": _one(
        rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
        r"|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    "seed-coder": _one(rf"{_CONTRACTION}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_BLANKS}"),
    "laguna": PreTokenizer((_NEWLINES, _QWEN2)),
    "minicpm5": PreTokenizer(
        (r"\p{N}{1,3}", rf"{_CONTRACTION}|{_WORD}|\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}"),
        ignore_merges=True,
    ),
    "exaone-moe": _one(
        rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?(?:\p{{L}}\p{{M}}*(?: \p{{L}}\p{{M}}*)*)+|\p{{N}}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+",
        words_end_at_spaces=False,
    ),
    "superbpe": PreTokenizer((r"\p{N}+", "(?=([0-9]{3})+(?![0-9]))"), words_end_at_spaces=False),
    "gemma4": PreTokenizer((_NEWLINES,), words_end_at_spaces=False, byte_level=False),
}
_NAMES = {
    "llama3": "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano",
    "smaug": "smaug-bpe dbrx glm4 chatglm-bpe",
    "gpt2": "gpt-2 phi-2 gigachat a.x-4.0 mellum modern-bert mpt olmo jais trillion granite-docling exaone4 jina-es jina-de "
    "jina-v2-es jina-v2-de jina-v1-en jina-v2-code roberta-bpe",
    "digits-gpt2": "starcoder refact command-r smollm codeshell exaone minerva-7b mellum2",
    "qwen2": "qwen2 deepseek-r1-qwen kormo f2llmv2 stablelm2 hunyuan solar-open megrez grok-2",
    "qwen35": "qwen35",
    "ufakzeka": "ufakzeka",
    "gpt4o": "gpt-4o llama4 kanana2 talkie minimax-m2",
    "tekken": "tekken",
    "deepseek3": "deepseek-v3 hunyuan-dense joyai-llm hy_v4",
    "deepseek-llm": "deepseek-llm",
    "deepseek-coder": "deepseek-coder",
    "falcon": "falcon",
    "default": "default",
    "bloom": "bloom gpt3-finnish poro-chat",
    "viking": "viking",
    "bailingmoe": "bailingmoe bailingmoe2 llada-moe",
    "seed-coder": "seed-coder",
    "laguna": "laguna",
    "minicpm5": "minicpm5",
    "exaone-moe": "exaone-moe",
    "superbpe": "superbpe",
    "gemma4": "gemma4",
}
PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    name: _KINDS[kind] for kind, names in _NAMES.items() for name in names.split()
}
"""By the name that GGUF files use."""
