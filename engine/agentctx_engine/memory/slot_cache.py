"""SlotCache: llama-server's slots behind the PrefixCache interface, each answer with its slot and its reasons."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from agentctx_engine.memory.host_prompts import HostEntry
from agentctx_engine.memory.prefix_cache import CacheStats, Lease, Lost, Match, TokenIds
from agentctx_engine.memory.radix_tree import Namespace, RadixTree
from agentctx_engine.memory.slot_server import SlotAnswer, SlotRequest, SlotServer
from agentctx_engine.memory.slot_settings import ONE_SLOT, ModelMemory, ServerSettings
from agentctx_engine.memory.token_bytes import TOKEN_BYTES, pack

_EVERYONE = Namespace()


@dataclass(slots=True)
class SlotLease:
    """What one admitted request holds until it is released. ``answer``: slot, ``cache_n``, ``prompt_n`` and how they came about."""

    match: Match
    answer: SlotAnswer
    released: bool = False


class SlotCache:
    """A :class:`~agentctx_engine.memory.prefix_cache.PrefixCache` that follows a llama-server.

    By default one slot and no host cache. ``remember_tokens``: how much text that left is remembered (text only) to tell
    ``slot-taken`` and ``evicted`` from ``first-difference``. Salts don't exist in llama-server: a salt is refused.

    :meth:`match` runs the very steps of :meth:`commit` on a copy of the slots, so the two can't disagree.
    """

    def __init__(
        self,
        settings: ServerSettings = ONE_SLOT,
        model: ModelMemory | None = None,
        *,
        remember_tokens: int = 4_000_000,
    ) -> None:
        self.server = SlotServer(settings, model)
        self._remember_tokens = remember_tokens
        self._computed = RadixTree()
        self._dropped = RadixTree()
        self._requests = self._prompt_tokens = self._hit_tokens = self._evicted_tokens = 0

    def match(
        self,
        token_ids: TokenIds,
        *,
        salt: str | None = None,
        id_slot: int | None = None,
        cache_prompt: bool | None = None,
        user_starts: Iterable[int] = (),
    ) -> Match:
        """What the server would reuse if this prompt came now, and why not more. Changes nothing.

        ``id_slot``, ``cache_prompt``: as in the request. ``user_starts``: token positions at which user messages begin;
        they decide where a model with sliding windows or running states leaves context checkpoints.
        """
        request = _request(token_ids, salt, id_slot, cache_prompt, user_starts)
        trial = self.server.copy()
        try:
            return self._explain(request, trial.begin(request), trial)
        except MemoryError:
            return _all_lost(Lost.SLOT_TAKEN, request.num_tokens)

    def commit(
        self,
        token_ids: TokenIds,
        *,
        salt: str | None = None,
        id_slot: int | None = None,
        cache_prompt: bool | None = None,
        user_starts: Iterable[int] = (),
    ) -> SlotLease:
        """Serve a prompt up to its first output token. ``MemoryError``, changing nothing: too long for the context, or no slot is free."""
        request = _request(token_ids, salt, id_slot, cache_prompt, user_starts)
        if request.num_tokens >= self.server.settings.slot_ctx:
            raise MemoryError(
                f"{request.num_tokens} tokens do not fit a context of {self.server.settings.slot_ctx}"
            )
        return self._begin(request)

    def serve(
        self,
        token_ids: TokenIds,
        output_ids: TokenIds,
        *,
        id_slot: int | None = None,
        cache_prompt: bool | None = None,
        user_starts: Iterable[int] = (),
        completions: int = 1,
    ) -> SlotLease:
        """One whole request; with ``completions`` (its ``n``), ``output_ids`` is the first of them.

        A prompt that is too long is refused as the server does it: after it has chosen a slot.
        """
        request = _request(token_ids, None, id_slot, cache_prompt, user_starts)
        lease = self._begin(replace(request, completions=completions))
        if not lease.released:
            self.release(lease, output_ids)
        return lease

    def _begin(self, request: SlotRequest) -> SlotLease:
        answer = self.server.begin(request)
        match = self._explain(request, answer, self.server)
        self._note_dropped()
        self._requests += 1
        self._prompt_tokens += request.num_tokens
        self._hit_tokens += match.hit_tokens
        return SlotLease(match, answer, released=answer.over)

    def release(self, lease: Lease, output_ids: TokenIds = ()) -> None:
        """End a request: its slot holds the prompt and the output but the last token."""
        assert isinstance(lease, SlotLease)
        if lease.released:
            raise RuntimeError("this lease was released already")
        lease.released = True
        self.server.end(lease.answer.slot, pack(output_ids))
        self._note_dropped()
        text = self.server.slots[lease.answer.slot].prompt.text
        self._note(self._computed, text)

    def save(self, slot: int) -> HostEntry:
        """A copy of an idle slot's content, as ``POST /slots/{id}?action=save`` writes it."""
        return self.server.save(slot)

    def restore(self, slot: int, saved: HostEntry) -> None:
        """Put a saved content into an idle slot."""
        self.server.restore(slot, saved)
        self._note(self._computed, saved.prompt.text)

    def erase(self, slot: int) -> int:
        """Empty an idle slot; returns the tokens that went."""
        self._note(self._dropped, self.server.slots[slot].prompt.text)
        return self.server.erase(slot)

    def _note_dropped(self) -> None:
        for text in self.server.dropped:
            self._evicted_tokens += len(text) // TOKEN_BYTES
            self._note(self._dropped, text)
        self.server.dropped.clear()

    def _note(self, tree: RadixTree, text: bytes) -> None:
        if text:
            tree.insert(text, None, _EVERYONE)
            tree.evict(tree.num_tokens - self._remember_tokens)

    def _explain(self, request: SlotRequest, answer: SlotAnswer, server: SlotServer) -> Match:
        """Give each token that is not reused a reason.

            |-- cache_n --|-- memory --|-- slot-taken --|-- evicted --|-- slot-taken --|-- first difference --|
                          usable       common           elsewhere     dropped          once                  num_tokens

        ``elsewhere``: still held by another slot or the host cache, where the server did not look for it; ``once``: held
        by this slot before another conversation took it.
        """
        total, text = request.num_tokens, request.text
        if answer.refused:
            return _all_lost(Lost.POOL_FULL, total)
        if not total:
            return Match(0)
        allowed = server.settings.cache_prompt if request.cache_prompt is None else request.cache_prompt
        ends = [answer.usable, max(answer.common, answer.usable)]
        for known in (
            self._elsewhere(text, answer.slot, server),
            self._dropped.find(text, _EVERYONE).equal_tokens,
            self._computed.find(text, _EVERYONE).equal_tokens,
        ):
            ends.append(max(ends[-1], known))
        ends.append(total)
        memory = Lost.WINDOW if server.model.window else Lost.NO_CHECKPOINT
        reasons = (
            memory if allowed else Lost.DISABLED,
            Lost.SLOT_TAKEN,
            Lost.EVICTED,
            Lost.SLOT_TAKEN,
            Lost.FIRST_DIFFERENCE,
        )
        lost: dict[Lost, int] = {}
        last = None
        for reason, start, end in zip(reasons, ends, ends[1:], strict=False):
            if end > start:
                lost[reason] = lost.get(reason, 0) + end - start
                last = reason
        if ends[-2] == total:  # all of it was known: the last token would have been computed in any case
            if last is not None:
                lost[last] -= 1
            lost[Lost.WHOLE_PROMPT] = 1
        return Match(
            answer.cache_n,
            tuple((reason, tokens) for reason, tokens in lost.items() if tokens),
            next((reason for reason, tokens in lost.items() if tokens), None),
        )

    def _elsewhere(self, text: bytes, slot: int, server: SlotServer) -> int:
        """The longest prefix of a text that other slots and the host cache hold."""
        prompts = [other.prompt for other in server.slots if other.index != slot]
        if server.host is not None:
            prompts += [entry.prompt for entry in server.host.entries]
        return max((prompt.common(text) for prompt in prompts), default=0)

    def stats(self) -> CacheStats:
        server = self.server
        held = sum(slot.prompt.num_tokens for slot in server.slots)
        return CacheStats(
            requests=self._requests,
            prompt_tokens=self._prompt_tokens,
            hit_tokens=self._hit_tokens,
            cached_tokens=held + (server.host.num_tokens if server.host is not None else 0),
            capacity_tokens=server.settings.total_ctx,
            evicted_tokens=self._evicted_tokens,
        )

    def check(self) -> None:
        """Integrity, for any idle moment."""
        self.server.check()
        self._computed.check()
        self._dropped.check()


def _all_lost(reason: Lost, num_tokens: int) -> Match:
    return Match(0, ((reason, num_tokens),), reason) if num_tokens else Match(0)


def _request(
    token_ids: TokenIds,
    salt: str | None,
    id_slot: int | None,
    cache_prompt: bool | None,
    user_starts: Iterable[int],
) -> SlotRequest:
    if salt is not None:
        raise ValueError(f"salt {salt!r}: llama-server knows no salts; run one server for each tenant")
    return SlotRequest(pack(token_ids), id_slot, cache_prompt, frozenset(user_starts))
