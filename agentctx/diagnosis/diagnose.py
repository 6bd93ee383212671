"""The diagnosis itself: calls in, one after the other, findings out. Streaming, in bounded memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agentctx.caches.providers import provider_for
from agentctx.diagnosis.breakpoints import Marker, blocks_since, markers_of
from agentctx.diagnosis.breaks import Break, Reference, carries_reply, find_break, leading_equal, turn_off
from agentctx.diagnosis.conversations import Conversations, Match, State, keys_of
from agentctx.diagnosis.costs import again_share, observed_rate, share_before, tokens_of
from agentctx.diagnosis.excerpt import excerpt
from agentctx.diagnosis.exchange import Exchange, RecordedCall, detect_api
from agentctx.diagnosis.findings import Conversation, Diagnosis, Finding, Folder, Loss
from agentctx.diagnosis.prompts import carries_prompt_reply, find_prompt_break, prompt_turn_off
from agentctx.diagnosis.server import Arrived, Server, Shortfall, disproved, server_of, shortfall
from agentctx.diagnosis.targets import AS_SENT, Target
from agentctx.diagnosis.tokens import Account, Rendered, account, render_turn, reply_of
from agentctx.diagnosis.views import View, reply_items, reply_text, text_of, texts_of, view_of
from agentctx.errors import InputError, RenderError
from agentctx.usage import Usage, usage_from_response

_MAX_FINDINGS = 2_000
_MAX_CONVERSATIONS = 5_000
_MAX_NOTES = 50
_MARKER_LIMIT = 4
_GRAIN = 256  # blocks and steps of servers take up to this many tokens of a shared prefix


@dataclass(frozen=True, slots=True)
class _Turn:
    """One call with all that is known of it before it is judged."""

    call: RecordedCall
    index: int
    view: View
    match: Match
    markers: list[Marker]
    usage: Usage | None
    server: Server
    conversation: Conversation

    @property
    def before(self) -> State | None:
        return self.match.state

    @property
    def elapsed(self) -> float | None:
        before = self.before
        if before is None or before.at is None or self.call.at is None:
            return None
        return self.call.at - before.at


class LogDiagnosis:
    """Diagnoses a log of calls, oldest first. Feed them one by one, then ask for the ``result``.

    Memory depends on the newest requests only, not on the length of the log.
    """

    def __init__(self, target: Target | None = None) -> None:
        self.target = target or AS_SENT
        self._conversations = Conversations()
        self._reports: dict[int, Conversation] = {}
        self._folder = Folder()
        self._index = 0
        self._notes: list[str] = []
        self._newest: State | None = None

    def feed(self, call: RecordedCall, *, continues: State | None = None) -> Finding | None:
        """Take the next call. Returns the finding that it led to (or was folded into), if any.

        ``continues``: the state that it is known to follow; by default it is found by content.
        """
        turn = self._begin(call, continues)
        self._index += 1
        rendered = self._render(turn)
        finding = self._judge(turn, rendered)
        self._keep(turn, rendered)
        return finding

    def result(self) -> Diagnosis:
        """What was found so far."""
        self._folder.settle()
        order = sorted(self._folder.findings, key=lambda finding: finding.turn)
        return Diagnosis(
            findings=order,
            suspicions=sorted(self._folder.suspicions, key=lambda finding: finding.turn),
            conversations=list(self._reports.values()),
            requests=self._index,
            target=self.target.name,
            conversation_count=self._conversations.count,
            notes=list(self._notes),
        )

    @property
    def newest(self) -> State | None:
        """The state of the call that was fed last."""
        return self._newest

    # -- one turn --------------------------------------------------------------------------------------------

    def _begin(self, call: RecordedCall, continues: State | None) -> _Turn:
        view = view_of(call)
        match = self._conversations.find(view) if continues is None else _follow(continues, view)
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
        return _Turn(call, self._index, view, match, markers_of(view), usage, server, conversation)

    def _render(self, turn: _Turn) -> Rendered | None:
        before = turn.before.tokens if turn.before is not None else None
        shared = 0
        if turn.before is not None and turn.before.reference is not None:
            shared, _ = leading_equal(turn.before.reference.view.items, turn.view.items, "")
        try:
            rendered = render_turn(
                self.target,
                turn.view,
                before if isinstance(before, Rendered) else None,
                shared,
            )
            if rendered is not None and self.target.renderer is not None:
                rendered.reply = reply_of(self.target.renderer, rendered, turn.view, reply_items(turn.call))
            return rendered
        except (RenderError, InputError) as error:
            self._note(f"{_where(turn)}: not counted, the renderer {self.target.name} refused it: {error}")
            return None

    def _note(self, text: str) -> None:
        if len(self._notes) < _MAX_NOTES:
            self._notes.append(text)

    def _judge(self, turn: _Turn, rendered: Rendered | None) -> Finding | None:
        limit = self._too_many_markers(turn)
        state = turn.before
        if state is None:
            self._count(turn, None, rendered)
            return limit
        found = self._break(turn)
        share = share_before(state, found)
        counted = _account(state, rendered)
        self._count(turn, counted, rendered)
        missing = self._missing(turn, state, found, share)
        if missing is not None:
            return self._server_finding(turn, missing, found) or limit
        if found is not None:
            return self._client_finding(turn, state, found, share, counted) or limit
        if counted is not None and turn.match.relation == "extends":
            if not counted.intact:
                return self._template_finding(turn, counted) or limit
            return self._unexplained(turn, counted) or limit
        self._predict_lookback(turn, state)
        return limit

    def _missing(self, turn: _Turn, state: State, found: Break | None, share: float) -> Shortfall | None:
        """What the server lost, measured by the prefix that this request shares with the one before it."""
        if turn.usage is None or turn.usage.cached is None:
            return None
        if found is None and turn.match.relation not in ("extends", "repeats"):
            found = _turn_off(state, turn.view)
            share = share_before(state, found)
        arrived = Arrived(
            turn.usage,
            turn.call.at,
            turn.markers,
            turn.view.model,
            _life(turn.view),
            _carries_reply(state, turn.view),
        )
        others = self._conversations.others_since(state)
        return shortfall(turn.server, state, arrived, found, share, others)

    def _break(self, turn: _Turn) -> Break | None:
        state = turn.before
        if state is None:
            return None
        if state.reference is None:
            return _break_by_keys(turn, state)
        if turn.view.prompt is not None:
            return find_prompt_break(state.reference.view, state.reply, turn.view, turn.elapsed)
        if turn.view.body.get("previous_response_id"):
            # Only what is new is sent: the history lies with the server, and no one can have changed it.
            return find_break(_head_only(state.reference), _without_items(turn.view), turn.elapsed)
        if turn.match.relation == "branch":
            return find_break(_head_only(state.reference), _without_items(turn.view), turn.elapsed)
        return find_break(state.reference, turn.view, turn.elapsed)

    # -- findings --------------------------------------------------------------------------------------------

    def _add(self, turn: _Turn, finding: Finding) -> Finding | None:
        if not finding.suspected:
            turn.conversation.broke(turn.index)
        if len(self._folder.findings) + len(self._folder.suspicions) >= _MAX_FINDINGS:
            self._note(f"more than {_MAX_FINDINGS:,} findings; the rest is not listed")
            return None
        kept = self._folder.add(finding, turn.conversation)
        if not kept.suspected:
            turn.conversation.broke(turn.index)  # a suspicion may have become a finding by being repeated
        return kept

    def _finding(self, turn: _Turn, **more: Any) -> Finding:
        return Finding(
            conversation=turn.conversation.id,
            turn=turn.index,
            line=turn.call.line,
            file=turn.call.file,
            target=self.target.name,
            **more,
        )

    def _too_many_markers(self, turn: _Turn) -> Finding | None:
        if turn.server.kind != "anthropic":
            return None
        provider = turn.server.provider
        limit = provider.max_markers if provider is not None and provider.max_markers else _MARKER_LIMIT
        if len(turn.markers) <= limit:
            return None
        finding = self._finding(
            turn,
            cause="breakpoint_limit",
            verdict="broken",
            place=turn.markers[limit].path,
            zone="messages",
            marker=turn.markers[limit].path,
            detail=f"{len(turn.markers)} markers, {limit} allowed",
        )
        return self._add(turn, finding)

    def _server_finding(self, turn: _Turn, missing: Shortfall, found: Break | None) -> Finding | None:
        client = missing.word.startswith("breakpoint") and missing.word != "breakpoint_lookback"
        finding = self._finding(
            turn,
            cause=missing.word,
            verdict="broken" if client else "server",
            place=missing.place,
            zone="messages" if missing.place else "",
            detail=missing.detail or f"{missing.cached:,} of {missing.allowed:,} tokens reused",
            marker=missing.place if missing.word.startswith("breakpoint") else None,
            also=(found.place,) if found is not None and found.place != missing.place else (),
            was=excerpt(found.was, found.at) if found is not None else "",
            now=excerpt(found.now, found.at) if found is not None else "",
        )
        lost = max(0, missing.allowed - missing.cached)
        finding.loss = self._priced(turn, lost, lost, exact=not missing.estimated)
        return self._add(turn, finding)

    def _client_finding(
        self, turn: _Turn, state: State, found: Break, share: float, counted: Account | None
    ) -> Finding | None:
        if counted is not None and counted.intact and found.zone not in ("model", "params"):
            return None  # the target's prompt is the same: the difference doesn't reach it
        if self.target.overlooks_cause(found.word, found.zone):
            return None
        share = 0.0 if found.zone in ("model", "params") else share
        if disproved(state, turn.usage, found, share):
            return None
        finding = self._finding(
            turn,
            cause=found.word,
            verdict="broken",
            place=found.place,
            zone=found.zone,
            was=excerpt(found.was, found.at),
            now=excerpt(found.now, found.at),
            marker=found.marker,
            underlying=found.underlying,
            also=found.also,
            text_edit=found.text_edit,
            returned=found.returned,
            suspected=_only_suspected(found, state, counted),
        )
        finding.loss = self._loss(turn, state, found, share, counted)
        return self._add(turn, finding)

    def _template_finding(self, turn: _Turn, counted: Account) -> Finding | None:
        finding = self._finding(
            turn,
            cause="template_made",
            verdict="broken",
            place=counted.place or None,
            zone="messages",
            was=excerpt(counted.was, counted.at),
            now=excerpt(counted.now, counted.at),
            detail=f"the requests are append-only, the prompts of {self.target.name} are not",
        )
        finding.loss = self._priced(turn, counted.lost, counted.again, exact=counted.exact)
        return self._add(turn, finding)

    def _unexplained(self, turn: _Turn, counted: Account) -> Finding | None:
        """The server counts the same tokens as the target, yet reused fewer than the prompts share."""
        usage = turn.usage
        if usage is None or usage.cached is None or not counted.exact or usage.prompt != counted.prompt:
            return None
        lost = counted.shared - usage.cached
        if lost <= max(_GRAIN, counted.shared // 20):
            return None
        finding = self._finding(
            turn,
            cause="unexplained",
            verdict="server",
            place=None,
            zone="",
            detail=f"{usage.cached:,} of {counted.shared:,} shared tokens reused",
        )
        finding.loss = self._priced(turn, lost, lost, exact=True)
        return self._add(turn, finding)

    def _predict_lookback(self, turn: _Turn, state: State) -> None:
        """Too many blocks for the provider to look back: a suspicion as long as no usage shows it."""
        if turn.server.kind != "anthropic" or (turn.usage is not None and turn.usage.cached is not None):
            return
        provider = turn.server.provider
        blocks = blocks_since(state.markers, turn.markers)
        if provider is None or provider.lookback_blocks is None or blocks is None:
            return
        if blocks > provider.lookback_blocks and turn.match.relation == "extends":
            place = turn.markers[-1].path
            finding = self._finding(
                turn,
                cause="breakpoint_lookback",
                verdict="server",
                place=place,
                zone="messages",
                marker=place,
                detail=f"{blocks} blocks since the last marker",
                suspected=True,
            )
            self._add(turn, finding)

    # -- what it cost ----------------------------------------------------------------------------------------

    def _loss(self, turn: _Turn, state: State, found: Break, share: float, counted: Account | None) -> Loss:
        if counted is not None and found.zone not in ("model", "params"):
            return self._priced(turn, counted.lost, counted.again, exact=counted.exact)
        size = tokens_of(state)
        if size is None:
            return Loss()
        lost = int(size * (1 - share))
        behind = again_share(state, found)
        return self._priced(turn, lost, int(size * behind), exact=False)

    def _priced(self, turn: _Turn, lost: int, again: int, *, exact: bool) -> Loss:
        loss = Loss(lost, again, exact)
        rate = self.target.prefill_rate or observed_rate(turn.call.response)
        if rate:
            loss.seconds = again / rate
        provider = self.target.provider or turn.server.provider or provider_for(turn.view.model)
        price = provider.price(turn.view.model) if provider is not None else None
        if price is not None and turn.server.kind not in ("llama", "vllm", "sglang"):
            life = next((marker.life for marker in turn.markers if marker.life), None)
            loss.usd = price.paid_again(again, life)
        return loss

    def _count(self, turn: _Turn, counted: Account | None, rendered: Rendered | None) -> None:
        """Add the turn's tokens to its conversation, and serve it in the cache model."""
        if rendered is None:
            return
        conversation = turn.conversation
        conversation.tokens = (conversation.tokens or 0) + len(rendered.prompt)
        conversation.reused = (conversation.reused or 0) + (counted.reused if counted is not None else 0)
        conversation.lost = (conversation.lost or 0) + (counted.lost if counted is not None else 0)
        if rendered.cache is not None:
            reply = rendered.reply if rendered.reply is not None else rendered.prompt.token_ids[:0]
            rendered.cache.commit(rendered.prompt.token_ids, reply)

    # -- keeping ---------------------------------------------------------------------------------------------

    def _keep(self, turn: _Turn, rendered: Rendered | None) -> None:
        before, match, view = turn.before, turn.match, turn.view
        choices = reply_items(turn.call)
        keys, sizes = _keys_and_sizes(match, view)
        state = State(
            id=self._conversations.new_id(),
            conversation=turn.conversation.id,
            index=turn.index,
            at=turn.call.at,
            endpoint=turn.call.endpoint_hint or "",
            reference=Reference(view, choices, keys),
            keys=keys,
            sizes=sizes,
            head=_head_size(view, before),
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


def _follow(state: State, view: View) -> Match:
    """The match of a request that is known to follow a state."""
    if state.reference is None or view.prompt is not None:
        return Match("changed", state)
    old = state.reference.view.talk
    shared, change = leading_equal(old, view.talk, "")
    whole = change is None and shared == len(old)
    return Match("extends" if whole else "changed", state, shared)


def _where(turn: _Turn) -> str:
    return f"{turn.call.file or 'request'}:{turn.call.line or turn.index + 1}"


def _keys_and_sizes(match: Match, view: View) -> tuple[array[int], array[int]]:
    """Keys and sizes of the view's items; those of shared items are taken over."""
    state = match.state
    if view.prompt is not None:
        return array("q"), array("q", [len(view.prompt)])
    if (
        state is None
        or state.reference is None
        or match.relation not in ("extends", "repeats")
        or match.keys is not None
    ):
        talk = match.keys if match.keys is not None else keys_of(view.talk)
        keys = keys_of(view.items[: view.lead]) + talk
        return keys, array("q", (len(text_of(item)) for item in view.items))
    keys = keys_of(view.items[: view.lead]) + state.keys[state.lead :]
    sizes = array("q", (len(text_of(item)) for item in view.items[: view.lead])) + state.sizes[state.lead :]
    rest = view.items[len(keys) :]
    keys.extend(keys_of(rest))
    sizes.extend(len(text_of(item)) for item in rest)
    return keys, sizes


def _head_size(view: View, before: State | None) -> int:
    if before is not None and before.reference is not None:
        old = before.reference.view
        if old.tools == view.tools and old.system == view.system:
            return before.head
    system = sum(map(len, texts_of(view.system))) if view.system else 0
    return system + sum(len(str(tool)) for tool in view.tools)


def _turn_off(state: State, view: View) -> Break | None:
    if state.reference is None:
        return None
    if view.prompt is not None:
        return prompt_turn_off(state.reference.view, view)
    return turn_off(state.reference, view)


def _carries_reply(state: State, view: View) -> bool:
    if state.reference is None:
        return False
    if view.prompt is not None:
        return carries_prompt_reply(state.reference.view, state.reply, view)
    return carries_reply(state.reference, view)


def _head_only(reference: Reference) -> Reference:
    return Reference(_without_items(reference.view))


def _without_items(view: View) -> View:
    """The view with nothing but model, tools, system prompt and parameters."""
    return View(
        api=view.api,
        body=view.body,
        model=view.model,
        tools=view.tools,
        system=view.system,
        system_path=view.system_path,
        items=view.items[: view.lead],
        path=view.path,
        lead=view.lead,
    )


def _break_by_keys(turn: _Turn, state: State) -> Break | None:
    """The break of a conversation whose earlier body isn't kept any more: item and kind, without the text."""
    if turn.match.relation != "changed":
        return None
    index = turn.match.shared + turn.view.lead
    place = f"{turn.view.path}[{index}]"
    return Break("message_edited", place, "messages", item=index)


def _account(state: State, rendered: Rendered | None) -> Account | None:
    if rendered is None or not isinstance(state.tokens, Rendered):
        return None
    return account(state.tokens, rendered)


def _life(view: View) -> str | None:
    """The life that a request asks an automatic provider for."""
    options = view.body.get("prompt_cache_options")
    life = options.get("ttl") if isinstance(options, Mapping) else view.body.get("prompt_cache_retention")
    return life if isinstance(life, str) else None


def _only_suspected(found: Break, state: State, counted: Account | None) -> bool:
    """A string that became one text block reads alike on most servers: without tokens or a marker it proves nothing."""
    if found.word != "content_shape" or counted is not None:
        return False
    return not found.was.startswith("[")


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
    Raises ``InputError`` for a body that belongs to no known API.
    """
    first, second = _as_call(previous), _as_call(current)
    diagnosis = LogDiagnosis(target)
    diagnosis.feed(first)
    diagnosis.feed(second, continues=diagnosis.newest)
    return diagnosis.result()


def _as_call(value: RecordedCall | Mapping[str, Any]) -> RecordedCall:
    if isinstance(value, Mapping):
        return Exchange(api=detect_api(value), request=value)
    return value
