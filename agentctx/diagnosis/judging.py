"""Judging a turn: which finding it leads to, whose doing it is, and what it cost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentctx.caches.providers import provider_for
from agentctx.diagnosis.breakpoints import blocks_since
from agentctx.diagnosis.breaks import Break
from agentctx.diagnosis.conversations import State
from agentctx.diagnosis.costs import again_share, observed_rate, reply_tokens, share_before, tokens_of
from agentctx.diagnosis.excerpt import excerpt
from agentctx.diagnosis.findings import Finding, Folder, Loss, shape_of
from agentctx.diagnosis.server import (
    Arrived,
    Shortfall,
    asked_life,
    disproved,
    longest_life,
    shortfall,
)
from agentctx.diagnosis.targets import Target
from agentctx.diagnosis.turns import Turn, break_of, goes_on_with_reply, turned_off

if TYPE_CHECKING:
    from agentctx.diagnosis.tokens import Account

_MAX_FINDINGS = 2_000
_MARKER_LIMIT = 4
_CLIENTS_DOING = frozenset({"breakpoint_misplaced", "breakpoint_limit", "template_made"})
_READ_ALIKE = frozenset(
    {"content_shape", "json_key_order", "argument_serialisation", "id_regenerated", "whitespace"}
)
"""Causes where the server decides whether the difference reaches the prompt: what it does once, it always does."""
_GRAIN = 256  # blocks and steps of servers take up to this many tokens of a shared prefix


class Judge:
    """Judges turns for one target and keeps the findings."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self.folder = Folder()
        self.overflown = False
        # Differences that the server of a conversation has shown not to see: (conversation, cause, kind of place).
        self._unseen: set[tuple[int, str, str]] = set()
        self.newest: Finding | None = None
        """The finding of the turn that was judged last, before it was folded into an earlier one."""
        self.share = 1.0
        """Part of the earlier prompt, in characters, that stands before a break of that turn."""

    def judge(self, turn: Turn, counted: Account | None, others: int) -> Finding | None:
        """The finding that a turn leads to, if any.

        ``counted`` are its tokens under the target. ``others``: conversations that used the server in between.
        """
        self.newest, self.share = None, 1.0
        limit = self._too_many_markers(turn)
        state = turn.before
        if state is None:
            return limit
        found = break_of(turn)
        self.share = share = share_before(state, found)
        if found is None and counted is not None and turn.match.relation == "extends":
            predicted = self._predicted_finding(turn, counted)
            if predicted is not None:
                return predicted
        missing = self._missing(turn, state, found, share, others)
        if missing is not None:
            return self._server_finding(turn, missing, found) or limit
        if found is not None:
            return self._client_finding(turn, state, found, share, counted) or limit
        if counted is not None and turn.match.relation == "extends":
            if not counted.intact:
                return self._template_finding(turn, counted) or limit
            return self._unexplained(turn, counted) or limit
        self._predict_lookback(turn, state)
        self._predict_expiry(turn, state)
        return limit

    def _missing(
        self, turn: Turn, state: State, found: Break | None, share: float, others: int
    ) -> Shortfall | None:
        """What the server lost, measured by the prefix that this request shares with the one before it."""
        if turn.usage is None or turn.usage.cached is None:
            return None
        if found is None and turn.match.relation not in ("extends", "repeats"):
            found = turned_off(state, turn.view)
            share = share_before(state, found)
        arrived = Arrived(
            turn.usage,
            turn.call.at,
            turn.markers,
            turn.view.model,
            asked_life(turn.view.body),
            goes_on_with_reply(state, turn.view),
            rebuilt=not turn.call.as_sent,
        )
        return shortfall(turn.server, state, arrived, found, share, others)

    # -- findings --------------------------------------------------------------------------------------------

    def _add(self, turn: Turn, finding: Finding) -> Finding | None:
        self.newest = finding
        if not finding.suspected:
            turn.conversation.broke(turn.index)
        if len(self.folder.findings) + len(self.folder.suspicions) >= _MAX_FINDINGS:
            self.overflown = True
            return None
        kept = self.folder.add(finding, turn.conversation)
        if not kept.suspected:
            turn.conversation.broke(turn.index)  # a suspicion may have become a finding by being repeated
        return kept

    def _finding(self, turn: Turn, **more: Any) -> Finding:
        return Finding(
            conversation=turn.conversation.id,
            turn=turn.index,
            line=turn.call.line,
            file=turn.call.file,
            target=self.target.name,
            **more,
        )

    def _too_many_markers(self, turn: Turn) -> Finding | None:
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

    def _server_finding(self, turn: Turn, missing: Shortfall, found: Break | None) -> Finding | None:
        finding = self._finding(
            turn,
            cause=missing.word,
            verdict="broken" if missing.word in _CLIENTS_DOING else "server",
            suspected=not turn.call.as_sent,
            place=missing.place,
            zone="messages" if missing.place else "",
            detail=missing.detail or f"{missing.cached:,} of {missing.allowed:,} tokens reused",
            marker=missing.place if missing.word.startswith("breakpoint") else None,
            also=(found.place,) if found is not None and found.place != missing.place else (),
            was=excerpt(found.was, found.at) if found is not None else "",
            now=excerpt(found.now, found.at) if found is not None else "",
        )
        lost = max(0, missing.allowed - missing.cached)
        finding.loss = self._priced(turn, lost, _at_most_computed(turn, lost), exact=not missing.estimated)
        return self._add(turn, finding)

    def _client_finding(
        self, turn: Turn, state: State, found: Break, share: float, counted: Account | None
    ) -> Finding | None:
        if counted is not None and counted.intact and found.zone not in ("model", "params"):
            return None  # the target's prompt is the same: the difference doesn't reach it
        if self.target.overlooks_cause(found.word, found.zone):
            return None
        share = 0.0 if found.zone in ("model", "params") else share
        alike = (turn.conversation.id, found.word, shape_of(found.place))
        if disproved(state, turn.usage, found, share):
            if found.word in _READ_ALIKE:
                self._unseen.add(alike)
                self.folder.retract(*alike, turn.conversation)
            return None
        if alike in self._unseen:
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

    def _template_finding(self, turn: Turn, counted: Account) -> Finding | None:
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

    def _predicted_finding(self, turn: Turn, counted: Account) -> Finding | None:
        """The target's server no longer has what it had, by its cache model and by its own count if it gave one."""
        served, usage = counted.served, turn.usage
        if served is None or served.lost <= max(_GRAIN, served.without_limits // 50):
            return None
        if usage is not None and usage.cached is not None and abs(usage.cached - served.reused) > _GRAIN:
            return None  # the server did something else: what it reported decides
        finding = self._finding(
            turn,
            cause=served.cause,
            verdict="server",
            place=None,
            zone="",
            detail=f"{served.reused:,} of {served.without_limits:,} tokens reused by {self.target.name}",
        )
        finding.loss = self._priced(turn, served.lost, served.lost, exact=counted.exact)
        return self._add(turn, finding)

    def _unexplained(self, turn: Turn, counted: Account) -> Finding | None:
        """The server counts the same tokens as the target, yet reused fewer than the prompts share."""
        usage = turn.usage
        if usage is None or usage.cached is None or not counted.exact or usage.prompt != counted.prompt:
            return None
        lost = counted.reused - usage.cached
        if lost <= max(_GRAIN, counted.reused // 20):
            return None
        finding = self._finding(
            turn,
            cause="unexplained",
            verdict="server",
            place=None,
            zone="",
            detail=f"{usage.cached:,} of {counted.reused:,} shared tokens reused",
        )
        finding.loss = self._priced(turn, lost, lost, exact=True)
        return self._add(turn, finding)

    def _predict_lookback(self, turn: Turn, state: State) -> None:
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

    def _predict_expiry(self, turn: Turn, state: State) -> None:
        """More time passed than an entry surely lives: a suspicion as long as no usage shows it."""
        if turn.usage is not None and turn.usage.cached is not None:
            return
        passed, life = turn.elapsed, longest_life(turn.server, state.markers, asked_life(turn.view.body))
        if passed is None or life is None or passed <= life or turn.match.relation != "extends":
            return
        finding = self._finding(
            turn,
            cause="ttl_expired",
            verdict="server",
            place=None,
            zone="",
            detail=f"{passed:,.0f} s passed, an entry lives {life:,.0f} s",
            suspected=True,
        )
        size = tokens_of(state)
        if size is not None:
            finding.loss = self._priced(turn, size, size, exact=False)
        self._add(turn, finding)

    # -- what it cost ----------------------------------------------------------------------------------------

    def _loss(self, turn: Turn, state: State, found: Break, share: float, counted: Account | None) -> Loss:
        if counted is not None and found.zone not in ("model", "params"):
            return self._priced(turn, counted.lost, counted.again, exact=counted.exact)
        if found.returned:
            made = reply_tokens(state)
            if made is None:
                return Loss()
            return self._priced(turn, made, _at_most_computed(turn, made), exact=False)
        size = tokens_of(state)
        if size is None:
            return Loss()
        again = int(size * again_share(state, found, turn.view))
        return self._priced(turn, int(size * (1 - share)), _at_most_computed(turn, again), exact=False)

    def _priced(self, turn: Turn, lost: int, again: int, *, exact: bool) -> Loss:
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


def _at_most_computed(turn: Turn, tokens: int) -> int:
    """Tokens paid again, in the server's own count: no more than it says that it computed."""
    usage = turn.usage
    if usage is None or usage.prompt is None or usage.cached is None:
        return tokens
    return min(tokens, max(0, usage.prompt - usage.cached))


def _only_suspected(found: Break, state: State, counted: Account | None) -> bool:
    """A string that became one text block reads alike on most servers: without tokens or a marker it proves nothing.

    Nor does the shape in which a reply comes back: the model generated a text, and its shape is the response's.
    """
    if found.word != "content_shape" or counted is not None:
        return False
    return found.returned or not found.was.startswith("[")
