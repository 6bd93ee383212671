"""Cache models by name: ``paged:16``, ``paged:block=16,capacity=4096``, ``radix:page=1``, ``slot``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agentctx.caches.prefix import PrefixCacheModel
from agentctx.errors import UsageError
from agentctx_engine.memory.paged_cache import PagedCache
from agentctx_engine.memory.radix_cache import RadixCache
from agentctx_engine.memory.slot_cache import SlotCache


@dataclass(frozen=True, slots=True)
class CacheKind:
    """A kind of cache, its options with their defaults, and the words that describe it in help texts."""

    name: str
    options: dict[str, int | None]
    shorthand: str | None
    about: str
    build: Callable[[str, dict[str, int | None]], PrefixCacheModel]


def _paged(spec: str, options: dict[str, int | None]) -> PrefixCacheModel:
    block = options["block"] or 16
    capacity = options["capacity"]
    # Without a limit nothing is ever evicted, and whole blocks found by hash chain are whole pages found in a tree:
    # the tree answers at memory speed. tests/caches proves the two equal.
    unlimited = RadixCache(page_size=block)
    if capacity is None:
        return PrefixCacheModel(spec, unlimited)
    return PrefixCacheModel(spec, PagedCache.of_size(capacity, block), unlimited=unlimited)


def _radix(spec: str, options: dict[str, int | None]) -> PrefixCacheModel:
    page = options["page"] or 1
    capacity = options["capacity"]
    if capacity is None:
        return PrefixCacheModel(spec, RadixCache(page_size=page))
    return PrefixCacheModel(
        spec, RadixCache(page_size=page, capacity_tokens=capacity), unlimited=RadixCache(page_size=page)
    )


def _slot(spec: str, options: dict[str, int | None]) -> PrefixCacheModel:
    return PrefixCacheModel(spec, SlotCache())


KINDS = (
    CacheKind(
        "paged", {"block": 16, "capacity": None}, "block",
        "whole blocks found by hash chain, LRU eviction (vLLM); capacity in blocks, unlimited by default", _paged,
    ),
    CacheKind(
        "radix", {"page": 1, "capacity": None}, "page",
        "radix tree over pages of tokens (SGLang); capacity in tokens, unlimited by default", _radix,
    ),
    CacheKind("slot", {}, None, "one slot: common prefix with the last prompt and its reply (llama-server -np 1)", _slot),
)  # fmt: skip


def parse_cache(spec: str) -> PrefixCacheModel:
    """A fresh cache model from its spec. Raises :class:`UsageError` that names the spec and what is allowed."""
    name, _, rest = spec.partition(":")
    kind = next((kind for kind in KINDS if kind.name == name), None)
    if kind is None:
        raise UsageError(f"unknown cache {spec!r}; choose one of {', '.join(kind.name for kind in KINDS)}")
    options = dict(kind.options)
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            key, value = kind.shorthand or "", key
        if key not in options or not value.isdigit() or int(value) < 1:
            allowed = ", ".join(f"{option}=N" for option in options) or "no options"
            raise UsageError(f"cache {spec!r}: can't read {part!r}; {kind.name} takes {allowed}")
        options[key] = int(value)
    return kind.build(spec, options)
