"""TurnReport and SessionReport: what each turn cost, in the words of the project.

prompt = cached + reprocessed, and reprocessed = new + rework. ``new`` tokens had to be read once anyway;
``rework`` tokens are paid again, split by reason: rounding (blocks, the whole-prompt rule), broken prefix (the
client's or the template's doing) and server (evicted, slot, window, TTL).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

NOT_REPORTED = "not-reported"
OTHER_TEMPLATE = "other-template-or-tokenizer"
"""The prompt was rendered exactly, as was believed, and the server counts other tokens: its template or its tokenizer is another one."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first place where a prompt stops being an extension of what the conversation had sent.

    ``token`` counts from the prompt's start; ``char`` from the start of the field. ``item`` is a path such as
    ``messages[3]``; ``field`` the field inside it.
    """

    zone: str
    item: str
    field: str
    char: int
    token: int

    def __str__(self) -> str:
        return f"{self.zone} {self.item} {self.field} char {self.char}"


@dataclass(frozen=True, slots=True)
class TurnReport:
    """One model call. All counts are tokens; turns count from 1.

    ``prompt`` is the server's count where it gives one that differs from the prompt as it was rendered here: ``rendered``
    (else ``None``) then keeps ours, the other counts are scaled to the server's, and ``exact`` is false, as it is when template or
    tokenizer are stand-ins. ``new``: of the tokens that no earlier prompt of the conversation had, those that were processed;
    what others left on the server is cached, and not new. ``cached`` is what the backend reported, ``None`` when it said nothing; ``predicted`` is the CacheModel's
    answer. ``reused`` is the observed count where there is one, else the predicted. ``asked`` is the prompt of the
    requests that the policy made for a summary before this turn's own, ``asked_reused`` what of it was reused; neither
    is part of ``prompt``. In a session ``asked_reused`` is what the cache model says, as if they went to the same server.
    ``problem``: why a compaction that the policy wanted did not happen. ``mismatch``: why the server did not what was predicted, in one word; ``None`` when it
    did, and before the turn ran.
    """

    turn: int
    prompt: int
    predicted: int
    cached: int | None
    new: int
    rounding: int
    broken: int
    server: int
    reply: int = 0
    dropped: int = 0
    compacted: bool = False
    exact: bool = True
    divergence: Divergence | None = None
    asked: int = 0
    asked_reused: int = 0
    mismatch: str | None = None
    rendered: int | None = None
    problem: str | None = None

    @property
    def reused(self) -> int:
        return self.predicted if self.cached is None else self.cached

    @property
    def reprocessed(self) -> int:
        return self.prompt - self.reused

    @property
    def rework(self) -> int:
        return max(0, self.reprocessed - self.new)

    @property
    def hit_rate(self) -> float:
        return self.reused / self.prompt if self.prompt else 0.0

    @property
    def matches_prediction(self) -> bool | None:
        """Whether observation equals prediction; ``None`` when nothing was observed."""
        if self.mismatch == OTHER_TEMPLATE:
            return False
        return None if self.cached is None else self.cached == self.predicted


@dataclass(frozen=True, slots=True)
class SessionReport:
    """All turns of one conversation under one policy, one layout and one cache."""

    session: str
    policy: str
    cache: str
    layout: str
    turns: tuple[TurnReport, ...]
    stand_in: bool = False  # a summary was a deterministic stand-in, not a model's text
    notes: tuple[str, ...] = field(default=())

    def _sum(self, name: str) -> int:
        return sum(getattr(turn, name) for turn in self.turns)

    @property
    def prompt(self) -> int:
        return self._sum("prompt")

    @property
    def reused(self) -> int:
        return self._sum("reused")

    @property
    def reprocessed(self) -> int:
        return self._sum("reprocessed")

    @property
    def new(self) -> int:
        return self._sum("new")

    @property
    def rework(self) -> int:
        return self._sum("rework")

    @property
    def asked(self) -> int:
        """Prompt tokens of the requests for summaries."""
        return self._sum("asked")

    @property
    def asked_reprocessed(self) -> int:
        """What of ``asked`` had to be processed."""
        return self.asked - self._sum("asked_reused")

    @property
    def problems(self) -> int:
        """Turns in which the policy could not do what was due."""
        return sum(turn.problem is not None for turn in self.turns)

    @property
    def rework_factor(self) -> float:
        """Reprocessed over new: 1.0 means that every token was read once."""
        return self.reprocessed / self.new if self.new else 1.0

    @property
    def worst_turn(self) -> TurnReport | None:
        """The turn that reprocessed most."""
        return max(self.turns, key=lambda turn: turn.reprocessed, default=None)

    @property
    def observed(self) -> bool:
        """Whether the turns were run, and did not only happen in a model."""
        return any(turn.cached is not None or turn.mismatch is not None for turn in self.turns)

    @property
    def predicted(self) -> int:
        return self._sum("predicted")

    @property
    def mismatches(self) -> tuple[TurnReport, ...]:
        """Turns in which the server reused other tokens than predicted, or read another prompt than was rendered."""
        return tuple(turn for turn in self.turns if turn.matches_prediction is False)

    @property
    def unreported(self) -> int:
        """Turns of which the server did not say what it reused."""
        return sum(turn.cached is None for turn in self.turns) if self.observed else 0

    @property
    def as_predicted(self) -> int:
        """Turns in which the server did what was predicted."""
        return sum(turn.matches_prediction is True for turn in self.turns)

    @property
    def final_prompt(self) -> int:
        return self.turns[-1].prompt if self.turns else 0

    @property
    def hit_rate(self) -> float:
        return self.reused / self.prompt if self.prompt else 0.0

    @property
    def dropped(self) -> int:
        """Tokens of the log that the final prompt no longer carries."""
        return self.turns[-1].dropped if self.turns else 0

    @property
    def broken_turns(self) -> int:
        return sum(1 for turn in self.turns if turn.broken)


@dataclass(frozen=True, slots=True)
class PolicyTotals:
    """The sum of several sessions under one policy."""

    policy: str
    sessions: tuple[SessionReport, ...]

    def total(self, name: str) -> int:
        """Sum of a SessionReport count over the sessions."""
        return sum(getattr(session, name) for session in self.sessions)

    @property
    def rework_factor(self) -> float:
        new = self.total("new")
        return self.total("reprocessed") / new if new else 1.0

    @property
    def hit_rate(self) -> float:
        prompt = self.total("prompt")
        return self.total("reused") / prompt if prompt else 0.0

    @property
    def worst_turn(self) -> int:
        """The most tokens that one turn reprocessed."""
        return max((turn.reprocessed for session in self.sessions for turn in session.turns), default=0)

    @property
    def final_prompt(self) -> int:
        """The largest final prompt."""
        return max((session.final_prompt for session in self.sessions), default=0)

    @property
    def observed(self) -> bool:
        """Whether the turns were run."""
        return any(session.observed for session in self.sessions)

    @property
    def wrong_turns(self) -> int:
        """Turns in which the server did something else than predicted, or did not say what it reused."""
        return sum(len(one.turns) - one.as_predicted for one in self.sessions if one.observed)

    @property
    def stand_in(self) -> bool:
        return any(session.stand_in for session in self.sessions)


def totals_by_policy(sessions: Sequence[SessionReport]) -> tuple[PolicyTotals, ...]:
    """Group session reports by policy, in order of first appearance."""
    groups: dict[str, list[SessionReport]] = {}
    for session in sessions:
        groups.setdefault(session.policy, []).append(session)
    return tuple(PolicyTotals(policy, tuple(group)) for policy, group in groups.items())
