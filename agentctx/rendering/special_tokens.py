"""Special tokens in a text: where they stand, and where a text may be cut because of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property

_BRACKETED = (re.compile(r"<[^<>]{1,120}>"), re.compile(r"\[[^\[\]]{1,120}\]"))


class SpecialTokens:
    """Texts that are one token each wherever they occur.

    Where two could overlap, the longer one is taken first, as llama.cpp does. The others' rule (the one that begins first, the longest of
    these) gives the same unless two tokens overlap in part; such texts go a slower way.
    """

    def __init__(self, ids: Mapping[str, int]) -> None:
        self.ids = {text: token for text, token in ids.items() if text}

    @cached_property
    def _pattern(self) -> re.Pattern[str] | None:
        return re.compile(_alternatives(sorted(self.ids))) if self.ids else None

    @cached_property
    def _partly_overlapping(self) -> frozenset[str]:
        """Tokens a proper end of which is a proper beginning of a longer one."""
        beginnings: dict[str, int] = {}
        for text in self.ids:
            for end in range(1, len(text)):
                beginning = text[:end]
                beginnings[beginning] = max(beginnings.get(beginning, 0), len(text))
        return frozenset(
            text
            for text in self.ids
            if len(set(text)) > 1
            and any(beginnings.get(text[at:], 0) > len(text) for at in range(1, len(text)))
        )

    @cached_property
    def _cuttable(self) -> frozenset[str]:
        """Bracketed tokens that no other token can overlap: where one stands, it is a token."""
        odd = [
            text
            for text in self.ids
            if any(text.rfind(opening) > 0 for opening in "<[")
            or any(0 <= text.find(closing) < len(text) - 1 for closing in ">]")
        ]
        return frozenset(
            text
            for text in self.ids
            if any(form.fullmatch(text) for form in _BRACKETED)
            and not any(text != other and _overlap(text, other) for other in odd)
        )

    @cached_property
    def _forms(self) -> tuple[re.Pattern[str], ...]:
        """The brackets of those."""
        return tuple(form for form in _BRACKETED if any(map(form.fullmatch, self._cuttable)))

    def split(self, text: str) -> Iterator[tuple[int, int, int]]:
        """The text as (start, end, id) in order; id -1 for plain text between special tokens."""
        if self._pattern is None:
            if text:
                yield 0, len(text), -1
            return
        found = [(match.start(), match.end(), match.group()) for match in self._pattern.finditer(text)]
        if any(token in self._partly_overlapping for _, _, token in found):
            found = self._longest_first(text)
        at = 0
        for start, end, token in found:
            if start > at:
                yield at, start, -1
            yield start, end, self.ids[token]
            at = end
        if at < len(text):
            yield at, len(text), -1

    def _longest_first(self, text: str) -> list[tuple[int, int, str]]:
        """Tokens in the text, each longer one taken before all shorter ones."""
        here = sorted((t for t in self.ids if t in text), key=lambda t: len(t.encode()), reverse=True)
        free = [(0, len(text))]
        found: list[tuple[int, int, str]] = []
        for token in here:
            rest: list[tuple[int, int]] = []
            for start, end in free:
                at = text.find(token, start, end)
                while at >= 0:
                    if at > start:
                        rest.append((start, at))
                    start = at + len(token)
                    found.append((at, start, token))
                    at = text.find(token, start, end)
                if start < end:
                    rest.append((start, end))
            free = rest
        return sorted(found)

    def last_start(self, text: str, limit: int) -> int:
        """Start of the last special token in ``text[:limit]`` that is one whatever stands behind; -1 when there is none."""
        high, window = limit, 512
        while high > 0 and self._cuttable:
            low = max(0, high - window)
            best = -1
            for form in self._forms:
                for match in form.finditer(text, low, limit):
                    if match.start() > best and match.group() in self._cuttable:
                        best = match.start()
            if best >= 0:
                return best
            # A token may lie across the window's edge.
            high, window = (low + 128 if low else 0), window * 4
        return -1


def _overlap(left: str, right: str) -> bool:
    """Whether the two texts can share characters in some text, other than the first holding the second."""
    if left in right:
        return True
    shorter = min(len(left), len(right))
    return any(left.endswith(right[:n]) or right.endswith(left[:n]) for n in range(1, shorter))


def _alternatives(texts: list[str]) -> str:
    """A pattern for any of the sorted texts that prefers the longest: common beginnings are factored out, for speed."""
    return _branch(texts, 0)


def _branch(texts: list[str], depth: int) -> str:
    if len(texts) == 1:
        return re.escape(texts[0][depth:])
    ends = any(len(text) == depth for text in texts)
    groups: dict[str, list[str]] = {}
    for text in texts:
        if len(text) > depth:
            groups.setdefault(text[depth], []).append(text)
    branches = [re.escape(first) + _branch(group, depth + 1) for first, group in groups.items()]
    body = "|".join(branches)
    if ends:
        return f"(?:{body})?"
    return body if len(branches) == 1 else f"(?:{body})"
