"""Differences between two texts: where they begin, and what kind of thing changed there."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass
from typing import Any, Literal

from agentctx.common_ends import common_end, common_start

Kind = Literal["time", "random", "number", "other"]


def shared_share(left: str, right: str) -> float:
    """Share of the longer text that both have in common at their ends: 1.0 for equal texts."""
    longer = max(len(left), len(right))
    if longer == 0:
        return 1.0
    start = common_start(left, right)
    end = common_end(left, right, min(len(left), len(right)) - start)
    return (start + end) / longer


def same_but_whitespace(left: str, right: str) -> bool:
    """Whether both texts are equal when all white space is taken out."""
    return left != right and "".join(left.split()) == "".join(right.split())


_MISSING: Any = object()


def _container(text: str) -> Any:
    """The JSON object or list that a text holds, also when it was quoted a second time."""
    stripped = text.strip()
    if not stripped or stripped[0] not in '{["':
        return _MISSING
    try:
        value = json.loads(stripped)
        if isinstance(value, str) and value[:1] in ("{", "["):
            value = json.loads(value)
    except (ValueError, RecursionError):
        return _MISSING
    return value if isinstance(value, (dict, list)) else _MISSING


def json_difference(left: str, right: str) -> Literal["key_order", "serialisation", None]:
    """How two texts that hold equal JSON differ; None when they don't hold equal JSON."""
    if len(left) > 4 * len(right) + 64 or len(right) > 4 * len(left) + 64:
        return None
    a, b = _container(left), _container(right)
    if a is _MISSING or b is _MISSING or not equal_json(a, b):
        return None
    # The same characters in another order: nothing but keys changed places.
    return "key_order" if sorted(left) == sorted(right) else "serialisation"


def equal_json(left: Any, right: Any) -> bool:
    """Equal values, key order ignored; ``1`` equals ``1.0`` and no bool equals a number."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal_json(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal_json, left, right))
    return bool(left == right)


_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_UNIT = (
    r"(?:ms|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|weeks?|months?|years?|%|percent|tokens?|"
    r"[kmgt]i?b|[km])"
)
_CLOCK = re.compile(
    r"\d{4}-\d{2}-\d{2}[t ]\d{2}[:.-]?\d{2}(?:[:.-]?\d{2}(?:[.,]\d+)?)?(?:\s?(?:z|utc|gmt|[+-]\d{2}:?\d{2}))?"
    r"|(?<!\w)(?:19|20)\d{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01])t?(?:[01]\d|2[0-3])[0-5]\d"
    r"(?:[0-5]\d(?:[.,]\d+)?)?(?:z|[+-]\d{2}:?\d{2})?(?!\w)"
    r"|(?<![\d.:])\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:\s?[ap]\.?m\b)?"
    r"|(?<!\w)1\d{9}(?:\d{3})?(?:\.\d+)?(?!\w)"
    r"|(?<!\w)\d+(?:[.,]\d+)?\s?(?:ms|secs?|seconds?|mins?|minutes?|hrs?|hours?|days?)\s+ago\b",
    re.IGNORECASE,
)
_DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}"
    rf"|{_MONTH}\.?\s+\d{{1,2}}(?:st|nd|rd|th)?(?:,?\s+\d{{4}})?|\d{{1,2}}\.?\s+{_MONTH}(?:\s+\d{{4}})?"
    r"|\b(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?\b"
    r"|\b(?:morning|noon|afternoon|evening|night|today|tonight|yesterday|tomorrow)\b",
    re.IGNORECASE,
)
_AMOUNT = re.compile(
    rf"(?<!\w)\d[\d.,]*\s?{_UNIT}(?!\w)|(?:step|turn|round|iteration|attempt)\s*#?\d+", re.IGNORECASE
)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
_TOKEN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+/-]*(?:={1,2}(?!\w))?")
_TOKEN_START = re.compile(r"[0-9]+\Z")
_SYMBOLS = re.compile(r"[^A-Za-z0-9]")
_PIECES = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
# What stands in front of a value that is drawn to tell things apart.
_IDENTIFIES = re.compile(
    r"(?:(?:\b|_)(?:id|uuid|guid|nonce|seed|salt|tag|token|key|trace|span)|[a-z]I[dD])[\"']?\s*[:=]?\s*[\"']?\Z",
    re.IGNORECASE,
)
_REACH = 48


def _covering(pattern: re.Pattern[str], text: str, at: int) -> str | None:
    """The match of ``pattern`` that the character at ``at`` belongs to or touches."""
    start = max(0, at - _REACH)
    for match in pattern.finditer(text, start, min(len(text), at + _REACH)):
        if match.start() <= at <= match.end():
            return match.group()
        if match.start() > at:
            break
    return None


def _looks_random(token: str, scrap: float = 2.7) -> bool:
    """Whether a value looks drawn: hexadecimal, or letters and digits in no order that a name has.

    ``scrap``: characters that its pieces may have on average.
    """
    if len(token) >= 5 and re.fullmatch(r"[0-9a-fA-F]+", token):
        return 0 < sum(map(str.isdigit, token)) < len(token)
    bare = _SYMBOLS.sub("", token)
    digits = sum(map(str.isdigit, bare))
    if len(bare) < 8 or digits in (0, len(bare)):
        return False
    # A name is made of words (``parseLedger2``), a drawn value of scraps.
    scraps = len(_PIECES.findall(bare))
    if any(map(str.islower, bare)) and any(map(str.isupper, bare)):
        return len(bare) <= scrap * scraps
    changes = sum(a.isdigit() != b.isdigit() for a, b in itertools.pairwise(bare))
    return digits >= 2 and changes >= 3


@dataclass(frozen=True, slots=True)
class Fragment:
    """What stands at the first difference of two texts. ``clock``: it includes a time of day or an instant."""

    kind: Kind
    old: str
    new: str
    clock: bool = False


def fragment_at(old: str, new: str, at: int) -> Fragment:
    """What kind of thing changed at character ``at``, the first that differs."""
    for pattern, clock in ((_CLOCK, True), (_DATE, False)):
        was, now = _covering(pattern, old, at), _covering(pattern, new, at)
        if was is not None and now is not None and was != now:
            return Fragment("time", was, now, clock)
    was, now = _covering(_UUID, old, at), _covering(_UUID, new, at)
    if was is not None and now is not None and was != now:
        return Fragment("random", was, now)
    was, now = _token_at(old, at), _token_at(new, at)
    if was != now and (_both_random(was, now) or _both_identify(old, new, at, was, now)):
        return Fragment("random", was, now)
    amount, other = _covering(_AMOUNT, old, at), _covering(_AMOUNT, new, at)
    if amount is not None and other is not None and amount != other:
        return Fragment("number", amount, other)
    if was and now and was != now and _numeric(old, at) and _numeric(new, at):
        return Fragment("number", was, now)
    return Fragment("other", was, now)


def _both_random(was: str, now: str) -> bool:
    if not was or not now or abs(len(was) - len(now)) > max(2, len(was) // 4):
        return False
    # A hexadecimal value of digits only is random when its partner shows that it is hexadecimal.
    hexadecimal = re.fullmatch(r"[0-9a-fA-F]{6,}", was) and re.fullmatch(r"[0-9a-fA-F]{6,}", now)
    # Of two drawn values one may happen to look like words.
    drawn = (_looks_random(was) and _looks_random(now, 3.6)) or (
        _looks_random(was, 3.6) and _looks_random(now)
    )
    return drawn or (bool(hexadecimal) and (_looks_random(was) or _looks_random(now)))


def _both_identify(old: str, new: str, at: int, was: str, now: str) -> bool:
    """Whether both are long numbers that identify something, drawn anew and not counted up."""
    if not (was.isdigit() and now.isdigit() and min(len(was), len(now)) >= 6):
        return False
    if 0 <= int(now) - int(was) < 1_000:
        return False
    start = _TOKEN_START.search(old, max(0, at - _REACH), at)
    label = old[max(0, at - _REACH) : start.start() if start is not None else at]
    return bool(_IDENTIFIES.search(label))


def _token_at(text: str, at: int) -> str:
    return _covering(_TOKEN, text, at) or ""


def _numeric(text: str, at: int) -> bool:
    return text[at : at + 1].isdigit() or (at > 0 and text[at - 1].isdigit())


_LABELLED = re.compile(r"[^\n:=]{2,48}[:=]\s?\S?[^\n]*")


def in_labelled_line(old: str, new: str, at: int) -> bool:
    """Whether all that changed is the value in one line of the form ``label: value``."""
    end = common_end(old, new, min(len(old), len(new)) - at)
    start = old.rfind("\n", 0, at) + 1
    lines = old[start : len(old) - end], new[start : len(new) - end]
    if any("\n" in line or len(line) > 240 for line in lines):
        return False
    label = old[start:at]
    if "{" in label or "[" in label:
        return False  # JSON: its keys are no labels
    return (":" in label or "=" in label) and bool(_LABELLED.match(label)) and ". " not in label


_SUMMARY = re.compile(
    r"summar(?:y|ies|ise|ize)|previous conversation|earlier conversation|conversation so far|work so far"
    r"|progress so far|so far:|compact(?:ed|ion)|continued from|condensed|recap|handoff|hand-off|checkpoint",
    re.IGNORECASE,
)
_STUB = re.compile(
    r"clear(?:ed|ing)|remov(?:ed|al)|truncat|omitt?ed|prun(?:ed|ing)|elided|trimmed|compacted|hidden|snipped"
    r"|dropped|masked|discarded|no longer|shortened|summar|offload|expired|redacted|\[\.\.\.\]|…",
    re.IGNORECASE,
)


def looks_like_summary(text: str) -> bool:
    """Whether a message says of itself that it sums up earlier ones."""
    return bool(_SUMMARY.search(text[:600]))


def looks_like_stub(text: str) -> bool:
    """Whether a short text says that something longer stood here."""
    return len(text) < 400 and bool(_STUB.search(text))


_WORD = re.compile(r"[^\W_]{4,}")


def retells(summary: str, sources: str, share: float = 0.65) -> bool:
    """Whether most (``share``) of the longer words of ``summary`` stand in ``sources``: it tells again what was said."""
    words = {word.lower() for word in _WORD.findall(summary[:8000])}
    if len(words) < 12:
        return False
    known = {word.lower() for word in _WORD.findall(sources)}
    return len(words & known) >= share * len(words)


def quotes(text: str, source: str) -> bool:
    """Whether ``text`` repeats ``source`` word for word, as a request for a title or a summary does."""
    probe, tries = 60, 7
    if len(text) < probe:
        return False
    starts = [(len(text) - probe) * number // (tries - 1) for number in range(tries)]
    return 2 * sum(text[start : start + probe] in source for start in starts) > tries


_THINK = re.compile(
    r"<(think|thinking|reasoning|thought|seed:think)>.*?</\1>|\[THINK\].*?\[/THINK\]",
    re.DOTALL | re.IGNORECASE,
)


def without_thinking(text: str) -> str:
    """The text without inline reasoning blocks."""
    return _THINK.sub("", text)
