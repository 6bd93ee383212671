"""Example 8: a radix tree stores shared tokens once and finds a prefix token by token."""

from __future__ import annotations

from agentctx_engine.memory.radix_tree import Namespace, RadixTree
from agentctx_engine.memory.token_bytes import pack, unpack

PROMPTS = (
    [1, 2, 3, 4, 5, 6, 10, 11],
    [1, 2, 3, 4, 5, 6, 20, 21, 22],
    [1, 2, 3, 4, 5, 6, 10, 11, 30, 31],
)
everyone = Namespace()
tree = RadixTree()
for prompt in PROMPTS:
    tree.insert(pack(prompt), None, everyone)
print(f"{tree.num_tokens} stored entries for {sum(map(len, PROMPTS))} prompt tokens")

node, matched = tree.claim(pack([1, 2, 3, 4, 5, 6, 20, 21, 22, 40]), everyone)
tree.lock(node)
print(f"the match is {matched} tokens; its path is locked")
for leaf in tree.evict(1):
    print("evicted leaf:", unpack(leaf.key).tolist())
for left in tree.nodes():
    print("still stored:", unpack(left.key).tolist(), "locked" if left.locks else "free to evict")
tree.check()
