"""LogDiagnosis: calls in, one after the other, findings out. Streaming, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agentctx.diagnosis.breakpoints import markers_of
from agentctx.diagnosis.breaks import Reference
from agentctx.diagnosis.conversations import Conversations, State, keys_of
from agentctx.diagnosis.exchange import Exchange, RecordedCall, detect_api
from agentctx.diagnosis.findings import Conversation, Diagnosis, Finding
from agentctx.diagnosis.judging import Judge
from agentctx.diagnosis.server import server_of
from agentctx.diagnosis.targets import AS_SENT, Target
from agentctx.diagnosis.tokens import Account, Rendered, Served, account, render_turn, reply_of, serve
from agentctx.diagnosis.turn_tokens import TurnTokens, turn_tokens
from agentctx.diagnosis.turns import Turn, follow, head_size, keys_and_sizes, leading_of, whole_view
from agentctx.diagnosis.views import Item, View, reply_items, reply_text, view_of
from agentctx.errors import InputError, RenderError
from agentctx.usage import usage_from_response

_MAX_CONVERSATIONS = 5_000
_MAX_NOTES = 50


class LogDiagnosis:
    """Diagnoses a log of calls, oldest first. Feed them one by one, then ask for the ``result``.

    Memory depends on the newest requests only, not on the length of the log.
    """

    def __init__(self, target: Target | None = None) -> None:
        self.target = target or AS_SENT
        self._judge = Judge(self.target)
        self._conversations = Conversations()
        self._reports: dict[int, Conversation] = {}
        self._index = 0
        self._notes: list[str] = []
        self._newest: State | None = None
        self._cache = self.target.cache() if self.target.cache is not None else None
        self.turn: TurnTokens | None = None
        """Tokens of the call that was fed last."""

    def feed(self, call: RecordedCall, *, continues: State | None = None) -> Finding | None:
        """Take the next call. Returns the finding that it led to (or was folded into), if any.

        ``continues``: the state that it is known to follow; by default it is found by content.
        """
        turn = self._begin(call, continues)
        self._index += 1
        rendered = self._render(turn)
        served = self._serve(turn, rendered)
        counted = _account(turn.before, rendered, served)
        _count(turn.conversation, counted, rendered, served)
        watched = turn.before is not None and turn.usage is not None
        others = self._conversations.others_since(turn.before) if watched and turn.before is not None else 0
        finding = self._judge.judge(turn, counted, others)
        self.turn = turn_tokens(turn, counted, rendered, served, self._judge.newest)
        self._keep(turn, rendered)
        return finding

    def result(self) -> Diagnosis:
        """What was found so far."""
        folder = self._judge.folder
        folder.settle()
        notes = list(self._notes)
        if self._judge.overflown:
            notes.append(
                f"only the first {len(folder.findings) + len(folder.suspicions):,} findings are listed"
            )
        return Diagnosis(
            findings=sorted(folder.findings, key=lambda finding: finding.turn),
            suspicions=sorted(folder.suspicions, key=lambda finding: finding.turn),
            conversations=list(self._reports.values()),
            requests=self._index,
            target=self.target.name,
            conversation_count=self._conversations.count,
            notes=notes,
        )

    @property
    def newest(self) -> State | None:
        """The state of the call that was fed last."""
        return self._newest

    def _begin(self, call: RecordedCall, continues: State | None) -> Turn:
        view = view_of(call)
        match = self._conversations.find(view) if continues is None else follow(continues, view)
        view = whole_view(match, view)
        state = match.state
        number = state.conversation if state is not None else self._conversations.open_conversation()
        conversation = self._reports.get(number)
        if conversation is None:
            conversation = Conversation(number, call.api, view.model)
            if len(self._reports) < _MAX_CONVERSATIONS:
                self._reports[number] = conversation
        conversation.saw(self._index)
        usage = usage_from_response(call.response) if call.response else None
        if usage is not None and usage.prompt is not None and usage.cached is not None:
            conversation.prompt += usage.prompt
            conversation.cached += usage.cached
            conversation.reported += 1
        timings = bool(call.response) and "timings" in (call.response or {})
        server = server_of(call.api, view.model, call.endpoint_hint, timings)
        leading = leading_of(match.state, view)
        return Turn(
            call,
            self._index,
            view,
            match,
            markers_of(view),
            usage,
            server,
            conversation,
            leading,
            known=continues is not None,
        )

    def _render(self, turn: Turn) -> Rendered | None:
        shared = turn.leading[0] if turn.leading is not None else 0
        try:
            return self._with_reply(turn.view, self._before(turn), shared, reply_items(turn.call))
        except (RenderError, InputError) as error:
            self._note(f"{turn.name}: not counted, the renderer {self.target.name} refused it: {error}")
            return None

    def _with_reply(
        self, view: View, before: Rendered | None, shared: int, choices: tuple[tuple[Item, ...], ...]
    ) -> Rendered | None:
        rendered = render_turn(self.target, view, before, shared)
        if rendered is not None and self.target.renderer is not None:
            rendered.reply = reply_of(self.target.renderer, rendered, view, choices)
        return rendered

    def _before(self, turn: Turn) -> Rendered | None:
        """The prompt of the request before; made again where it was given up to save memory."""
        state = turn.before
        if state is None or self.target.renderer is None:
            return None
        if state.tokens is None and state.reference is not None:
            state.tokens = self._with_reply(state.reference.view, None, 0, state.reference.choices)
        return state.tokens if isinstance(state.tokens, Rendered) else None

    def _serve(self, turn: Turn, rendered: Rendered | None) -> Served | None:
        if self._cache is None or rendered is None:
            return None
        return serve(self._cache, rendered, turn.view.body)

    def _note(self, text: str) -> None:
        if len(self._notes) < _MAX_NOTES:
            self._notes.append(text)

    # -- keeping ---------------------------------------------------------------------------------------------

    def _keep(self, turn: Turn, rendered: Rendered | None) -> None:
        before, match, view = turn.before, turn.match, turn.view
        choices = reply_items(turn.call)
        keys, sizes = keys_and_sizes(match, view)
        state = State(
            id=self._conversations.new_id(),
            conversation=turn.conversation.id,
            index=turn.index,
            at=turn.call.at,
            endpoint=turn.call.endpoint_hint or "",
            reference=Reference(view, choices, keys),
            keys=keys,
            sizes=sizes,
            head=head_size(view, before),
            usage=turn.usage,
            reply=reply_text(turn.call) if view.prompt is not None else "",
            reply_keys=tuple(keys_of(choices[0])) if choices else (),
            markers=turn.markers,
            reads=max(before.reads if before is not None else 0, (turn.usage and turn.usage.cached) or 0),
            lead=view.lead,
            api=turn.call.api,
            tokens=rendered,
        )
        self._newest = state
        identifier = turn.call.response.get("id") if turn.call.response else None
        replaced = before if match.relation in ("extends", "changed", "repeats") else None
        self._conversations.put(state, replaced, identifier if isinstance(identifier, str) else None)


def _account(state: State | None, rendered: Rendered | None, served: Served | None) -> Account | None:
    if rendered is None or state is None or not isinstance(state.tokens, Rendered):
        return None
    return account(state.tokens, rendered, served)


def _count(
    conversation: Conversation, counted: Account | None, rendered: Rendered | None, served: Served | None
) -> None:
    """Add the turn's tokens to its conversation."""
    if rendered is None:
        return
    reused = served.reused if served is not None else counted.reused if counted is not None else 0
    conversation.tokens = (conversation.tokens or 0) + len(rendered.prompt)
    conversation.reused = (conversation.reused or 0) + reused
    conversation.lost = (conversation.lost or 0) + (counted.lost if counted is not None else 0)


def diagnose_log(calls: Iterable[RecordedCall], target: Target | None = None) -> Diagnosis:
    """Diagnose a whole log, oldest call first. Reads one call at a time."""
    diagnosis = LogDiagnosis(target)
    for call in calls:
        diagnosis.feed(call)
    return diagnosis.result()


def diagnose(
    previous: RecordedCall | Mapping[str, Any],
    current: RecordedCall | Mapping[str, Any],
    target: Target | None = None,
) -> Diagnosis:
    """Compare two requests of one conversation, given as calls or as plain request bodies.

    Unlike ``diagnose_log`` this takes it as given that ``current`` follows ``previous``.
    Raises ``InputError`` for a body that belongs to no known API, and for two of different APIs.
    """
    first, second = _as_call(previous), _as_call(current)
    if first.api != second.api:
        raise InputError(
            f"the requests are of two APIs, {first.api} and {second.api}",
            file=second.file,
            line=second.line,
            remedy="compare requests that went to the same endpoint",
        )
    diagnosis = LogDiagnosis(target)
    diagnosis.feed(first)
    diagnosis.feed(second, continues=diagnosis.newest)
    return diagnosis.result()


def _as_call(value: RecordedCall | Mapping[str, Any]) -> RecordedCall:
    if isinstance(value, Mapping):
        return Exchange(api=detect_api(value), request=value)
    return value
