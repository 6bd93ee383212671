"""Example 2: a block table says where each position of a sequence lives; any free block will do."""

from __future__ import annotations

from agentctx_engine.memory import BlockPool, BlockTable

BLOCK = 16

pool = BlockPool(12)
pool.allocate(12)
pool.free([3, 11, 5, 0, 4, 9, 2, 7])  # freed from the back: they queue in the opposite order
print("free queue:", pool.free_order())

tables = {
    name: BlockTable(BLOCK, pool.allocate(-(-tokens // BLOCK))) for name, tokens in (("A", 37), ("B", 20))
}
for name, table in tables.items():
    print(f"block table of {name}:", table.as_array().tolist())
for name, position in (("A", 0), ("A", 15), ("A", 16), ("A", 36), ("B", 19)):
    print(f"position {position:>2} of {name} is in slot {tables[name].slot(position)}")
print("free queue:", pool.free_order())
