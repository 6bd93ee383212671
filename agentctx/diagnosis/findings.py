"""Findings: what a diagnosis says, with recurring breaks folded into one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from agentctx.diagnosis.causes import CAUSES, Cause

Verdict = Literal["clean", "broken", "server"]

_MAX_TURNS = 1_000  # turns that a finding lists; the count goes on


@dataclass(slots=True)
class Loss:
    """Tokens that one break cost.

    ``lost``: tokens of the earlier prompt that could not be reused any more. ``again``: tokens of the later prompt
    that had been sent or generated before and were computed again. ``exact``: counted with the target's tokenizer or by the
    server; else estimated from the server's count and the share of characters. None where nothing is known.
    ``seconds`` at the prefill rate, ``usd`` by the price table.
    """

    lost: int | None = None
    again: int | None = None
    exact: bool = False
    seconds: float | None = None
    usd: float | None = None

    def add(self, other: Loss) -> None:
        """Add another break's loss."""
        self.lost = _sum(self.lost, other.lost)
        self.again = _sum(self.again, other.again)
        self.exact = self.exact and other.exact
        self.seconds = _sum(self.seconds, other.seconds)
        self.usd = _sum(self.usd, other.usd)


_Number = TypeVar("_Number", int, float)


def _sum(left: _Number | None, right: _Number | None) -> _Number | None:
    if left is None or right is None:
        return left if right is None else right
    return left + right


@dataclass(slots=True)
class Finding:
    """One cause in one conversation.

    ``verdict``: ``broken`` when the client (or the template) changed what was sent, ``server`` when the request
    allowed more reuse than the server reported. ``turn`` is the request's index in the log, from 0; ``turns`` all
    requests in which it happened again, at most a thousand, ``count`` their number. ``recurs``: every later request
    of the conversation broke again. ``line`` is the request's line in ``file``.
    ``place`` is the path in the request body, ``@n`` the character offset; None where the prompt isn't to blame.
    ``was``/``now`` are the texts around the first difference, redacted.
    ``underlying`` is the cause of the change itself where ``cause`` names why it costs so much.
    """

    cause: str
    verdict: Verdict
    conversation: int
    turn: int
    place: str | None
    zone: str
    was: str = ""
    now: str = ""
    line: int | None = None
    file: str | None = None
    detail: str = ""
    marker: str | None = None
    underlying: str | None = None
    also: tuple[str, ...] = ()
    target: str = "as-sent"
    suspected: bool = False
    turns: list[int] = field(default_factory=list)
    count: int = 1
    recurs: bool = False
    loss: Loss = field(default_factory=Loss)
    text_edit: bool = False
    returned: bool = False

    @property
    def info(self) -> Cause:
        """The cause's entry in the registry."""
        return CAUSES[self.cause]

    @property
    def code(self) -> str:
        """The stable code, ``AC1xx``."""
        return self.info.code

    @property
    def remedy(self) -> str:
        """What to do about it, in one line."""
        return self.info.remedy

    def repeat(self, other: Finding) -> None:
        """Fold a later occurrence into this one."""
        if len(self.turns) < _MAX_TURNS:
            self.turns.append(other.turn)
        self.count += 1
        self.loss.add(other.loss)


_INDEX = re.compile(r"\[\d+\]|@\d+")


def shape_of(place: str | None) -> str:
    """A place without its indices: what recurring breaks have in common."""
    return _INDEX.sub("", place or "")


@dataclass(slots=True)
class Conversation:
    """What was seen of one conversation: its requests, how many of them broke, its tokens.

    ``turns`` lists the indices of its requests, at most a thousand. ``prompt``, ``cached``: sums over the requests
    for which the server reported them. ``tokens``, ``reused``, ``lost``: sums under the target, None without a
    renderer. ``first`` is the time of the first request.
    """

    id: int
    api: str
    model: str | None
    turns: list[int] = field(default_factory=list)
    requests: int = 0
    broken: int = 0
    prompt: int = 0
    cached: int = 0
    reported: int = 0
    tokens: int | None = None
    reused: int | None = None
    lost: int | None = None
    broke_at: int = -1

    def saw(self, index: int) -> None:
        """Count a request."""
        self.requests += 1
        if len(self.turns) < _MAX_TURNS:
            self.turns.append(index)

    def broke(self, index: int) -> None:
        """Count a request as broken, once."""
        if index != self.broke_at:
            self.broken += 1
            self.broke_at = index


@dataclass(slots=True)
class Diagnosis:
    """What was found in a log (or in two requests).

    ``findings`` are proven; ``suspicions`` are not, and never decide an exit code. Both in the order in which they
    first happened. ``requests`` counts all calls that were read.
    """

    findings: list[Finding] = field(default_factory=list)
    suspicions: list[Finding] = field(default_factory=list)
    conversations: list[Conversation] = field(default_factory=list)
    requests: int = 0
    target: str = "as-sent"
    conversation_count: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """``clean`` without findings, else the verdict of the first."""
        return self.findings[0].verdict if self.findings else "clean"

    @property
    def clean(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


class Folder:
    """Collects findings and folds recurring ones: same conversation, cause and kind of place."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.suspicions: list[Finding] = []
        self._open: dict[tuple[int, str, str, bool], Finding] = {}
        self._latest: dict[int, Finding] = {}
        self._since: dict[int, tuple[Conversation, int, int]] = {}

    def add(self, finding: Finding, conversation: Conversation) -> Finding:
        """Keep a finding, or fold it into the one that it repeats; returns the one that now stands for it.

        The conversation must already have counted the request, and its break if it is one.
        """
        earlier = self._earlier(finding)
        if earlier is not None:
            earlier.repeat(finding)
            finding = earlier
        else:
            finding.turns = [finding.turn]
            (self.suspicions if finding.suspected else self.findings).append(finding)
            self._since[id(finding)] = (conversation, conversation.requests, conversation.broken)
        self._open[self._key(finding)] = finding
        if not finding.suspected:
            self._latest[finding.conversation] = finding
        return finding

    @staticmethod
    def _key(finding: Finding) -> tuple[int, str, str, bool]:
        return finding.conversation, finding.cause, shape_of(finding.place), finding.suspected

    def _earlier(self, finding: Finding) -> Finding | None:
        key = self._key(finding)
        same = self._open.get(key) or self._open.get((*key[:3], False))
        if same is not None:
            if same.suspected and not finding.returned and not same.returned:
                self._promote(same)
            if finding.cause == "message_edited" and _same_spot(same, finding):
                same.cause = "volatile_text"
            return same
        latest = self._latest.get(finding.conversation)
        if latest is None or finding.suspected:
            return None
        if {latest.cause, finding.cause} == {"message_inserted", "message_removed"}:
            return latest  # a note that is slipped in and wanders on: it goes here and comes there
        texts = {"volatile_text", "message_edited", "random_value"}
        if latest.cause in texts and finding.cause in texts and _same_spot(latest, finding):
            if latest.cause == "message_edited":
                latest.cause = "volatile_text"
            return latest
        return None

    def _promote(self, finding: Finding) -> None:
        """A change of shape that happens again and again is no accident of one server's reading: it is proven."""
        if finding.cause != "content_shape":
            return
        self.suspicions = [other for other in self.suspicions if other is not finding]
        del self._open[self._key(finding)]
        finding.suspected = False
        self.findings.append(finding)
        self._open[self._key(finding)] = finding

    def retract(self, conversation: int, cause: str, shape: str, counted_in: Conversation) -> None:
        """Take back what was said of a difference that the server has shown not to see."""
        for suspected in (False, True):
            finding = self._open.pop((conversation, cause, shape, suspected), None)
            if finding is None:
                continue
            self.findings = [other for other in self.findings if other is not finding]
            self.suspicions = [other for other in self.suspicions if other is not finding]
            if not suspected:
                counted_in.broken -= finding.count
            if self._latest.get(conversation) is finding:
                del self._latest[conversation]

    def settle(self) -> None:
        """Decide what only the whole log can tell: which findings recur on every later request."""
        for finding in self.findings:
            conversation, requests, broken = self._since[id(finding)]
            later = conversation.requests - requests
            finding.recurs = later > 0 and conversation.broken - broken == later


def _same_spot(earlier: Finding, later: Finding) -> bool:
    """Whether the same text changed again: then it is volatile, whatever it says."""
    if not (earlier.text_edit and later.text_edit and earlier.place and later.place):
        return False
    (here, _, at), (there, _, then) = earlier.place.partition("@"), later.place.partition("@")
    return here == there and abs(int(at or 0) - int(then or 0)) <= 64
