"""The fields of an object that comes in pieces, put together as the same object would have come whole.

No API says of fields that it has no name for how their pieces join. What they do is alike: a text grows, a name or a
signature comes once, an object comes field by field, and a list grows at its end, where a piece of a text or of a
thought belongs to the one before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_COME_WHOLE = frozenset(
    ("type", "id", "index", "format", "role", "status", "signature", "thought_signature", "encrypted_content")
)
"""Texts that are never cut: a second one takes the place of the first."""
_GROW = ("text", "thinking", "summary")
"""What grows in an item of a list."""
_ALWAYS_GROW = frozenset(
    (*_GROW, "content", "refusal", "reasoning", "reasoning_content", "arguments", "input")
)
"""Texts that grow even where each piece is the same. Another field that comes again unchanged is no growing one."""


def said(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are not null."""
    return {key: value for key, value in fields.items() if value is not None}


class StreamedFields:
    """Takes pieces of one object; a field keeps the place at which it was first seen. Takes time in what was added."""

    def __init__(self) -> None:
        self._pieces: dict[str, list[Any]] = {}

    def add(self, piece: Mapping[str, Any]) -> None:
        """Take one more piece."""
        for key, value in piece.items():
            self._pieces.setdefault(key, []).append(value)

    def whole(self) -> dict[str, Any]:
        """The object so far. A field that only ever was null is null."""
        return {key: _joined(key, pieces) for key, pieces in self._pieces.items()}


def _joined(key: str, pieces: Sequence[Any]) -> Any:
    known = [piece for piece in pieces if piece is not None]
    if len(known) < 2:
        return known[0] if known else None
    if all(isinstance(piece, list) for piece in known):
        return joined_lists(known)
    if all(isinstance(piece, Mapping) for piece in known):
        fields = StreamedFields()
        for piece in known:
            fields.add(piece)
        return fields.whole()
    if all(isinstance(piece, str) for piece in known) and key not in _COME_WHOLE:
        again = key not in _ALWAYS_GROW and len(set(known)) == 1
        return known[0] if again else "".join(known)
    return next((piece for piece in reversed(known) if piece != ""), "")


def joined_lists(pieces: Sequence[list[Any]]) -> list[Any]:
    """One list of several. The first item of a piece may go on with the last item before it; all others stand for themselves."""
    items: list[Any] = []
    last: _Item | None = None
    for piece in pieces:
        for at, item in enumerate(piece):
            if at == 0 and last is not None and last.goes_on_with(item):
                last.add(item)
                items[-1] = last
                continue
            last = _Item(item) if isinstance(item, Mapping) else None
            items.append(item)
    return [item.fields.whole() if isinstance(item, _Item) else item for item in items]


class _Item:
    """An object in a list, and what is known of it so far besides its text."""

    def __init__(self, item: Mapping[str, Any]) -> None:
        self.fields = StreamedFields()
        self._known: dict[str, Any] = {}
        self.add(item)

    def add(self, item: Mapping[str, Any]) -> None:
        self.fields.add(item)
        self._known |= said(item)

    def goes_on_with(self, item: Any) -> bool:
        """Whether an object is more of this one: a text or a thought that no signature has closed, nothing else different."""
        known = self._known
        if not isinstance(item, Mapping) or known.get("signature") or not any(key in known for key in _GROW):
            return False
        return "type" in known and all(
            key in _GROW or known.get(key, value) == value for key, value in said(item).items()
        )
