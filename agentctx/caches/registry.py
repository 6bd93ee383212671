"""Cache models by name: ``paged:16``, ``paged:block=16,capacity=4096``, ``radix:page=1``, ``slot``, ``llama-server:slots=1,ram=0``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agentctx.caches.llama_server import LlamaServerModel
from agentctx.caches.model import CacheModel
from agentctx.caches.prefix import PrefixCacheModel
from agentctx.caches.provider_cache import provider_cache
from agentctx.caches.providers import Provider, provider_by_id, providers
from agentctx.errors import UsageError
from agentctx_engine.memory.paged_cache import PagedCache
from agentctx_engine.memory.radix_cache import RadixCache
from agentctx_engine.memory.slot_cache import SlotCache
from agentctx_engine.memory.slot_settings import ModelMemory, ServerSettings
from agentctx_engine.memory.unlimited_cache import UnlimitedCache

Number = int | float | None


@dataclass(frozen=True, slots=True)
class Option:
    """A number that a spec may set. ``default``: ``None`` for none; ``least`` and ``most`` are allowed themselves.

    ``whole``: no fractions.
    """

    default: Number = None
    least: int = 1
    most: int | None = None
    whole: bool = True

    def read(self, text: str) -> Number:
        """The value, or ``None`` for a text that is none."""
        try:
            value = int(text) if self.whole else float(text)
        except ValueError:
            return None
        return value if value >= self.least and (self.most is None or value <= self.most) else None


@dataclass(frozen=True, slots=True)
class CacheKind:
    """A kind of cache, its options, and the words that describe it in help texts. ``shorthand``: the option of a bare number."""

    name: str
    options: Mapping[str, Option]
    shorthand: str | None
    about: str
    build: Callable[[str, Mapping[str, Number]], CacheModel]

    @property
    def usage(self) -> str:
        """Name and options with their defaults, as they are typed."""
        given = (f"{name}={_shown(option)}" for name, option in self.options.items())
        return ":".join(filter(None, (self.name, ",".join(given))))


def _shown(option: Option) -> str:
    return "N" if option.default is None else str(option.default)


def _paged(spec: str, options: Mapping[str, Number]) -> PrefixCacheModel:
    block, capacity = int(options["block"] or 16), options["capacity"]
    # Without a limit nothing is ever evicted, and whole blocks found by hash chain are whole blocks of a common prefix:
    # comparing texts answers at memory speed. tests/caches proves the two equal.
    unlimited = UnlimitedCache(block)
    if capacity is None:
        return PrefixCacheModel(spec, unlimited)
    return PrefixCacheModel(spec, PagedCache.of_size(int(capacity), block), unlimited=unlimited)


def _radix(spec: str, options: Mapping[str, Number]) -> PrefixCacheModel:
    page, capacity = int(options["page"] or 1), options["capacity"]
    if capacity is None:
        return PrefixCacheModel(spec, UnlimitedCache(page))
    return PrefixCacheModel(
        spec, RadixCache(page_size=page, capacity_tokens=int(capacity)), unlimited=UnlimitedCache(page)
    )


def _slot(spec: str, options: Mapping[str, Number]) -> PrefixCacheModel:
    return PrefixCacheModel(spec, SlotCache(), unlimited=UnlimitedCache())


# The server's own defaults, but for the context, which it takes from the model: here it is as good as unlimited.
_LLAMA_SERVER = {
    "slots": Option(),
    "unified": Option(None, 0, 1),
    "ctx": Option(1 << 20),
    "batch": Option(2048),
    "ubatch": Option(512),
    "ram": Option(8192, -1),
    "idle": Option(1, 0, 1),
    "similarity": Option(0.1, 0, 1, whole=False),
    "reuse": Option(0, 0),
    "checkpoints": Option(32, 0),
    "step": Option(8192, 0),
    "swa_full": Option(0, 0, 1),
    "window": Option(0, 0),
    "recurrent": Option(0, 0, 1),
}


def _llama_server(spec: str, options: Mapping[str, Number]) -> LlamaServerModel:
    number = {name: int(value or 0) for name, value in options.items()}
    # Where -np isn't given, the server takes four slots that share their cells.
    slots, unified = options["slots"], options["unified"]
    settings = ServerSettings(
        n_slots=4 if slots is None else int(slots),
        kv_unified=slots is None if unified is None else bool(unified),
        n_ctx=number["ctx"],
        n_batch=number["batch"],
        n_ubatch=number["ubatch"],
        cache_reuse=number["reuse"],
        slot_prompt_similarity=float(options["similarity"] or 0),
        cache_ram_mib=number["ram"],
        cache_idle_slots=bool(number["idle"]),
        ctx_checkpoints=number["checkpoints"],
        checkpoint_min_step=number["step"],
        swa_full=bool(number["swa_full"]),
    )
    if number["window"] and number["recurrent"]:
        raise UsageError(f"cache {spec!r}: a model with both a window and recurrent layers is not covered")
    memory = ModelMemory(window=number["window"], recurrent=bool(number["recurrent"]))
    return LlamaServerModel(settings, memory, name=spec)


KINDS = (
    CacheKind(
        "paged", {"block": Option(16), "capacity": Option()}, "block",
        "whole blocks found by hash chain, LRU eviction (vLLM); capacity in blocks, unlimited by default", _paged,
    ),
    CacheKind(
        "radix", {"page": Option(1), "capacity": Option()}, "page",
        "radix tree over pages of tokens (SGLang); capacity in tokens, unlimited by default", _radix,
    ),
    CacheKind("slot", {}, None, "one slot: common prefix with the last prompt and its reply (llama-server -np 1)", _slot),
    CacheKind(
        "llama-server", _LLAMA_SERVER, "slots",
        "llama-server's slots by its switches (-np, -kvu, -c, -b, -ub, --cache-ram, …) and its model's memory; docs/caches.md",
        _llama_server,
    ),
)  # fmt: skip


def _hosted(provider: Provider, spec: str) -> CacheModel:
    model, _, further = spec.partition(":")[2].partition(",")
    key, _, life = further.partition("=")
    if further and (key != "life" or life not in provider.ttl_s or not provider.automatic):
        lives = ", ".join(provider.ttl_s) if provider.automatic else ""
        allowed = f"life=NAME ({lives})" if lives else "no further option"
        raise UsageError(f"cache {spec!r}: can't read {further!r}; {provider.id} takes {allowed}")
    return provider_cache(provider, model or None, life or None, spec)


def parse_cache(spec: str) -> CacheModel:
    """A fresh cache model from its spec: ``KIND``, ``KIND:N`` or ``KIND:option=N,…`` for the kinds of ``KINDS``, and
    ``PROVIDER[:MODEL[,life=NAME]]`` for a provider of the data file (``anthropic:claude-opus-4-5``, ``openai:gpt-5.1,life=24h``,
    ``deepseek``).

    Raises :class:`UsageError` that names the spec and what is allowed.
    """
    provider = provider_by_id(spec.partition(":")[0])
    if provider is not None:
        return _hosted(provider, spec)
    kind, options = read_spec(spec)
    return kind.build(spec, options)


def read_spec(spec: str) -> tuple[CacheKind, Mapping[str, Number]]:
    """The kind that a spec names, and all of its options. Raises :class:`UsageError`."""
    name, _, rest = spec.partition(":")
    kind = next((kind for kind in KINDS if kind.name == name), None)
    if kind is None:
        known = ", ".join([*(kind.name for kind in KINDS), *(provider.id for provider in providers())])
        raise UsageError(f"unknown cache {spec!r}; choose one of {known}")
    chosen = {key: option.default for key, option in kind.options.items()}
    for part in filter(None, rest.split(",")):
        key, equals, text = part.partition("=")
        if not equals:
            key, text = kind.shorthand or "", key
        value = kind.options[key].read(text) if key in kind.options else None
        if value is None:
            allowed = ", ".join(f"{option}=N" for option in kind.options) or "no options"
            raise UsageError(f"cache {spec!r}: can't read {part!r}; {kind.name} takes {allowed}")
        chosen[key] = value
    return kind, chosen
