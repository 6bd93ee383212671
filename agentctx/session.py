"""Session: one conversation, every turn of it checked.

History → Policy → Renderer → CacheModel → Backend, and a TurnReport for each turn. What a turn does is written once,
without I/O (:class:`TurnCheck`); :class:`Session` and :class:`AsyncSession` carry it out.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing, closing
from dataclasses import dataclass, replace

from agentctx.backends.backend import AsyncBackend, Backend, Completion, Delta, Options
from agentctx.caches.marked_blocks import block_ends, marks_by_rule
from agentctx.caches.model import Arrival, CacheModel, Prediction
from agentctx.caches.provider_cache import MarkedCache
from agentctx.errors import AgentctxError
from agentctx.history import History
from agentctx.messages import Message, Request
from agentctx.policies import AppendOnly, Policy, Turn
from agentctx.rendering.generated import Sent, continued
from agentctx.rendering.prompt import Prompt, Renderer, TokenIds
from agentctx.rendering.user_starts import UserStarts
from agentctx.reports.ledger import Account, Ledger, predicted_turn
from agentctx.reports.mismatch import observed_turn
from agentctx.reports.turn import SessionReport, TurnReport


class PrefixBroken(AgentctxError):
    """Strict checking: this request does not extend the one before it. ``report`` is the turn as it would have been."""

    def __init__(self, report: TurnReport) -> None:
        super().__init__(
            f"turn {report.turn} does not extend what was sent before: the prefix breaks at {report.divergence}, and "
            f"{report.broken} tokens would be reprocessed for it; send what was sent, or record a compaction"
        )
        self.report = report


@dataclass(frozen=True, slots=True)
class Prepared:
    """A turn that is ready to be sent. ``report`` is the turn as predicted.

    ``rendered`` is the request as the renderer encodes it, ``prompt`` the same with the ids that were generated kept.
    ``rounded``: tokens that the cache's rules would reuse if it had lost nothing. ``epoch`` is the history's when the
    request was built.
    """

    turn: Turn
    rendered: Prompt
    prompt: Prompt
    arrival: Arrival
    prediction: Prediction
    account: Account
    rounded: int
    report: TurnReport
    epoch: int


@dataclass(frozen=True, slots=True)
class Answer:
    """What a turn gave: the model's reply and the report of what it cost."""

    completion: Completion
    report: TurnReport

    @property
    def message(self) -> Message:
        return self.completion.message


class TurnCheck:
    """The steps of a turn, without I/O: prepare, then observe. Nothing changes between the two when a turn fails."""

    def __init__(
        self,
        history: History,
        renderer: Renderer,
        cache: CacheModel,
        *,
        policy: Policy | None = None,
        name: str = "session",
        takes_tokens: bool = False,
    ) -> None:
        self.history = history
        self.renderer = renderer
        self.cache = cache
        self.policy: Policy = policy or AppendOnly()
        self.name = name
        self._ledger = Ledger()
        self._takes_tokens = takes_tokens
        self._rendered: Prompt | None = None  # by the renderer alone, for it to build on
        self._sent: Sent | None = None
        self._reports: list[TurnReport] = []
        self._user_starts = UserStarts()
        self._epoch = history.epoch  # of the last turn that ran

    @property
    def report(self) -> SessionReport:
        """All turns so far."""
        return SessionReport(
            self.name, self.policy.name, self.cache.name, self.renderer.name, tuple(self._reports)
        )

    def prepare(self, options: Options) -> Prepared:
        """Build, render and predict the next turn from the history."""
        return self._prepared(self.policy.turn(self.history, self.renderer.count), options)

    async def aprepare(self, options: Options) -> Prepared:
        """The same for asynchronous callers: the policy may wait for a summary."""
        return self._prepared(await self.policy.aturn(self.history, self.renderer.count), options)

    def prepare_request(self, request: Request, options: Options) -> Prepared:
        """The same for a request that the caller built itself."""
        return self._prepared(Turn(request), options)

    def _prepared(self, turn: Turn, options: Options) -> Prepared:
        epoch = self.history.epoch
        if epoch != self._epoch:
            # Recorded by the caller, or for a turn that then did not run: the policy's turn knows only its own.
            turn = replace(turn, compacted=True)
        rendered = self.renderer.render(turn.request, self._rendered)
        prompt = rendered
        if self._takes_tokens and self._sent is not None:
            prompt = continued(rendered, self._sent, self.renderer.tokenizer).prompt
        arrival = arrival_of(prompt, options, takes_tokens=self._takes_tokens, user_starts=self._user_starts)
        if isinstance(self.cache, MarkedCache):
            markers = marks_by_rule(prompt, options.cache_life)
            arrival = replace(arrival, blocks=block_ends(prompt), markers=markers)
        prediction = self.cache.predict(prompt.token_ids, arrival)
        account = self._ledger.account(prompt)
        rounded = self.cache.without_limits(prompt.token_ids, arrival)
        report = predicted_turn(
            len(self._reports) + 1, turn, prompt, account, rounded=rounded, predicted=prediction.cached
        )
        return Prepared(turn, rendered, prompt, arrival, prediction, account, rounded, report, epoch)

    def observe(self, prepared: Prepared, completion: Completion) -> TurnReport:
        """Take in what the server did. Predictions of later turns build on it."""
        prompt = prepared.prompt
        reply_ids = generated_ids(self.renderer, prompt, completion)
        served = self.cache.commit(prompt.token_ids, reply_ids, prepared.arrival)
        self._ledger.commit(prompt, reply_ids, completion.message)
        self._rendered = prepared.rendered
        self._epoch = prepared.epoch
        if self._takes_tokens:
            self._sent = Sent.of(prepared.rendered, prompt, reply_ids, self.renderer.tokenizer)
        report = observed_turn(
            replace(prepared.report, reply=len(reply_ids)),
            prepared.account,
            served,
            completion,
            rounded=prepared.rounded,
        )
        self._reports.append(report)
        return report


def arrival_of(
    prompt: Prompt, options: Options, *, takes_tokens: bool, user_starts: UserStarts | None = None
) -> Arrival:
    """What the server will know of a turn besides its tokens. One that is sent token ids can't tell where messages start.

    ``user_starts`` knows the conversation's last prompt and saves walking through it again.
    """
    salt = options.extra.get("cache_salt")
    return Arrival(
        slot=options.slot,
        cache_prompt=options.cache_prompt,
        user_starts=() if takes_tokens else (user_starts or UserStarts()).of(prompt),
        salt=salt if isinstance(salt, str) else None,
        at=options.at,
    )


_CUT_OFF = ("length", "max_tokens", "max_output_tokens", "limit")


def generated_ids(renderer: Renderer, prompt: Prompt, completion: Completion) -> TokenIds:
    """The ids that the server generated: as it reports them, or the encoding of the text that it gave."""
    if completion.reply_ids is not None:
        return completion.reply_ids
    ids = renderer.reply_ids(prompt, completion.message)
    # A reply that was cut off has no end token.
    return ids[:-1] if completion.finish_reason in _CUT_OFF else ids


@dataclass(frozen=True, slots=True)
class SessionParts:
    """What a session is made of. ``policy`` defaults to append-only."""

    history: History
    renderer: Renderer
    cache: CacheModel
    policy: Policy | None = None
    name: str = "session"
    strict: bool = False

    def check(self, *, takes_tokens: bool) -> TurnCheck:
        """The checking of one conversation. ``takes_tokens``: the backend is sent token ids, so generated ids are kept."""
        return TurnCheck(
            self.history,
            self.renderer,
            self.cache,
            policy=self.policy,
            name=self.name,
            takes_tokens=takes_tokens,
        )


def _timed(options: Options | None) -> Options:
    """The options with the time at which the turn is sent, unless the caller named one."""
    options = options or Options()
    return options if options.at is not None else replace(options, at=time.time())


class _Checked:
    """What both faces of a session share: everything but sending."""

    def __init__(self, parts: SessionParts, *, takes_tokens: bool) -> None:
        self.history = parts.history
        self._strict = parts.strict
        self._turns = parts.check(takes_tokens=takes_tokens)

    @property
    def report(self) -> SessionReport:
        """All turns so far."""
        return self._turns.report

    def check(self, request: Request, options: Options | None = None) -> Prepared:
        """Check a request that the caller built and will send itself; nothing is sent or changed.

        Raises :class:`PrefixBroken` in a strict session when it changes what was sent before. Report what the server
        said with :meth:`observe`.
        """
        return self._guarded(self._turns.prepare_request(request, _timed(options)))

    def observe(self, prepared: Prepared, completion: Completion) -> TurnReport:
        """Close a checked turn with the server's answer (its message and usage)."""
        return self._turns.observe(prepared, completion)

    def _guarded(self, prepared: Prepared) -> Prepared:
        if self._strict and prepared.account.broken and not prepared.turn.compacted:
            raise PrefixBroken(prepared.report)
        return prepared

    def _taken(self, prepared: Prepared, completion: Completion) -> Answer:
        report = self._turns.observe(prepared, completion)
        self.history.append(completion.message)
        return Answer(completion, report)


class Session(_Checked):
    """One conversation with a backend.

    ``complete`` runs the next turn and appends the reply; when it raises, the history is as it was.
    """

    def __init__(self, parts: SessionParts, backend: Backend) -> None:
        super().__init__(parts, takes_tokens=backend.takes_tokens)
        self.backend = backend

    def complete(self, options: Options | None = None) -> Answer:
        """Run the next turn. Raises the backend's errors and :class:`PrefixBroken`."""
        options = _timed(options)
        prepared = self._guarded(self._turns.prepare(options))
        return self._taken(prepared, self.backend.complete(prepared.prompt, options))

    def stream(self, options: Options | None = None) -> Generator[Delta | Answer, None, None]:
        """Run the next turn piece by piece; the last item is the Answer. Closing the iterator ends the turn."""
        options = _timed(options)
        prepared = self._guarded(self._turns.prepare(options))
        with closing(self.backend.stream(prepared.prompt, options)) as deltas:
            for delta in deltas:
                yield delta if delta.completion is None else self._taken(prepared, delta.completion)


class AsyncSession(_Checked):
    """The same for asyncio. Cancelling ``complete`` ends the turn on the server and leaves the history as it was."""

    def __init__(self, parts: SessionParts, backend: AsyncBackend) -> None:
        super().__init__(parts, takes_tokens=backend.takes_tokens)
        self.backend = backend

    async def complete(self, options: Options | None = None) -> Answer:
        """Run the next turn. Raises the backend's errors and :class:`PrefixBroken`."""
        options = _timed(options)
        prepared = self._guarded(await self._turns.aprepare(options))
        return self._taken(prepared, await self.backend.complete(prepared.prompt, options))

    async def stream(self, options: Options | None = None) -> AsyncGenerator[Delta | Answer, None]:
        """Run the next turn piece by piece; the last item is the Answer."""
        options = _timed(options)
        prepared = self._guarded(await self._turns.aprepare(options))
        async with aclosing(self.backend.stream(prepared.prompt, options)) as deltas:
            async for delta in deltas:
                yield delta if delta.completion is None else self._taken(prepared, delta.completion)
