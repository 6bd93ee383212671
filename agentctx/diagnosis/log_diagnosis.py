"""LogDiagnosis: calls in, one after the other, findings out. Streaming, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from agentctx.diagnosis.breakpoints import markers_of
from agentctx.diagnosis.breaks import Reference
from agentctx.diagnosis.conversations import Conversations, State, keys_of
from agentctx.diagnosis.exchange import Exchange, RecordedCall, detect_api
from agentctx.diagnosis.findings import Conversation, Diagnosis, Finding
from agentctx.diagnosis.judging import Judge
from agentctx.diagnosis.server import server_of
from agentctx.diagnosis.targets import AS_SENT, Target
from agentctx.diagnosis.turn_tokens import TurnTokens, turn_tokens
from agentctx.diagnosis.turns import Turn, follow, head_size, keys_and_sizes, leading_of, whole_view
from agentctx.diagnosis.views import reply_items, reply_text, view_of
from agentctx.errors import InputError
from agentctx.usage import usage_from_response

if TYPE_CHECKING:
    from agentctx.diagnosis.counting import Counting, Counts

_MAX_CONVERSATIONS = 5_000
_MAX_CHOICES = 64  # answers kept of a request that is sent again and again


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
        self._newest: State | None = None
        self._counting = _counting(self.target, self._conversations)
        self.turn: TurnTokens | None = None
        """Tokens of the call that was fed last."""

    def feed(self, call: RecordedCall, *, continues: State | None = None) -> Finding | None:
        """Take the next call. Returns the finding that it led to (or was folded into), if any.

        ``continues``: the state that it is known to follow; by default it is found by content.
        """
        turn = self._begin(call, continues)
        self._index += 1
        counts = self._counting.count(turn) if self._counting is not None else None
        counted = counts.account if counts is not None else None
        if counts is not None:
            _add(counts, turn.conversation)
        watched = turn.before is not None and turn.usage is not None
        others = self._conversations.others_since(turn.before) if watched and turn.before is not None else 0
        finding = self._judge.judge(turn, counted, others)
        self.turn = turn_tokens(turn, counts, self._judge.newest, self._judge.share)
        self._keep(turn, counts)
        return finding

    def result(self) -> Diagnosis:
        """What was found so far."""
        folder = self._judge.folder
        folder.settle()
        notes = list(self._counting.notes) if self._counting is not None else []
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
        session = call.session_hint
        match = self._conversations.find(view, session) if continues is None else follow(continues, view)
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
            reply_items(call),
            leading,
            known=continues is not None,
        )

    # -- keeping ---------------------------------------------------------------------------------------------

    def _keep(self, turn: Turn, counts: Counts | None) -> None:
        before, match, view, choices = turn.before, turn.match, turn.view, turn.choices
        again = before if match.relation == "repeats" else None
        if again is not None and again.reference is not None:
            # A request that was sent twice has two answers, and either may be gone on with.
            choices = (*choices, *again.reference.choices)[:_MAX_CHOICES]
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
            session=turn.call.session_hint,
            opening=before.opening if before is not None else len(view.talk),
            sent=again.sent + 1 if again is not None else 1,
            continued=again is not None and again.continued,
            tokens=counts.rendered if counts is not None else None,
        )
        self._newest = state
        identifier = turn.call.response.get("id") if turn.call.response else None
        replaced = before if match.relation in ("extends", "changed", "repeats") else None
        if before is not None and before.sent > 1 and match.relation == "extends" and view.prompt is None:
            before.continued, replaced = True, None  # its other answers may still be gone on with
        self._conversations.put(state, replaced, identifier if isinstance(identifier, str) else None)


def _counting(target: Target, conversations: Conversations) -> Counting | None:
    """What counts the target's tokens; None when it has no renderer."""
    if target.renderer is None:
        return None
    # Loaded here: its arrays and caches take longer to load than a short log to read.
    from agentctx.diagnosis.counting import Counting

    return Counting(target, conversations)


def _add(counts: Counts, conversation: Conversation) -> None:
    """Add a turn's tokens to its conversation."""
    conversation.tokens = (conversation.tokens or 0) + counts.prompt
    conversation.reused = (conversation.reused or 0) + counts.reused
    conversation.lost = (conversation.lost or 0) + (counts.account.lost if counts.account is not None else 0)


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
