"""``was:`` and ``now:``: a window around the first difference, invisible characters shown, secrets masked."""

from __future__ import annotations

import re
import unicodedata

_MASK = "[redacted]"
_SECRETS = re.compile(
    r"sk-[A-Za-z0-9_-]{8,}"  # OpenAI, Anthropic and many that follow them
    r"|(?:gh[pousr]|github_pat)_[A-Za-z0-9_]{16,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|xox[abeoprs]-[A-Za-z0-9-]{10,}|(?:AKIA|ASIA)[0-9A-Z]{12,}|AIza[0-9A-Za-z_-]{20,}|hf_[A-Za-z0-9]{16,}"
    r"|npm_[A-Za-z0-9]{20,}|pypi-[A-Za-z0-9_-]{20,}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"  # JSON web tokens
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|(?i:bearer|basic)\s+[A-Za-z0-9+/=_.~-]{12,}"
    r"|(?<=://)[^\s/@:]+:[^\s/@]+(?=@)",  # user:password in a URL
    re.DOTALL,
)
_NAMED = re.compile(
    r"(?i)((?:api[-_ ]?key|access[-_ ]?key|secret(?:[-_ ]?key)?|client[-_ ]?secret|password|passwd|pwd"
    r"|(?:auth|access|refresh|session)[-_ ]?token|token|authorization|x-api-key)"
    r"[\"']?\s*[:=]\s*[\"']?)([^\s\"',;}]{6,})"
)
# A secret may begin this far before the window or end this far behind it.
_MARGIN = 4_096
_HIDDEN = frozenset({"Cc", "Cf", "Co", "Cs", "Zl", "Zp", "Zs"})
_NAMES = {
    "\n": "⏎",
    "\t": "⇥",
    "\r": "␍",
    "\u00a0": "⍽",
    "\u200b": "[ZWSP]",
    "\ufeff": "[BOM]",
    "\u00ad": "[SHY]",
}


def redact(text: str) -> str:
    """The text with keys, tokens and passwords replaced by ``[redacted]``."""
    text = _SECRETS.sub(_MASK, text)
    return _NAMED.sub(lambda match: f"{match.group(1)}{_MASK}", text)


def visible(text: str) -> str:
    """The text on one line, with white space and control characters that one can't see made visible."""
    if text.isascii() and text.isprintable():
        return text
    pieces = []
    for character in text:
        if character in _NAMES:
            pieces.append(_NAMES[character])
        elif character != " " and unicodedata.category(character) in _HIDDEN:
            pieces.append(f"[U+{ord(character):04X}]")
        else:
            pieces.append(character)
    return "".join(pieces)


def _spaces(text: str) -> str:
    """Blanks at both ends, and runs of them, as dots: they are easily overlooked."""
    return re.sub(r"^ +| +$| {2,}", lambda match: "·" * len(match.group()), text)


def excerpt(text: str, at: int, before: int = 40, after: int = 60) -> str:
    """A window of ``text`` around character ``at``, fit to be shown: redacted, on one line, cut ends marked by ``…``."""
    low, high = max(0, at - before), min(len(text), at + after)
    start, end = max(0, low - _MARGIN), min(len(text), high + _MARGIN)
    shown, position = [], low
    for span_start, span_end in _secret_spans(text[start:end]):
        left, right = span_start + start, span_end + start
        if right <= low or left >= high:
            continue
        shown.append(text[position : max(position, left)])
        shown.append(_MASK)
        position = max(position, right)
    shown.append(text[position:high] if position < high else "")
    body = _spaces(visible("".join(shown)))
    return f"{'…' if low > 0 else ''}{body}{'…' if high < len(text) else ''}"


def _secret_spans(text: str) -> list[tuple[int, int]]:
    spans = [match.span() for match in _SECRETS.finditer(text)]
    spans += [match.span(2) for match in _NAMED.finditer(text)]
    return sorted(spans)
