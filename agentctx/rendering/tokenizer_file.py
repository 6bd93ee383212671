"""A ``tokenizer.json``, its merges read piece by piece.

Merges are most of such a file, and as Python objects they take ten times its room, only to become numbers. They stand last in it: what
stands before them is read without them, and they are read while they are taken.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentctx.errors import InputError

_MOST_BYTES = 200_000_000
_PIECE = 1 << 20
_MERGES = re.compile(rb'"merges"\s*:\s*\[')
_END = re.compile(rb"\]\s*\}\s*\}\s*\Z")


@dataclass(frozen=True, slots=True)
class TokenizerFile:
    """``data``: the parsed file without the model's merges. ``merges``: these, to be taken once."""

    data: dict[str, Any]
    merges: Iterable[Any]


class MergesNotLast(Exception):
    """Something stands behind the merges."""


def read_tokenizer_file(path: Path, *, whole: bool = False) -> TokenizerFile:
    """Read a file. Raises ``InputError`` when it can't be read, isn't JSON, or has no model.

    Taking the merges raises the same where they aren't JSON, and ``MergesNotLast`` when the file has to be read ``whole``.
    """
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise InputError(f"larger than {_MOST_BYTES} bytes", file=str(path))
        raw = path.read_bytes()
        start = None if whole else _start_of_merges(raw)
        data = json.loads(raw if start is None else raw[:start] + b"]}}")
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    model = data.get("model") if isinstance(data, dict) else None
    if not isinstance(model, dict):
        raise InputError(
            "not a tokenizer.json: it has no model",
            file=str(path),
            field="model",
            remedy="give the file of that name beside the checkpoint",
        )
    merges = model.pop("merges", None)
    if start is None:
        return TokenizerFile(data, merges or ())
    if merges != []:  # they are somebody else's
        return read_tokenizer_file(path, whole=True)
    return TokenizerFile(data, _elements(raw, start, path))


def _unreadable(path: Path, error: Exception) -> InputError:
    return InputError(f"can't be read as JSON: {error}", file=str(path))


def _start_of_merges(raw: bytes) -> int | None:
    """Where the model's merges begin, if they seem to be the last that the file holds."""
    found = [match.end() for match in _MERGES.finditer(raw)]
    if len(found) != 1 or not _END.search(raw, max(found[0] - 1, len(raw) - 100)):
        return None
    return found[0]


def _elements(raw: bytes, at: int, path: Path) -> Iterator[Any]:
    """The elements of a list that begins at a place, behind its bracket."""
    decode = json.JSONDecoder().raw_decode
    # Strings hold no line ends, so behind these an element ends, or the list.
    mark = b"],\n" if raw[at : at + 100].lstrip()[:1] == b"[" else b'",\n'
    while True:
        cut = raw.find(mark, at + _PIECE)
        piece = raw[at : cut + 1] if cut >= 0 else raw[at:]
        try:
            text = f"[{piece.decode()}]"
            elements, end = decode(text)
        except ValueError as error:
            raise _unreadable(path, error) from error
        yield from elements
        if cut < 0 or end < len(text):  # the list's own bracket was met
            if cut < 0 and _END.fullmatch(text[end - 1 : -1].encode()):
                return
            raise MergesNotLast
        at = cut + 2
