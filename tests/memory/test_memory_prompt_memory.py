"""The prompt memory against a list of all texts: what is equal, its hashes, its hints; and what it forgets."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from agentctx_engine.memory import BlockHasher, ExtraKeys, ImageSpan, KVManager
from agentctx_engine.memory.prompt_memory import (
    NO_HINTS,
    BlockHints,
    PromptMemory,
    memory_text,
    trusted_tokens,
)

BLOCK = 3
texts = st.lists(st.integers(1, 2), min_size=1, max_size=14)
spaces = st.sampled_from([b"", b"", b"other"])


def pack(tokens: list[int]) -> bytes:
    return np.array(tokens, dtype=np.int32).tobytes()


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def hints_for(number: int, tokens: list[int]) -> BlockHints:
    """Distinct block numbers for each insertion."""
    ids = [1000 * number + i for i in range(len(tokens) // BLOCK)]
    return BlockHints(ids, np.array(ids, dtype=np.int32), np.ones(len(ids), dtype=np.uint32))


@given(st.lists(st.tuples(texts, spaces), min_size=1, max_size=12), texts, spaces)
def test_finds_what_a_list_of_texts_would(
    inserted: list[tuple[list[int], bytes]], asked: list[int], space: bytes
) -> None:
    memory, hasher = PromptMemory(BLOCK, None), BlockHasher()
    for number, (tokens, where) in enumerate(inserted):
        memory.insert(pack(tokens), where, hasher.chain(tokens, BLOCK), hints_for(number, tokens))
    known = memory.find(pack(asked), space)
    same = [tokens for tokens, where in inserted if where == space]
    equal = max((common(tokens, asked) for tokens in same), default=0)
    assert known.num_tokens == memory.equal_tokens(pack(asked), space) == equal
    assert known.digests == hasher.chain(asked[: equal - equal % BLOCK], BLOCK)
    others = [tokens for tokens, where in inserted if where != space]
    elsewhere = max((common(tokens, asked) for tokens in others), default=0)
    assert memory.equal_tokens_elsewhere(pack(asked), space, most_namespaces=9) == elsewhere

    # Hints: of each block, the newest text that has it says where it is.
    newest = [
        max(
            (
                number
                for number, (tokens, where) in enumerate(inserted)
                if where == space and common(tokens, asked) >= (index + 1) * BLOCK
            ),
            default=None,
        )
        for index in range(equal // BLOCK)
    ]
    expected = [1000 * number + index for index, number in enumerate(newest) if number is not None]
    assert known.hints.ids == known.hints.blocks.tolist() == expected[: len(known.hints)]
    assert len(known.hints) == len(expected)

    stored = {
        (where, tuple(tokens[:length])) for tokens, where in inserted for length in range(1, len(tokens) + 1)
    }
    assert memory.num_tokens == len(stored)


@given(st.lists(texts, min_size=1, max_size=20), st.integers(1, 30))
def test_forgets_the_least_recently_used_and_stays_within_its_bound(
    inserted: list[list[int]], bound: int
) -> None:
    memory, hasher = PromptMemory(BLOCK, bound), BlockHasher()
    for tokens in inserted:
        memory.insert(pack(tokens), b"", hasher.chain(tokens, BLOCK), NO_HINTS)
        assert memory.num_tokens <= bound
        assert memory.num_tokens == len(
            {text[:end] for _, text in memory.texts() for end in range(4, len(text) + 1, 4)}
        )
        known = memory.find(pack(tokens), b"")
        assert known.digests == hasher.chain(tokens[: known.num_tokens], BLOCK)
        if len(tokens) <= bound and known.num_tokens < len(tokens):
            # Only a text with branches of its own can lose its end, to what hangs from it.
            raise AssertionError("the newest text was forgotten")


def test_a_conversation_keeps_one_run() -> None:
    """Two hundred turns do not make a path of two hundred runs."""
    memory, tokens = PromptMemory(BLOCK, None), list[int]()
    for turn in range(200):
        tokens += [turn, turn + 1]
        memory.insert(pack(tokens), b"", BlockHasher().chain(tokens, BLOCK), NO_HINTS)
    assert len(memory._walk(pack(tokens), b"")) == 1


def test_clear() -> None:
    memory = PromptMemory(BLOCK, 100)
    memory.insert(pack([1, 2, 3]), b"", BlockHasher().chain([1, 2, 3], BLOCK), NO_HINTS)
    memory.clear()
    assert (memory.num_tokens, list(memory.texts())) == (0, [])
    assert memory.find(pack([1, 2, 3]), b"").num_tokens == 0


def test_other_images_are_other_text_from_the_image_on() -> None:
    tokens = np.arange(1, 21, dtype=np.int32)
    plain = memory_text(tokens, ExtraKeys())
    cat = memory_text(tokens, ExtraKeys(images=(ImageSpan("cat", 4, 9),)))
    dog = memory_text(tokens, ExtraKeys(images=(ImageSpan("dog", 4, 9),)))
    assert cat[:16] == dog[:16] == plain[:16]
    assert len({cat[16:20], dog[16:20], plain[16:20]}) == 3
    assert cat[-28:] == dog[-28:] == plain[-28:]
    # The same image over other placeholder tokens is other text too.
    other = tokens.copy()
    other[6] = 99
    assert memory_text(other, ExtraKeys(images=(ImageSpan("cat", 4, 9),)))[: 7 * 4] != cat[: 7 * 4]
    # Shown in part, it is the beginning of what it is as a whole.
    assert memory_text(tokens[:8], ExtraKeys(images=(ImageSpan("cat", 4, 9),))) == cat[: 8 * 4]


def test_hashes_are_taken_over_only_behind_enough_of_an_image() -> None:
    keys = ExtraKeys(images=(ImageSpan("cat", 10, 20), ImageSpan("dot", 40, 3)))
    assert [trusted_tokens(n, keys) for n in (5, 10, 11, 17, 18, 40, 41, 60)] == [
        5,
        10,
        10,
        10,
        18,
        40,
        40,
        40,
    ]


def test_known_text_is_not_hashed_again() -> None:
    kv = KVManager(64, 4)
    first = kv.open(list(range(100)))
    assert kv.admit(first, 100)
    kv.commit(first, 100)
    hashed = []
    chain = kv.hasher.chain

    class Counting:
        first_parent = kv.hasher.first_parent

        def chain(self, tokens: np.ndarray, *args: object, **kwargs: object) -> list[bytes]:
            hashed.append(len(tokens))
            return chain(tokens, *args, **kwargs)  # type: ignore[arg-type]

    kv.hasher = Counting()  # type: ignore[assignment]
    kv.open([*range(100), 7, 8, 9])
    assert hashed == []
    kv.open([*range(100), 7, 8, 9, 10, 11])
    assert hashed == [4]
    kv.open([*range(50), 7, 8, 9])
    assert hashed == [4, 4]
