"""Session: one conversation, every turn of it checked.

History → Policy → Renderer → CacheModel → Backend, and a TurnReport for each turn. What a turn does is written once,
without I/O (:class:`TurnCheck`); :class:`Session` and :class:`AsyncSession` carry it out.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Generator, Iterator
from contextlib import aclosing, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import count

import numpy as np

from agentctx.backends.backend import AsyncBackend, Backend, BackendError, Completion, Delta, Options
from agentctx.caches.marked_blocks import block_ends, marks_by_rule, own_marks
from agentctx.caches.model import Arrival, CacheModel, Prediction
from agentctx.caches.provider_cache import MarkedCache
from agentctx.errors import AgentctxError, HistoryError, RenderError, UsageError
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
    ``rounded``: tokens that the cache's rules would reuse if it had lost nothing. ``epoch`` and ``end`` are the history's epoch
    and length when the request was built.
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
    end: int


@dataclass(frozen=True, slots=True)
class Served:
    """What the server did by its rules: the ids that it generated, and what it reused."""

    reply_ids: TokenIds
    prediction: Prediction


@dataclass(frozen=True, slots=True)
class Answer:
    """What a turn gave: the model's reply and the report of what it cost."""

    completion: Completion
    report: TurnReport

    @property
    def message(self) -> Message:
        return self.completion.message


class TurnCheck:
    """The steps of a turn, without I/O: prepare, then observe. A turn that fails is not observed, and is in no report; one that
    was left when its reply had begun is told to :meth:`leave`.
    """

    def __init__(
        self,
        history: History,
        renderer: Renderer,
        cache: CacheModel,
        *,
        policy: Policy | None = None,
        name: str = "session",
        takes_tokens: bool = False,
        places_markers: bool = True,
    ) -> None:
        self.history = history
        self.renderer = renderer
        self.cache = cache
        self.policy: Policy = policy or AppendOnly()
        self.name = name
        self._ledger = Ledger()
        self._takes_tokens = takes_tokens
        self._places_markers = places_markers
        self._rendered: Prompt | None = None  # by the renderer alone, for it to build on
        self._sent: Sent | None = None
        self._reports: list[TurnReport] = []
        self._user_starts = UserStarts()
        self._epoch = history.epoch  # of the last turn that ran
        self._asked = (
            0,
            0,
        )  # for summaries since then: prompt tokens, and what of them is taken to have been reused
        self._stand_in = False

    @property
    def report(self) -> SessionReport:
        """All turns so far."""
        return SessionReport(
            self.name,
            self.policy.name,
            self.cache.name,
            self.renderer.name,
            tuple(self._reports),
            self._stand_in,
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
        self._ask(turn, options)
        rendered = self.renderer.render(turn.request, self._rendered)
        prompt = rendered
        if self._takes_tokens and self._sent is not None:
            prompt = continued(rendered, self._sent, self.renderer.tokenizer).prompt
        arrival = self._arrival(prompt, options)
        prediction = self.cache.predict(prompt.token_ids, arrival)
        account = self._ledger.account(prompt)
        rounded = self.cache.without_limits(prompt.token_ids, arrival)
        report = predicted_turn(
            len(self._reports) + 1, turn, prompt, account, rounded=rounded, predicted=prediction.cached
        )
        asked, asked_reused = self._asked
        report = replace(report, asked=asked, asked_reused=asked_reused)
        return Prepared(
            turn, rendered, prompt, arrival, prediction, account, rounded, report, epoch, len(self.history)
        )

    def _ask(self, turn: Turn, options: Options) -> None:
        """Count the requests that the policy made for summaries. Who answered them isn't known: they change no cache model."""
        for side in turn.asked:
            if side.stand_in:
                continue  # nothing was sent
            try:
                prompt = self.renderer.render(side.request, self._rendered)
            except RenderError:  # a template that takes no two user messages in a row; the text is still paid
                tokens = sum(self.renderer.count(one.text_with_notes) for one in side.request.messages)
                reused = 0
            else:
                tokens = len(prompt)
                reused = self.cache.predict(prompt.token_ids, self._arrival(prompt, options)).cached
            self._asked = (self._asked[0] + tokens, self._asked[1] + reused)

    def _arrival(self, prompt: Prompt, options: Options) -> Arrival:
        arrival = arrival_of(prompt, options, takes_tokens=self._takes_tokens, user_starts=self._user_starts)
        if not isinstance(self.cache, MarkedCache):
            return arrival
        markers = marks_by_rule(prompt, options.cache_life) if self._places_markers else own_marks(prompt)
        return replace(arrival, blocks=block_ends(prompt), markers=markers)

    def leave(self, prepared: Prepared) -> None:
        """The caller left the turn after its reply had begun: the server has read the prompt, and no turn is counted."""
        # A cache model that is too small for the prompt says so when the next turn is counted.
        with suppress(AgentctxError):
            self.cache.commit(prepared.prompt.token_ids, np.zeros(0, np.int32), prepared.arrival)

    def observe(self, prepared: Prepared, completion: Completion) -> TurnReport:
        """Take in what the server did. Predictions of later turns build on it."""
        return self.count(prepared, completion, self.serve(prepared, completion))

    def serve(self, prepared: Prepared, completion: Completion) -> Served:
        """The first half: what the server holds from now on, whether the reply finds its place in the history or not."""
        reply_ids = generated_ids(self.renderer, prepared.prompt, completion)
        return Served(reply_ids, self.cache.commit(prepared.prompt.token_ids, reply_ids, prepared.arrival))

    def count(self, prepared: Prepared, completion: Completion, served: Served) -> TurnReport:
        """The second half: the turn is one of the conversation, and in its report."""
        prompt, reply_ids = prepared.prompt, served.reply_ids
        self._ledger.commit(prompt, reply_ids, completion.message)
        self._rendered = prepared.rendered
        self._epoch = prepared.epoch
        self._asked = (0, 0)
        self._stand_in = self._stand_in or prepared.turn.stand_in
        if self._takes_tokens:
            self._sent = Sent.of(prepared.rendered, prompt, reply_ids, self.renderer.tokenizer)
        report = observed_turn(
            replace(prepared.report, turn=len(self._reports) + 1, reply=len(reply_ids)),
            prepared.account,
            served.prediction,
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


def append_reply(history: History, reply: Message, end: int) -> None:
    """Append a reply where its request ended, ``end`` messages into the log: what was appended since stands behind it.

    Raises ``HistoryError``, and leaves the history as it was, when the reply or what stands behind it is out of order. What was
    sealed since (by a request or a compaction of the caller's own) stays in front.
    """
    late = history[max(end, history.sealed) :]
    for _ in late:
        del history[-1]
    added = 0
    try:
        for message in (reply, *late):
            history.append(message)
            added += 1
    except HistoryError:
        for _ in range(added):
            del history[-1]
        history.extend(late)
        raise


def with_call_ids(reply: Message, history: History) -> Message:
    """The reply, with calls to which the server gave no id numbered as ``History.tool_call`` numbers them. Other ids stay as they are."""
    if all(call.id for call in reply.tool_calls):
        return reply
    known = {call.id for message in (*history, reply) for call in message.tool_calls}
    numbers = (f"call_{number}" for number in count(len(history)))
    free = (name for name in numbers if name not in known)
    calls = tuple(
        call if call.id else call.model_copy(update={"id": next(free)}) for call in reply.tool_calls
    )
    return reply.model_copy(update={"tool_calls": calls})


_CUT_OFF = ("length", "max_tokens", "max_output_tokens", "limit")


def generated_ids(renderer: Renderer, prompt: Prompt, completion: Completion) -> TokenIds:
    """The ids that the server generated: as it reports them, or the encoding of the text that it gave.

    A reply that the template refuses (arguments that a length limit cut off, say) was paid for and is kept: its bare texts are
    encoded, so that their number is about right. The next request says what is wrong with it.
    """
    if completion.reply_ids is not None:
        return completion.reply_ids
    try:
        ids = renderer.reply_ids(prompt, completion.message)
    except RenderError:
        reply = completion.message
        texts = [reply.reasoning or "", reply.text, *(c.name + c.arguments for c in reply.tool_calls)]
        return renderer.tokenizer.encode_ordinary("".join(texts))
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

    def check(self, *, takes_tokens: bool, places_markers: bool = True) -> TurnCheck:
        """The checking of one conversation. ``takes_tokens``: the backend is sent token ids, so generated ids are kept.

        ``places_markers``: it puts cache markers into requests, by the rule of ``interchange.cache_control``; else those that a
        request has are all.
        """
        return TurnCheck(
            self.history,
            self.renderer,
            self.cache,
            policy=self.policy,
            name=self.name,
            takes_tokens=takes_tokens,
            places_markers=places_markers,
        )


def _places_markers(backend: Backend | AsyncBackend) -> bool:
    """Whether cache markers are placed by rule. An adapter that doesn't (``AnthropicMessages(markers=False)``) says so."""
    return bool(getattr(getattr(backend, "adapter", None), "markers", True))


def _timed(options: Options | None) -> Options:
    """The options with the time at which the turn is sent, unless the caller named one."""
    options = options or Options()
    return options if options.at is not None else replace(options, at=time.time())


class _Checked:
    """What both faces of a session share: everything but sending."""

    def __init__(self, parts: SessionParts, backend: Backend | AsyncBackend) -> None:
        self.history = parts.history
        self._strict = parts.strict
        self._busy = False
        self._turns = parts.check(takes_tokens=backend.takes_tokens, places_markers=_places_markers(backend))

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

    @contextmanager
    def _in_flight(self) -> Iterator[None]:
        if self._busy:
            raise UsageError(
                "a turn of this session is in flight; wait for its answer, or close its stream, before the next one"
            )
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def _taken(self, prepared: Prepared, completion: Completion) -> Answer:
        """Append the reply where its request ended, and count the turn. A reply that the history refuses is not counted."""
        completion = replace(completion, message=with_call_ids(completion.message, self.history))
        served = self._turns.serve(prepared, completion)
        append_reply(self.history, completion.message, prepared.end)
        return Answer(completion, self._turns.count(prepared, completion, served))


class _StreamedReply:
    """One reply as it arrives. When the caller leaves it before it is whole, the server has still read the prompt."""

    def __init__(self, session: _Checked, prepared: Prepared) -> None:
        self._session = session
        self._prepared = prepared
        self._begun = False
        self._whole = False

    def __enter__(self) -> _StreamedReply:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        # Of a server that broke off its reply nothing is known: it may have been started anew.
        broken_off = kind is not None and issubclass(kind, BackendError)
        if self._begun and not self._whole and not broken_off:
            self._session._turns.leave(self._prepared)

    def take(self, delta: Delta) -> Delta | Answer:
        self._begun = True
        if delta.completion is None:
            return delta
        self._whole = True
        return self._session._taken(self._prepared, delta.completion)


class Session(_Checked):
    """One conversation with a backend.

    ``complete`` runs the next turn and appends the reply where its request ended: what was appended to the history while the turn
    was in flight stands behind it. One turn runs at a time; a second one raises ``UsageError``.

    When a turn fails or is left, the history holds what was asked, sealed as it was sent with its notes, and no reply; the next
    ``complete`` asks again, with whatever was appended since. The turn is in no report.
    """

    def __init__(self, parts: SessionParts, backend: Backend) -> None:
        super().__init__(parts, backend)
        self.backend = backend

    def complete(self, options: Options | None = None) -> Answer:
        """Run the next turn. Raises the backend's errors, :class:`PrefixBroken`, and ``HistoryError`` for a reply out of order."""
        options = _timed(options)
        with self._in_flight():
            prepared = self._guarded(self._turns.prepare(options))
            return self._taken(prepared, self.backend.complete(prepared.prompt, options))

    def stream(self, options: Options | None = None) -> Generator[Delta | Answer, None, None]:
        """Run the next turn piece by piece; the last item is the Answer. Closing the iterator ends the turn."""
        options = _timed(options)
        with self._in_flight():
            prepared = self._guarded(self._turns.prepare(options))
            deltas = self.backend.stream(prepared.prompt, options)
            with _StreamedReply(self, prepared) as reply, closing(deltas):
                for delta in deltas:
                    yield reply.take(delta)


class AsyncSession(_Checked):
    """The same for asyncio. Cancelling ``complete`` ends the turn on the server and leaves the history without a reply.

    A stream that is left early must be closed before the next turn (``contextlib.aclosing``).
    """

    def __init__(self, parts: SessionParts, backend: AsyncBackend) -> None:
        super().__init__(parts, backend)
        self.backend = backend

    async def complete(self, options: Options | None = None) -> Answer:
        """Run the next turn. Raises the backend's errors, :class:`PrefixBroken`, and ``HistoryError`` for a reply out of order."""
        options = _timed(options)
        with self._in_flight():
            prepared = self._guarded(await self._turns.aprepare(options))
            return self._taken(prepared, await self.backend.complete(prepared.prompt, options))

    async def stream(self, options: Options | None = None) -> AsyncGenerator[Delta | Answer, None]:
        """Run the next turn piece by piece; the last item is the Answer."""
        options = _timed(options)
        with self._in_flight():
            prepared = self._guarded(await self._turns.aprepare(options))
            deltas = self.backend.stream(prepared.prompt, options)
            with _StreamedReply(self, prepared) as reply:
                async with aclosing(deltas):
                    async for delta in deltas:
                        yield reply.take(delta)
