"""Which leaf of a radix tree goes first: the orders by which a leaf is evicted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from agentctx_engine.memory.radix_tree import RadixNode

EvictionOrder = Literal["lru", "lfu", "fifo", "priority", "slru"]

# The smallest key goes first. Every part only ever grows while a node lives: the tree's heap relies on it.
EvictionKey = tuple[int, int]

_PROTECTED_HITS = 2  # an "slru" node this often inserted is protected


def _least_recently_used(node: RadixNode) -> EvictionKey:
    return (0, node.last_used)


def _least_frequently_used(node: RadixNode) -> EvictionKey:
    return (node.hits, node.last_used)


def _first_in(node: RadixNode) -> EvictionKey:
    return (0, node.created)


def _lowest_priority(node: RadixNode) -> EvictionKey:
    return (node.priority, node.last_used)


def _segmented(node: RadixNode) -> EvictionKey:
    return (int(node.hits >= _PROTECTED_HITS), node.last_used)


_ORDERS: dict[str, Callable[[RadixNode], EvictionKey]] = {
    "lru": _least_recently_used,
    "lfu": _least_frequently_used,
    "fifo": _first_in,
    "priority": _lowest_priority,
    "slru": _segmented,
}


def eviction_key(order: EvictionOrder) -> Callable[[RadixNode], EvictionKey]:
    """The sort key of an order: least recently used, least frequently used, oldest, lowest priority, or segmented
    LRU (a node used twice outlives every node used once). Ties beyond the key fall to the node that became a leaf first.
    """
    if order not in _ORDERS:
        raise ValueError(f"unknown eviction order {order!r}; known: {', '.join(_ORDERS)}")
    return _ORDERS[order]
