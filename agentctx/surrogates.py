"""Surrogates: code points that a Python string may hold and no UTF-8 text, so no prompt, can.

They come from file names that are no UTF-8 (``os.fsdecode``), from output decoded with ``surrogateescape``, and from JSON
that spells half a pair (``\\ud83d`` alone). Wherever text enters it is made safe in one way: each becomes U+FFFD.
"""

from __future__ import annotations

import re
from typing import Any

_SURROGATE = re.compile("[\ud800-\udfff]")


def replace_surrogates(text: str) -> str:
    """``text`` with each surrogate replaced by U+FFFD: character for character, so that places stay."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)
    return text


def clean_text(value: Any) -> Any:
    """A JSON value whose texts and keys hold no surrogates."""
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, list):
        return [clean_text(item) for item in value]
    if isinstance(value, dict):
        return {replace_surrogates(key): clean_text(item) for key, item in value.items()}
    return value
