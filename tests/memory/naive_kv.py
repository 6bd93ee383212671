"""The slow reference for block pool and prefix cache: lists and dictionaries, every question answered by searching."""

from __future__ import annotations

from collections import Counter

Prefix = tuple[str | None, tuple[int, ...]]  # salt, all tokens up to a block's end


class NaiveKV:
    """One pool of full attention. A sequence is a plain dictionary; nothing is hashed and nothing is linked."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.queue = list(range(num_blocks))
        self.holds: list[tuple[int, Prefix]] = []  # findable blocks, in the order in which they became so
        self.sequences: list[dict] = []
        self.copies: list[tuple[int, int]] = []

    def open(self, tokens: list[int], salt: str | None) -> dict:
        return {"tokens": list(tokens), "salt": salt, "table": [], "computed": 0, "cached": 0}

    def references(self) -> Counter[int]:
        tables = Counter(block for seq in self.sequences for block in seq["table"])
        return tables + Counter(source for source, _ in self.copies)

    def find(self, prefix: Prefix) -> int | None:
        return next((block for block, held in self.holds if held == prefix), None)

    def is_findable(self, block: int) -> bool:
        return any(held_block == block for held_block, _ in self.holds)

    def match(self, seq: dict) -> list[int]:
        found: list[int] = []
        while (end := (len(found) + 1) * self.block_size) < len(seq["tokens"]):
            block = self.find((seq["salt"], tuple(seq["tokens"][:end])))
            if block is None:
                break
            found.append(block)
        return found

    def take(self, count: int) -> list[int]:
        taken, self.queue = self.queue[:count], self.queue[count:]
        self.holds = [(block, prefix) for block, prefix in self.holds if block not in taken]
        return taken

    def admit(self, seq: dict, num_tokens: int) -> bool:
        found = self.match(seq)
        num_tokens = max(num_tokens, len(found) * self.block_size)
        missing = -(-num_tokens // self.block_size) - len(found)
        if len([block for block in self.queue if block not in found]) < missing:
            return False
        self.queue = [block for block in self.queue if block not in found]
        seq["table"] = found + self.take(missing)
        seq["computed"], seq["cached"] = len(found) * self.block_size, len(found)
        self.sequences.append(seq)
        return True

    def written_block(self, seq: dict, num_tokens: int) -> int | None:
        """Table index of a block that must be copied before tokens up to ``num_tokens`` are written."""
        index, offset = divmod(seq["computed"], self.block_size)
        if not offset or num_tokens <= seq["computed"]:
            return None
        block = seq["table"][index]
        readers = [other for other in self.sequences if block in other["table"]]
        return index if len(readers) > 1 or self.is_findable(block) else None

    def reserve(self, seq: dict, num_tokens: int) -> bool:
        missing = max(0, -(-num_tokens // self.block_size) - len(seq["table"]))
        index = self.written_block(seq, num_tokens)
        if len(self.queue) < missing + (index is not None):
            return False
        if index is not None:
            [block] = self.take(1)
            source = seq["table"][index]
            origin = next((s for s, d in self.copies if d == source), source)
            self.copies.append((origin, block))
            before = self.references()
            seq["table"][index] = block
            self.release(before, [source])
        seq["table"] += self.take(missing)
        return True

    def commit(self, seq: dict, computed: int) -> None:
        seq["computed"] = computed
        for index in range(seq["cached"], computed // self.block_size):
            end = (index + 1) * self.block_size
            self.holds.append((seq["table"][index], (seq["salt"], tuple(seq["tokens"][:end]))))
        seq["cached"] = max(seq["cached"], computed // self.block_size)

    def fork(self, seq: dict) -> dict:
        child = dict(seq, tokens=list(seq["tokens"]))
        child["table"] = seq["table"][: -(-seq["computed"] // self.block_size)]
        self.sequences.append(child)
        return child

    def release(self, before: Counter[int], blocks: list[int]) -> None:
        """Queue those of ``blocks`` (table order) that had references ``before`` and have none now."""
        now = self.references()
        gone = [block for block in reversed(blocks) if before[block] and not now[block]]
        self.queue = [block for block in gone if not self.is_findable(block)] + self.queue
        self.queue += [block for block in gone if self.is_findable(block)]

    def free(self, seq: dict) -> None:
        before = self.references()
        self.sequences = [other for other in self.sequences if other is not seq]
        table, seq["table"], seq["computed"], seq["cached"] = seq["table"], [], 0, 0
        self.release(before, table)
        in_tables = {block for other in self.sequences for block in other["table"]}
        for copy in [copy for copy in self.copies if copy[1] not in in_tables]:
            before = self.references()
            self.copies.remove(copy)
            self.release(before, [copy[0]])

    def take_copies(self) -> list[tuple[int, int]]:
        taken = list(self.copies)
        for _ in taken:
            before = self.references()
            source, _destination = self.copies.pop(0)
            self.release(before, [source])
        return taken

    def reset(self) -> bool:
        if self.references():
            return False
        self.holds = []
        return True

    def drop_cached(self) -> None:
        self.holds = []
