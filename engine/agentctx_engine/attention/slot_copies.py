"""Keys and values of one sequence, out of the blocks of a layer and into them: between KV memory and anything else."""

from __future__ import annotations

from torch import Tensor

from agentctx_engine.attention.batch import IntArray
from agentctx_engine.attention.key_ranges import slot_index, stretches


def read_slots(cache: Tensor, table: IntArray, first: int, end: int) -> tuple[Tensor, Tensor]:
    """(keys, values) of positions ``first`` … ``end - 1``, each [tokens, kv_heads, head_dim], copied to the CPU."""
    slots = slot_index(stretches(table, cache.shape[2], first, end)).to(cache.device)
    keys, values = cache.flatten(1, 2).index_select(1, slots).cpu()
    return keys, values


def write_slots(cache: Tensor, table: IntArray, first: int, keys: Tensor, values: Tensor) -> None:
    """Write keys and values, each [tokens, kv_heads, head_dim], at the positions from ``first`` on."""
    if not len(keys):
        return
    parts = stretches(table, cache.shape[2], first, first + len(keys))
    flat, done = cache.flatten(1, 2), 0
    for start, end in parts:
        flat[0, start:end] = keys[done : done + end - start]
        flat[1, start:end] = values[done : done + end - start]
        done += end - start
