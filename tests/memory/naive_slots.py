"""llama-server's slots, spelt out on lists and dictionaries, one token and one cell at a time. Shares no code with the fast one."""

from __future__ import annotations

from typing import Any

import numpy as np

from agentctx_engine.memory.slot_settings import ModelMemory, ServerSettings

F = np.float32
Tokens = list[int]
Dict = dict[str, Any]


def lcp(left: Tokens, right: Tokens) -> int:
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    return count


class NaiveRing:
    """Cells as a list of (position, sequence) or None."""

    def __init__(self, size: int, window: int) -> None:
        self.cells: list[tuple[int, int] | None] = [None] * size
        self.window, self.head = window, 0

    def positions(self, sequence: int) -> list[int]:
        return sorted(cell[0] for cell in self.cells if cell and cell[1] == sequence)

    def oldest(self, sequence: int) -> int:
        return min(self.positions(sequence), default=-1)

    def newest(self, sequence: int) -> int:
        return max(self.positions(sequence), default=-1)

    def remove(self, sequence: int, first: int, end: int = 1 << 30) -> None:
        freed = None
        for index, cell in enumerate(self.cells):
            if cell and cell[1] == sequence and first <= cell[0] < end:
                self.cells[index] = None
                freed = index if freed is None else freed
        if freed is not None and freed < self.head:
            self.head = freed

    def place(self, sequence: int, positions: list[int]) -> None:
        newest = {seq: self.newest(seq) for seq in {cell[1] for cell in self.cells if cell}}
        used = sum(cell is not None for cell in self.cells)
        at = 0 if self.head > used + 2 * len(positions) else self.head
        found: list[int] = []
        for step in range(len(self.cells)):
            index = (at + step) % len(self.cells)
            cell = self.cells[index]
            if cell is None or newest[cell[1]] + 1 - cell[0] >= self.window:
                found.append(index)
                if len(found) == len(positions):
                    break
        if len(found) < len(positions):
            raise MemoryError
        lost: dict[int, int] = {}
        for index, position in zip(found, positions, strict=True):
            cell = self.cells[index]
            if cell:
                lost[cell[1]] = max(lost.get(cell[1], -1), cell[0])
            self.cells[index] = (position, sequence)
        for owner, last in lost.items():
            self.remove(owner, 0, last + 1)
        self.head = found[-1] + 1

    def save(self, sequence: int) -> list[int]:
        newest = self.newest(sequence)
        return [c[0] for c in self.cells if c and c[1] == sequence and newest - c[0] < self.window]

    def load(self, sequence: int, positions: list[int]) -> None:
        self.remove(sequence, 0)
        if positions:
            self.place(sequence, positions)


class NaiveSlots:
    def __init__(self, settings: ServerSettings, model: ModelMemory) -> None:
        self.s, self.m = settings, model
        self.slots: list[Dict] = [
            {"tokens": [], "ckpts": [], "last": -1, "busy": False, "state": -1}
            for _ in range(settings.n_slots)
        ]
        count = (1 if settings.kv_unified else settings.n_slots) if model.window else 0
        self.rings = [NaiveRing(settings.window_cells(model), model.window) for _ in range(count)]
        self.host: list[Dict] = []
        self.clock = self.task = 0

    def ring(self, i: int) -> NaiveRing | None:
        return self.rings[0 if self.s.kv_unified else i] if self.rings else None

    def oldest(self, i: int) -> int:
        ring = self.ring(i)
        if self.m.recurrent:
            return self.slots[i]["state"]
        return ring.oldest(i) if ring else (0 if self.slots[i]["tokens"] else -1)

    def newest(self, i: int) -> int:
        return self.slots[i]["state"] if self.m.recurrent else len(self.slots[i]["tokens"]) - 1

    def size(self, tokens: int, cells: list[int] | None) -> int:
        extra = self.m.checkpoint_bytes + len(cells or []) * self.m.window_bytes_per_token
        return extra + (self.m.overhead_bytes + tokens * self.m.bytes_per_token if tokens else 0)

    def entry_size(self, entry: Dict) -> int:
        return entry["size"] + sum(ckpt["size"] for ckpt in entry["ckpts"])

    def snapshot(self, i: int) -> Dict:
        slot, ring = self.slots[i], self.ring(i)
        cells = ring.save(i) if ring else None
        return {
            "tokens": list(slot["tokens"]),
            "ckpts": list(slot["ckpts"]),
            "cells": cells,
            "state": slot["state"],
            "size": self.size(len(slot["tokens"]), cells),
        }

    def clear(self, i: int) -> None:
        slot, ring = self.slots[i], self.ring(i)
        slot.update(tokens=[], ckpts=[], state=-1)
        if ring:
            ring.remove(i, 0)

    def total(self) -> int:
        return sum(map(self.entry_size, self.host))

    @property
    def limit(self) -> int | None:
        return self.s.cache_ram_mib * 2**20 if self.s.cache_ram_mib > 0 else None

    def save(self, i: int) -> None:
        if not self.slots[i]["tokens"]:
            return
        new = self.snapshot(i)
        if any(entry["tokens"][: len(new["tokens"])] == new["tokens"] for entry in self.host):
            return
        if self.limit is not None and self.entry_size(new) > self.limit:
            return
        self.host = [e for e in self.host if new["tokens"][: len(e["tokens"])] != e["tokens"]]
        while self.limit is not None and self.host and self.total() + self.entry_size(new) > self.limit:
            self.host.pop(0)
        self.host.append(new)

    def trim(self) -> None:
        while self.limit is not None and self.host and self.total() > self.limit:
            self.host.pop(0)
        held = sum(len(entry["tokens"]) for entry in self.host)
        most = self.s.total_ctx
        if self.limit is not None:
            most = max(most, int(self.limit / max(1.0, self.total() / max(1, held))))
        while self.host and sum(len(entry["tokens"]) for entry in self.host) > most:
            self.host.pop(0)

    def swap(self, i: int, new: Tokens) -> None:
        self.save(i)
        slot, best = self.slots[i], None
        common = lcp(slot["tokens"], new)
        keep = F(common) / F(len(slot["tokens"])) if slot["tokens"] else F(-1)
        sim = F(common) / F(len(new))
        for entry in self.host:
            common = lcp(entry["tokens"], new)
            one, two = F(common) / F(len(entry["tokens"])), F(common) / F(len(new))
            if one >= F(0.25) and one > keep and two > sim:
                best, keep, sim = entry, one, two
        if best is not None:
            ring = self.ring(i)
            self.clear(i)
            if len(best["tokens"]) <= self.room(i):
                self.host = [entry for entry in self.host if entry is not best]
                slot.update(tokens=list(best["tokens"]), ckpts=list(best["ckpts"]), state=best["state"])
                if ring:
                    ring.load(i, best["cells"])
        self.trim()

    def room(self, i: int) -> int:
        used = (
            sum(len(s["tokens"]) for s in self.slots) if self.s.kv_unified else len(self.slots[i]["tokens"])
        )
        return self.s.slot_ctx - used

    def make_room(self, i: int, count: int) -> None:
        while self.room(i) < count:
            victim = next((k for k, s in enumerate(self.slots) if not s["busy"] and s["tokens"]), None)
            assert victim is not None, "one request at a time always fits"
            self.clear(victim)

    def choose(self, new: Tokens, wanted: int | None) -> tuple[int, bool]:
        least, best, best_sim = F(self.s.slot_prompt_similarity), None, F(0)
        for i, slot in enumerate(self.slots):
            if wanted not in (None, i) or not slot["tokens"] or least == 0:
                continue
            sim = F(lcp(slot["tokens"], new)) / F(len(new))
            if sim > best_sim and sim > least:
                best, best_sim = i, sim
        chosen = wanted if wanted is not None else best
        if chosen is not None:
            held = len(self.slots[chosen]["tokens"])
            little = held > 0 and best_sim * F(len(new)) / F(held) < F(0.5)
            return chosen, bool(little) and least != 0
        oldest = min(slot["last"] for slot in self.slots)
        return max(i for i, slot in enumerate(self.slots) if slot["last"] == oldest), True

    def serve(
        self, new: Tokens, out: Tokens, wanted: int | None, reuse: bool, users: set[int]
    ) -> tuple[int, int]:
        """One request; returns the slot and cache_n (−1: refused)."""
        i, swap = self.choose(new, wanted)
        slot = self.slots[i]
        if swap and self.s.cache_ram_mib:
            self.swap(i, new)
        slot["busy"] = True
        self.task += 1
        if self.s.cache_idle_slots and self.s.cache_ram_mib:
            for k, other in enumerate(self.slots):
                if not other["busy"]:
                    self.save(k)
                    self.trim()
                    if self.s.kv_unified:
                        self.clear(k)
        cached = -1
        if len(new) < self.s.slot_ctx:
            cached = self.reuse(i, new, reuse)
            self.prefill(i, new, cached, users)
            for token in out[:-1]:
                if len(slot["tokens"]) + 1 < self.s.slot_ctx:
                    self.make_room(i, 1)
                    self.put(i, [token])
        self.clock += 1
        slot.update(last=self.clock, busy=False)
        return i, cached

    def reuse(self, i: int, new: Tokens, allowed: bool) -> int:
        slot, ring = self.slots[i], self.ring(i)
        past = lcp(slot["tokens"], new) if allowed else 0
        window = 0 if self.s.swa_full else self.m.window
        need = max(0, past - window - (1 if past == len(new) else 0))
        upto = past
        if past > 0 and self.oldest(i) >= need:
            for ckpt in reversed(slot["ckpts"]):
                if ckpt["newest"] <= past and (ckpt["oldest"] < need or ckpt["oldest"] == 0):
                    slot["state"] = ckpt["state"]
                    if ring:
                        ring.load(i, ckpt["cells"])
                    upto = min(past, max(ckpt["oldest"] + 1, ckpt["newest"]))
                    past = min(upto, ckpt["n"])
                    break
            else:
                upto = past = 0
        slot["ckpts"] = [ckpt for ckpt in slot["ckpts"] if ckpt["newest"] <= upto]
        if past == len(new) and past:
            past -= 1
        slot["tokens"] = new[:past]
        if ring:
            ring.remove(i, past)
        if past == 0:
            slot["state"] = -1
        return past

    def put(self, i: int, tokens: Tokens) -> None:
        slot, ring = self.slots[i], self.ring(i)
        start = len(slot["tokens"])
        for at in range(0, len(tokens), self.s.n_ubatch):
            part = tokens[at : at + self.s.n_ubatch]
            if ring:
                ring.place(i, list(range(start + at, start + at + len(part))))
        slot["tokens"] = slot["tokens"] + tokens
        slot["state"] = len(slot["tokens"]) - 1

    def prefill(self, i: int, new: Tokens, start: int, users: set[int]) -> None:
        slot = self.slots[i]
        most = self.s.ctx_checkpoints
        special = most > 0 and (self.m.recurrent or (self.m.window and not self.s.swa_full))
        last_user = max(users, default=-1)
        while start < len(new):
            end = start
            while end < len(new) and end - start < self.s.n_batch:
                end += 1
                ckpts = slot["ckpts"]
                if (
                    special
                    and end in users
                    and (end == last_user or not ckpts or end > ckpts[-1]["n"] + self.s.checkpoint_min_step)
                ):
                    break
                if special and any(
                    len(new) == end + min(self.s.n_batch, tail) for tail in (4 + self.s.n_ubatch, 4)
                ):
                    break
            near = len(new) < end + self.s.n_ubatch
            wanted = special and (end == len(new) or start in users or near) and self.oldest(i) >= 0
            ckpts = slot["ckpts"]
            if wanted and (
                not ckpts or start == last_user or near or start > ckpts[-1]["n"] + self.s.checkpoint_min_step
            ):
                self.checkpoint(i, start)
            self.make_room(i, end - start)
            self.put(i, new[start:end])
            start = end

    def checkpoint(self, i: int, n: int) -> None:
        ckpts, ring, most = self.slots[i]["ckpts"], self.ring(i), self.s.ctx_checkpoints
        kept: list[Dict] = []
        last = -1
        for index, ckpt in enumerate(ckpts):
            left = len(kept) + len(ckpts) - index
            near = last >= 0 and ckpt["n"] <= last + self.s.checkpoint_min_step
            if left + 1 >= most and ckpt["task"] != self.task and near:
                continue
            kept.append(ckpt)
            last = ckpt["n"]
        kept = kept[max(0, len(kept) - most + 1) :]
        kept = [ckpt for ckpt in kept if ckpt["n"] != n]
        cells = ring.save(i) if ring else None
        kept.append(
            {
                "n": n,
                "oldest": self.oldest(i),
                "newest": self.newest(i),
                "task": self.task,
                "cells": cells,
                "state": self.slots[i]["state"],
                "size": self.size(0, cells),
            }
        )
        self.slots[i]["ckpts"] = kept
