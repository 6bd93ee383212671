"""Lesson 8: a radix tree that splits runs, locks the path of a running request and evicts a leaf."""

from __future__ import annotations

from agentctx_engine.memory.radix_tree import Namespace, RadixNode, RadixTree
from agentctx_engine.memory.token_bytes import pack, unpack

EVERYONE = Namespace()
PROMPTS = (
    [1, 2, 3, 4, 5, 6, 10, 11],
    [1, 2, 3, 4, 5, 6, 20, 21, 22],
    [1, 2, 3, 4, 5, 6, 10, 11, 30, 31],
)


def runs(tree: RadixTree) -> dict[tuple[int, ...], int]:
    """Each run of tokens with its locks."""
    return {tuple(unpack(node.key).tolist()): node.locks for node in tree.nodes()}


def tokens(node: RadixNode) -> list[int]:
    return unpack(node.key).tolist()


def test_figures_of_the_lesson() -> None:
    tree = RadixTree()
    for prompt in PROMPTS:
        tree.insert(pack(prompt), None, EVERYONE)
    assert sum(len(prompt) for prompt in PROMPTS) == 27
    assert tree.num_tokens == 13

    node, matched = tree.claim(pack([1, 2, 3, 4, 5, 6, 20, 21, 22, 40]), EVERYONE)
    assert matched == 9
    assert tokens(node) == [20, 21, 22]

    tree.lock(node)
    assert tree.protected_tokens == 9
    (evicted,) = tree.evict(1)
    assert tokens(evicted) == [30, 31]
    assert runs(tree) == {(1, 2, 3, 4, 5, 6): 1, (10, 11): 0, (20, 21, 22): 1}
    assert tree.num_tokens == 11
    tree.check()
