"""Written: a text that goes on where an earlier one stopped, without copying it.

The texts of a conversation's prompts repeat their beginning. Each shares one long string with those before it and holds only what stands
behind that string; all of it is joined when someone asks for it.
"""

from __future__ import annotations

_LONGEST_TAIL = (
    32_768  # characters: what is copied each turn, so that the long string is copied every so many turns only
)


class Written:
    """A long string and a short one behind it. The text never changes; once it was asked for, it is kept joined."""

    __slots__ = ("_parts",)

    def __init__(self, base: str, tail: str = "") -> None:
        self._parts = (base + tail, "") if len(tail) > _LONGEST_TAIL else (base, tail)

    @classmethod
    def of(cls, text: str | Written) -> Written:
        return text if isinstance(text, Written) else cls(text)

    def __len__(self) -> int:
        base, tail = self._parts
        return len(base) + len(tail)

    def __str__(self) -> str:
        base, tail = self._parts
        if tail:
            base += tail
            self._parts = (base, "")
        return base

    def behind(self, place: int) -> str:
        """The text from ``place`` on."""
        base, tail = self._parts
        rest = place - len(base)
        return tail[rest:] if rest >= 0 else base[place:] + tail

    def part(self, start: int, end: int) -> str:
        """``[start, end)`` of the text."""
        base, _ = self._parts
        return base[start:end] if end <= len(base) else self.behind(start)[: end - start]

    def startswith(self, beginning: str) -> bool:
        base, _ = self._parts
        return base.startswith(beginning) if len(beginning) <= len(base) else str(self).startswith(beginning)

    def extended(self, kept: int, more: str) -> Written:
        """The first ``kept`` characters, and ``more`` behind them."""
        base, tail = self._parts
        rest = kept - len(base)
        return Written(base, tail[:rest] + more) if rest >= 0 else Written(base[:kept] + more)

    def begun(self, beginning: str) -> Written:
        """The text with ``beginning`` in front."""
        base, tail = self._parts
        return Written(beginning + base, tail)
