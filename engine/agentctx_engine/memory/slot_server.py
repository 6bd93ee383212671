"""SlotServer: which slot a llama-server gives a request, and how many of its tokens that slot spares.

A request passes four steps: choose a slot (and swap its content with the host cache), put the other slots
away, find how much of the slot's content the memory can still serve, compute the rest in batches that leave
checkpoints behind. When it ends, the slot holds its prompt and its output but the last token.

Source: ``tools/server/server-context.cpp`` of llama.cpp b11434 and b11549. One request at a time is exact; of
requests that overlap, the batches that they would share are computed one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from agentctx_engine.memory.host_prompts import HostEntry, HostPrompts, ratio
from agentctx_engine.memory.slot_memory import SlotMemory
from agentctx_engine.memory.slot_prompt import (
    Checkpoint,
    CheckpointRules,
    SlotPrompt,
    add_checkpoint,
    find_checkpoint,
)
from agentctx_engine.memory.slot_settings import MIB, ModelMemory, ServerSettings
from agentctx_engine.memory.token_bytes import TOKEN_BYTES, common_tokens


class Chosen(Enum):
    """Why the server chose this slot."""

    BY_ID = "asked for"
    BY_SIMILARITY = "most similar content"
    LEAST_RECENT = "least recently used"


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """What decides reuse in a request. ``text``: packed token ids. ``id_slot``: ``None`` lets the server choose.

    ``user_starts``: token positions at which user messages begin; the chat template gives them. ``completions``: the
    request's ``n``: so many slots are needed, and the content of all but one is lost.
    """

    text: bytes
    id_slot: int | None = None
    cache_prompt: bool | None = None  # None: the server's default
    user_starts: frozenset[int] = frozenset()
    completions: int = 1

    @property
    def num_tokens(self) -> int:
        return len(self.text) // TOKEN_BYTES


@dataclass(frozen=True, slots=True)
class SlotAnswer:
    """How a request was served. ``cache_n`` + ``prompt_n`` = its tokens.

    ``common``: tokens shared with the content that the slot held when the request began, host cache included.
    ``usable``: how many of them the memory (and the request's ``cache_prompt``) allowed, with those that
    ``cache_reuse`` shifted; ``cache_n`` is one less where the last token had to be computed. ``from_host``: the content
    came from the host cache. ``checkpoint``: tokens at the checkpoint that was restored. ``refused``: the prompt
    does not fit the context, and nothing was computed.
    """

    slot: int
    chosen: Chosen
    num_tokens: int
    common: int
    usable: int
    cache_n: int
    from_host: bool = False
    checkpoint: int | None = None
    refused: bool = False

    @property
    def prompt_n(self) -> int:
        """Tokens that the server computes."""
        return 0 if self.refused else self.num_tokens - self.cache_n

    @property
    def over(self) -> bool:
        """Whether the request ended at once: it was refused or empty, and its slot is free again."""
        return self.refused or self.num_tokens == 0


@dataclass(slots=True)
class Slot:
    """One slot: its content, and when it was last used."""

    index: int
    prompt: SlotPrompt
    last_used: int = -1
    busy: bool = False
    parent: int | None = None  # the slot whose request this one helps with

    def copy(self) -> Slot:
        return Slot(self.index, self.prompt.copy(), self.last_used, self.busy, self.parent)


class SlotServer:
    """The slots, their memory and the host cache. :meth:`begin` and :meth:`end` advance them, request by request."""

    def __init__(self, settings: ServerSettings, model: ModelMemory | None = None) -> None:
        self.settings = settings
        self.model = model or ModelMemory()
        self.slots = [Slot(index, SlotPrompt()) for index in range(settings.n_slots)]
        self.memory = SlotMemory(settings, self.model)
        self.host: HostPrompts | None = None
        if settings.host_cache:
            limit = settings.cache_ram_mib * MIB if settings.cache_ram_mib > 0 else None
            self.host = HostPrompts(limit, settings.total_ctx)
        self._clock = 0
        self._tasks = 0
        self.dropped: list[
            bytes
        ] = []  # contents that left for want of room, since the caller last emptied it
        self.purged_slots = 0

    def copy(self) -> SlotServer:
        """The same state again, to try a request on: costs no copy of any text."""
        other = SlotServer.__new__(SlotServer)
        other.settings, other.model = self.settings, self.model
        other.slots = [slot.copy() for slot in self.slots]
        other.memory = self.memory.copy()
        other.host = self.host.copy() if self.host is not None else None
        other._clock, other._tasks = self._clock, self._tasks
        other.dropped, other.purged_slots = [], self.purged_slots
        return other

    def begin(self, request: SlotRequest) -> SlotAnswer:
        """Serve a request up to its first output token. Raises ``MemoryError`` when every slot is busy: a server lets it wait."""
        slot, chosen, swap = self._choose(request)
        from_host = swap and self.host is not None and self._swap(slot, request)
        self._take_helpers(slot, request.completions - 1)
        slot.busy = True
        self._tasks += 1
        self._put_idle_slots_away()
        common = slot.prompt.common(request.text)
        answer = SlotAnswer(slot.index, chosen, request.num_tokens, common, 0, 0, from_host)
        if request.num_tokens == 0 or request.num_tokens >= self.settings.slot_ctx:
            self._release(slot)
            return replace(answer, refused=request.num_tokens > 0)
        cached, checkpoint = self._reuse(slot, request, common)
        usable = cached
        if cached == request.num_tokens:
            cached -= 1  # the last token must be computed to get logits
        slot.prompt.text = request.text[: cached * TOKEN_BYTES]
        self.memory.keep(slot.index, cached)
        self._process(slot, request)
        return replace(answer, usable=usable, cache_n=cached, checkpoint=checkpoint)

    def end(self, slot_index: int, output: bytes) -> None:
        """The request of this slot ends after ``output`` (packed tokens): all but the last of it was computed."""
        slot = self.slots[slot_index]
        if not slot.busy:
            raise RuntimeError(f"slot {slot_index} serves no request")
        start = slot.prompt.num_tokens
        computed = max(0, len(output) // TOKEN_BYTES - 1)
        end = min(start + computed, self.settings.slot_ctx - 1)
        position = start
        while position < end:
            # Other slots are emptied when the cells run out, not before: what they held decides where tokens go.
            self._make_room(slot, 1)
            count = min(end - position, self.memory.free_tokens(slot.index))
            self.memory.decode(slot.index, position, count)
            position += count
        if end > start:
            slot.prompt.text += output[: (end - start) * TOKEN_BYTES]
        self._release(slot)

    def save(self, slot_index: int) -> HostEntry:
        """``POST /slots/{id}?action=save``: a copy of an idle slot's content, its memory and its checkpoints."""
        slot = self._idle(slot_index)
        return HostEntry(slot.prompt.copy(), self.memory.save(slot.index))

    def restore(self, slot_index: int, saved: HostEntry) -> None:
        """``action=restore``: put a copy in the place of an idle slot's content. ``MemoryError``: no room; the slot is empty then."""
        slot = self._idle(slot_index)
        if saved.prompt.num_tokens == 0:
            self._clear(slot)
        elif self.memory.load(slot.index, saved.state):
            slot.prompt = saved.prompt.copy()
        else:
            self._clear(slot)
            raise MemoryError(f"slot {slot_index}: no room for {saved.prompt.num_tokens} tokens")

    def erase(self, slot_index: int) -> int:
        """``action=erase``: empty an idle slot; returns the tokens that went."""
        slot = self._idle(slot_index)
        gone = slot.prompt.num_tokens
        self._clear(slot)
        return gone

    def _idle(self, slot_index: int) -> Slot:
        if not 0 <= slot_index < len(self.slots):
            raise ValueError(
                f"slot {slot_index} does not exist; the server has slots 0 to {len(self.slots) - 1}"
            )
        if self.slots[slot_index].busy:
            raise RuntimeError(f"slot {slot_index} serves a request; wait for its end")
        return self.slots[slot_index]

    def _take_helpers(self, slot: Slot, count: int) -> None:
        """Further slots for ``n`` completions: the first idle ones. They copy the prompt's state and are emptied at the end."""
        if count <= 0:
            return
        idle = [other for other in self.slots if not other.busy and other is not slot]
        if len(idle) < count:
            raise MemoryError(f"{count} more slots are needed at once, {len(idle)} are idle")
        for helper in idle[:count]:
            self._clear(helper)
            helper.busy, helper.parent = True, slot.index

    def _release(self, slot: Slot) -> None:
        """Free a slot and those that helped it; they stop in the order of their ids."""
        for one in self.slots:
            if one is slot or one.parent == slot.index:
                self._clock += 1
                one.last_used = self._clock
                one.busy, one.parent = False, None

    def _choose(self, request: SlotRequest) -> tuple[Slot, Chosen, bool]:
        """The slot, why, and whether its content is to be swapped with the host cache."""
        idle = [slot for slot in self.slots if not slot.busy]
        if request.id_slot is not None:
            if not 0 <= request.id_slot < len(self.slots):
                raise ValueError(
                    f"id_slot is {request.id_slot}; the server has slots 0 to {len(self.slots) - 1}"
                )
            idle = [slot for slot in idle if slot.index == request.id_slot]
        if not idle:
            raise MemoryError("every slot that may serve this request is busy; release one first")
        least = np.float32(self.settings.slot_prompt_similarity)
        best, best_similarity = None, np.float32(0)
        if least != 0 and request.num_tokens:
            for slot in idle:
                if slot.prompt.num_tokens:
                    similarity = ratio(slot.prompt.common(request.text), request.num_tokens)
                    if similarity > best_similarity and similarity > least:
                        best, best_similarity = slot, similarity
        if request.id_slot is not None:
            slot = idle[0]
            return slot, Chosen.BY_ID, least != 0 and self._keeps_little(slot, best_similarity, request)
        if best is not None:
            return best, Chosen.BY_SIMILARITY, self._keeps_little(best, best_similarity, request)
        oldest = idle[0]
        for slot in idle:
            if slot.last_used <= oldest.last_used:
                oldest = slot
        return oldest, Chosen.LEAST_RECENT, True

    def _keeps_little(self, slot: Slot, similarity: np.float32, request: SlotRequest) -> bool:
        """Whether the request would lose more than half of the slot's content: then it is saved first."""
        if slot.prompt.num_tokens == 0:
            return False
        kept = similarity * np.float32(request.num_tokens) / np.float32(slot.prompt.num_tokens)
        return bool(kept < np.float32(0.5))

    def _swap(self, slot: Slot, request: SlotRequest) -> bool:
        """Save the slot's content to the host cache and load a better one, if there is one; tells whether it did."""
        assert self.host is not None
        self._save(slot)
        entry = self.host.best(slot.prompt, request.text) if request.num_tokens else None
        if entry is not None:
            if self.memory.load(slot.index, entry.state):
                self.host.take(entry)
                slot.prompt = entry.prompt.copy()
            else:
                self._clear(slot)
                entry = None
        self._drop(self.host.trim())
        return entry is not None

    def _save(self, slot: Slot) -> None:
        if self.host is not None and slot.prompt.num_tokens:
            self._drop(self.host.save(HostEntry(slot.prompt.copy(), self.memory.save(slot.index))))

    def _drop(self, entries: list[HostEntry]) -> None:
        self.dropped += [entry.prompt.text for entry in entries]

    def _clear(self, slot: Slot) -> None:
        self.memory.keep(slot.index, 0)
        slot.prompt = SlotPrompt()

    def _put_idle_slots_away(self) -> None:
        if not self.settings.saves_idle_slots:
            return
        assert self.host is not None
        for slot in self.slots:
            if not slot.busy:
                self._save(slot)
                self._drop(self.host.trim())
                if self.settings.kv_unified:
                    self._clear(slot)

    def _reuse(self, slot: Slot, request: SlotRequest, common: int) -> tuple[int, int | None]:
        """Tokens of the prompt that need not be computed, and the checkpoint restored for it."""
        allowed = self.settings.cache_prompt if request.cache_prompt is None else request.cache_prompt
        cached = self._shift_chunks(slot, request, common) if allowed else 0
        window = self.settings.window_of(self.model)
        limit = max(0, cached - window - (cached == request.num_tokens))
        position, restored = cached, None
        if 0 < cached <= slot.prompt.num_tokens and self.memory.oldest(slot.index) >= limit:
            restored = find_checkpoint(slot.prompt.checkpoints, cached, limit)
            if restored is None:
                position = cached = 0
            else:
                self.memory.load(slot.index, restored.state, checkpoint=True)
                position = min(cached, max(restored.oldest + 1, restored.newest))
                cached = min(position, restored.num_tokens)
        slot.prompt.checkpoints = [kept for kept in slot.prompt.checkpoints if kept.newest <= position]
        return cached, restored.num_tokens if restored is not None else None

    def _shift_chunks(self, slot: Slot, request: SlotRequest, common: int) -> int:
        """``--cache-reuse``: chunks that stand further behind in the slot's content are moved to where the prompt has them."""
        least = self.settings.cache_reuse
        if least <= 0 or not self.memory.can_shift:
            return common
        held, wanted = slot.prompt.text, request.text
        in_slot = in_prompt = common
        while in_slot * TOKEN_BYTES < len(held) and in_prompt * TOKEN_BYTES < len(wanted):
            match = common_tokens(held, wanted[in_prompt * TOKEN_BYTES :], in_slot * TOKEN_BYTES)
            if match >= least:
                self.memory.move(slot.index, in_slot, match, in_prompt)
                in_slot += match
                in_prompt += match
            else:
                in_slot += 1
        return in_prompt

    def _process(self, slot: Slot, request: SlotRequest) -> None:
        """Compute what is not cached, batch by batch, with the checkpoints that the server takes between them."""
        settings = self.settings
        rollback = not (self.model.recurrent or settings.window_of(self.model))
        rules = CheckpointRules(
            num_tokens=request.num_tokens,
            n_batch=settings.n_batch,
            n_ubatch=settings.n_ubatch,
            most=0 if rollback else settings.ctx_checkpoints,
            min_step=settings.checkpoint_min_step,
            user_starts=request.user_starts,
        )
        start = slot.prompt.num_tokens
        while start < request.num_tokens:
            batch = rules.next_batch(start, slot.prompt.checkpoints)
            if batch.checkpoint and self.memory.oldest(slot.index) >= 0:
                self._checkpoint(slot, batch.start)
            count = batch.end - batch.start
            self._make_room(slot, count)
            self.memory.process(slot.index, batch.start, count)
            start = batch.end
        slot.prompt.text = request.text

    def _checkpoint(self, slot: Slot, num_tokens: int) -> None:
        memory = self.memory
        new = Checkpoint(
            num_tokens,
            memory.oldest(slot.index),
            memory.newest(slot.index),
            self._tasks,
            memory.save(slot.index, checkpoint=True),
        )
        add_checkpoint(
            slot.prompt.checkpoints,
            new,
            most=self.settings.ctx_checkpoints,
            min_step=self.settings.checkpoint_min_step,
        )

    def _make_room(self, slot: Slot, count: int) -> None:
        """Unified cells are full: idle slots are emptied one by one, in order, and not saved."""
        while self.memory.free_tokens(slot.index) < count:
            victim = next((idle for idle in self.slots if not idle.busy and idle.prompt.num_tokens), None)
            if victim is None or not self.settings.kv_unified:
                for busy in self.slots:
                    if busy.busy:
                        self._clear(busy)
                for busy in self.slots:
                    if busy.busy and busy.parent is None:
                        self._release(busy)
                raise MemoryError(
                    "the context is full, and no idle slot is left to empty: the server ends all requests"
                )
            self.dropped.append(victim.prompt.text)
            self.purged_slots += 1
            self._clear(victim)

    def check(self) -> None:
        """Integrity, for any idle moment: raises ``AssertionError`` that names the broken rule."""
        for slot in self.slots:
            held = slot.prompt.num_tokens
            assert self.memory.held(slot.index) == held, (
                f"slot {slot.index}: memory and prompt differ in length"
            )
            newest, oldest = self.memory.newest(slot.index), self.memory.oldest(slot.index)
            assert newest == held - 1, f"slot {slot.index}: the newest position is {newest}, not {held - 1}"
            assert oldest <= max(newest, 0), f"slot {slot.index}: the oldest position is behind the newest"
            checkpoints = slot.prompt.checkpoints
            assert len(checkpoints) <= self.settings.ctx_checkpoints, (
                f"slot {slot.index}: too many checkpoints"
            )
            # The server keeps a checkpoint that ends one token past what it kept of the prompt.
            ahead = [kept for kept in checkpoints if kept.num_tokens > held + 1]
            assert not ahead, f"slot {slot.index}: checkpoints are ahead of the prompt"
        self.memory.check()
        if self.host is not None:
            assert all(entry.prompt.num_tokens for entry in self.host.entries), (
                "an empty content in the host cache"
            )
            if self.host.limit_bytes is not None:
                assert self.host.num_bytes <= self.host.limit_bytes, "the host cache is over its limit"
