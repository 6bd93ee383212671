"""Block hashes: extra keys that never meet, chains that go on where they stopped, the fast option's random seed."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentctx_engine.memory import Adapter, BlockHasher, ExtraKeys, ImageSpan, KVManager
from agentctx_engine.memory.block_hash import NO_KEYS

TOKENS = list(range(100, 140))


def chain_under(keys: ExtraKeys, tokens: list[int] = TOKENS, block_size: int = 8) -> list[bytes]:
    return BlockHasher().chain(
        tokens, block_size, every=keys.every_block(), single=keys.single_blocks(block_size, len(tokens))
    )


def test_the_first_parent() -> None:
    assert BlockHasher().first_parent == hashlib.sha256(b"NONE").digest()
    assert BlockHasher(seed=b"mine").first_parent == hashlib.sha256(b"mine").digest()
    assert BlockHasher(seed=b"mine").chain(TOKENS, 8) != BlockHasher().chain(TOKENS, 8)


def test_sha256_is_the_same_in_every_process_and_fast_in_none() -> None:
    script = (
        "from agentctx_engine.memory import BlockHasher\n"
        "for name in ('sha256', 'fast'): print(BlockHasher(name).chain(range(32), 16)[-1].hex())"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    ]
    assert runs[0][0] == runs[1][0] == BlockHasher().chain(range(32), 16)[-1].hex()
    assert runs[0][1] != runs[1][1]


def test_fast_digests_within_a_process() -> None:
    one, other = BlockHasher("fast"), BlockHasher("fast")
    assert one.chain(TOKENS, 8) == one.chain(TOKENS, 8)
    assert one.chain(TOKENS, 8) != other.chain(TOKENS, 8)
    assert {len(digest) for digest in one.chain(TOKENS, 8)} == {8}
    seeded = BlockHasher("fast", seed=b"mine")
    assert seeded.chain(TOKENS, 8) == BlockHasher("fast", seed=b"mine").chain(TOKENS, 8)


def test_an_unknown_algorithm_is_named() -> None:
    with pytest.raises(ValueError, match="unknown hash algorithm 'md5'; known are 'sha256' and 'fast'"):
        BlockHasher("md5")  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", ["sha256", "fast"])
@given(data=st.data())
def test_a_chain_goes_on_where_it_stopped(algorithm: str, data: st.DataObject) -> None:
    hasher = BlockHasher(algorithm)  # type: ignore[arg-type]
    tokens = data.draw(st.lists(st.integers(0, 2**31 - 1), max_size=60))
    size = data.draw(st.integers(1, 5))
    whole = hasher.chain(tokens, size)
    assert len(whole) == len(tokens) // size
    cut = data.draw(st.integers(0, len(whole)))
    rest = hasher.chain(tokens[cut * size :], size, parent=whole[cut - 1] if cut else None)
    assert whole[:cut] + rest == whole
    packed = np.array(tokens, dtype=np.int32)
    assert hasher.chain(packed, size) == whole


def test_a_long_chain_is_the_plain_one() -> None:
    """Longer than the stretch that is packed at a time."""
    tokens = np.arange(3 * 256 * 4 + 7, dtype=np.int32)
    digest, plain = hashlib.sha256(b"NONE").digest(), []
    for start in range(0, len(tokens) - 3, 4):
        data = b"".join(int(token).to_bytes(4, "big") for token in tokens[start : start + 4])
        digest = hashlib.sha256(digest + data).digest()
        plain.append(digest)
    assert BlockHasher().chain(tokens, 4) == plain
    salted = ExtraKeys(cache_salt="s")
    assert chain_under(salted, tokens.tolist(), 4)[-1] not in plain


def test_a_salt_enters_the_first_block_only() -> None:
    salted = ExtraKeys(cache_salt="s")
    assert (list(salted.single_blocks(8, 40)), salted.every_block()) == ([0], b"")
    first = chain_under(salted)[0]
    # From there on the chain carries it: the rest is hashed as without.
    assert chain_under(salted)[1:] == BlockHasher().chain(TOKENS[8:], 8, parent=first)


def test_an_adapter_enters_every_block() -> None:
    assert ExtraKeys(adapter=Adapter("a")).every_block()
    first = chain_under(ExtraKeys(adapter=Adapter("a")))[0]
    assert chain_under(ExtraKeys(adapter=Adapter("a")))[1:] != BlockHasher().chain(
        TOKENS[8:], 8, parent=first
    )


def test_kinds_of_keys_never_meet() -> None:
    """Equal strings in different places, and the same characters split differently, are different keys."""
    keys = [
        NO_KEYS,
        ExtraKeys(cache_salt=""),
        ExtraKeys(cache_salt="x"),
        ExtraKeys(cache_salt="xy"),
        ExtraKeys(adapter=Adapter("x")),
        ExtraKeys(adapter=Adapter("xy")),
        ExtraKeys(adapter=Adapter("x", "y")),
        ExtraKeys(adapter=Adapter("", "xy")),
        ExtraKeys(cache_salt="x", adapter=Adapter("x")),
        ExtraKeys(cache_salt="x", adapter=Adapter("xx")),
        ExtraKeys(images=(ImageSpan("x", 0, 8),)),
        ExtraKeys(images=(ImageSpan("x", 1, 8),)),
        ExtraKeys(images=(ImageSpan("x", 0, 4), ImageSpan("x", 4, 4))),
        ExtraKeys(cache_salt="x", images=(ImageSpan("x", 0, 8),)),
        ExtraKeys(adapter=Adapter("x"), images=(ImageSpan("x", 0, 8),)),
    ]
    firsts = [chain_under(key)[0] for key in keys]
    assert len(set(firsts)) == len(keys)


def test_images_count_where_they_are() -> None:
    """An image over blocks 1 and 2, relative to each: tokens 12 … 19 with blocks of 8."""
    keys = ExtraKeys(images=(ImageSpan("cat", 12, 8),))
    parts = keys.single_blocks(8, len(TOKENS))
    assert list(parts) == [1, 2]
    assert parts[1] != parts[2]  # offsets 4 and -4
    plain, seen = chain_under(NO_KEYS), chain_under(keys)
    assert seen[0] == plain[0]
    assert all(a != b for a, b in zip(seen[1:], plain[1:], strict=True))
    # An image that the text has not reached yet adds nothing.
    assert keys.single_blocks(8, 12) == {}
    assert list(keys.single_blocks(8, 13)) == [1]


def test_a_partly_filled_block_has_a_key_of_its_own() -> None:
    hasher = BlockHasher()
    parent = hasher.first_parent
    keys = {hasher.partial(parent, TOKENS[:count]) for count in range(1, 9)}
    assert len(keys) == 8
    assert hasher.chain(TOKENS[:8], 8)[0] not in keys


@pytest.mark.parametrize(
    "ids", [[-1, 2], [2**31], [1.5], [[1, 2]], np.array([2**40]), np.array([-3], dtype=np.int32)]
)
def test_what_is_no_token_id_is_refused(ids: object) -> None:
    with pytest.raises(ValueError, match="token ids"):
        KVManager(4, 4).open(ids)  # type: ignore[arg-type]


@given(data=st.data())
def test_appending_gives_the_hashes_of_the_whole_text(data: st.DataObject) -> None:
    keys = data.draw(
        st.builds(
            ExtraKeys,
            cache_salt=st.sampled_from([None, "s"]),
            adapter=st.sampled_from([None, Adapter("a")]),
            images=st.sampled_from([(), (ImageSpan("cat", 3, 9),)]),
        )
    )
    pieces = data.draw(st.lists(st.lists(st.integers(0, 9), max_size=9), min_size=1, max_size=6))
    kv = KVManager(4, 4)
    seq = kv.open(pieces[0], keys)
    for piece in pieces[1:]:
        seq.append(piece)
    text = [token for piece in pieces for token in piece]
    assert seq.tokens.tolist() == text
    assert seq.digests == chain_under(keys, text, 4)
