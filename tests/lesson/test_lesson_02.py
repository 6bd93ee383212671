"""Lesson example 2: block tables, and the slot of a token."""

from __future__ import annotations

from agentctx_engine.memory import BlockPool, BlockTable

BLOCK = 16
FREE_LIST = [7, 2, 9, 4, 0, 5, 11, 3]


def test_tables_slots_and_the_rest_of_the_free_list() -> None:
    pool = BlockPool(12)
    pool.allocate(12)
    # Blocks without a hash go to the front, the tail of a table first: freed backwards, they queue in this order.
    pool.free(FREE_LIST[::-1])
    assert pool.free_order() == FREE_LIST

    a = BlockTable(BLOCK, pool.allocate(-(-37 // BLOCK)))
    b = BlockTable(BLOCK, pool.allocate(-(-20 // BLOCK)))
    assert a.as_array().tolist() == [7, 2, 9]
    assert b.as_array().tolist() == [4, 0]
    assert [a.slot(position) for position in (0, 15, 16, 36)] == [112, 127, 32, 148]
    assert b.slot(19) == 3
    mapping = a.slot_mapping(0, 37)
    assert [mapping[position] for position in (0, 15, 16, 36)] == [112, 127, 32, 148]
    assert pool.free_order() == [5, 11, 3]
    pool.check([a.ids, b.ids, [1, 6, 8, 10]])
