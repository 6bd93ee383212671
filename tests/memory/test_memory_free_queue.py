"""The free queue: literal orders, and random operations against a plain list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentctx_engine.memory import FreeQueue


def test_initialization() -> None:
    assert list(FreeQueue(0)) == []
    assert list(FreeQueue(1)) == [0]
    queue = FreeQueue(5)
    assert (list(queue), len(queue), queue.front()) == ([0, 1, 2, 3, 4], 5, 0)
    empty = FreeQueue(5, filled=False)
    assert (list(empty), len(empty), empty.front()) == ([], 0, None)


def test_operations() -> None:
    queue = FreeQueue(5)
    assert queue.pop_front(1) == [0]
    queue.remove([2])
    assert (list(queue), 2 in queue, 3 in queue) == ([1, 3, 4], False, True)
    queue.append([2])
    assert queue.pop_front(4) == [1, 3, 4, 2]
    assert len(queue) == 0
    with pytest.raises(IndexError, match="1 blocks asked of a queue of 0"):
        queue.pop_front(1)
    with pytest.raises(KeyError, match="block 3 is not in the free queue"):
        queue.remove([3])


def test_append_and_prepend_several() -> None:
    queue = FreeQueue(6)
    queue.pop_front(6)
    queue.append([])
    queue.append([4, 1])
    queue.append([0])
    assert list(queue) == [4, 1, 0]
    queue.prepend([])
    queue.prepend([3, 5])
    # A later prepend goes in front of an earlier one.
    queue.prepend([2])
    assert list(queue) == [2, 3, 5, 4, 1, 0]


def test_drain_and_refill() -> None:
    queue = FreeQueue(4)
    assert queue.pop_front(0) == []
    assert queue.pop_front(4) == [0, 1, 2, 3]
    queue.append([3, 1])
    assert queue.pop_front(2) == [3, 1]
    queue.prepend([0])
    assert (list(queue), len(queue)) == ([0], 1)


def test_a_block_is_queued_once() -> None:
    queue = FreeQueue(3)
    queue.pop_front(2)
    with pytest.raises(KeyError, match="block 1 is in the free queue already"):
        queue.append([0, 1, 1])
    # What came before the mistake is in, once, and the queue is whole.
    assert (list(queue), len(queue)) == ([2, 0, 1], 3)
    with pytest.raises(KeyError):
        queue.prepend([2])
    assert (list(queue), len(queue)) == ([2, 0, 1], 3)


@pytest.mark.parametrize("left", [[], [1], [1, 2]])
def test_grow_adds_at_the_front(left: list[int]) -> None:
    queue = FreeQueue(3)
    queue.pop_front(3)
    queue.append(left)
    queue.grow(6)
    assert list(queue) == [3, 4, 5, *left]
    assert queue.pop_front(3 + len(left)) == [3, 4, 5, *left]
    queue.append([5, 0])
    assert list(queue) == [5, 0]


@given(st.data())
def test_behaves_like_a_list(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 12))
    queue, plain = FreeQueue(size), list(range(size))
    for _ in range(data.draw(st.integers(1, 25))):
        out = [block for block in range(size) if block not in plain]
        what = data.draw(st.sampled_from(["pop", "remove", "append", "prepend", "grow"]))
        if what == "pop":
            count = data.draw(st.integers(0, len(plain)))
            assert queue.pop_front(count) == plain[:count]
            plain = plain[count:]
        elif what == "remove":
            # Runs as they stand, runs backwards (a freed table), and blocks from anywhere.
            blocks = data.draw(st.permutations(plain))[: data.draw(st.integers(0, len(plain)))]
            order = data.draw(st.sampled_from(["any", "forwards", "backwards"]))
            if order != "any":
                blocks = sorted(blocks, key=plain.index, reverse=order == "backwards")
            queue.remove(blocks)
            plain = [block for block in plain if block not in blocks]
        elif what == "grow":
            added = data.draw(st.integers(0, 3))
            queue.grow(size + added)
            plain = [*range(size, size + added), *plain]
            size += added
        else:
            blocks = data.draw(st.permutations(out))[: data.draw(st.integers(0, len(out)))]
            if what == "append":
                queue.append(blocks)
                plain = plain + blocks
            else:
                queue.prepend(blocks)
                plain = blocks + plain
        assert list(queue) == plain
        assert len(queue) == len(plain)
        assert [block in queue for block in range(size)] == [block in plain for block in range(size)]
