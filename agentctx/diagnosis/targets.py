"""Target: for which server a verdict is given. The same change may break one prompt and leave another as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agentctx.caches.providers import Provider, provider_by_id, providers
from agentctx.errors import UsageError

if TYPE_CHECKING:
    from agentctx.caches.model import CacheModel
    from agentctx.rendering.prompt import Renderer


@dataclass(frozen=True, slots=True)
class Target:
    """What a difference has to reach to count.

    With a ``renderer`` the verdict is exact: a difference counts when it changes the tokens, and each turn's tokens
    are counted. ``cache`` makes the cache model of the server, which all conversations of a log share; without one a
    turn reuses the common prefix with the turn before it.
    Without a renderer the verdict is about the body as sent; ``overlooks`` are the differences, as (cause, zone)
    with ``*`` for any zone, that this server is known not to see.
    ``prefill_rate`` (tokens per second) turns lost tokens into seconds, ``provider`` into money.
    """

    name: str = "as-sent"
    renderer: Renderer | None = None
    cache: Callable[[], CacheModel] | None = None
    overlooks: frozenset[tuple[str, str]] = frozenset()
    prefill_rate: float | None = None
    provider: Provider | None = None

    def overlooks_cause(self, word: str, zone: str) -> bool:
        """Whether this server doesn't see such a difference."""
        return (word, zone) in self.overlooks or (word, "*") in self.overlooks


AS_SENT = Target()
"""A server that renders everything as it was sent: the strictest reading, and the default."""

# Anthropic parses the request: the shape of a content and the key order of a schema don't reach the prompt (key order
# inside the arguments of calls does).
_ANTHROPIC = frozenset({("json_key_order", "tools"), ("content_shape", "*")})


def parse_target(
    name: str, *, tokenizer: str | None = None, cache: str | None = None, prefill_rate: float | None = None
) -> Target:
    """A target by name: ``as-sent``, a provider of the data file (``anthropic``, ``openai``, …), or the name of a
    renderer (``chatml``, a template file, a GGUF: see ``agentctx.rendering.load``), which a cache may follow:
    ``template.jinja@tokenizer.json+paged:16``.

    ``tokenizer`` and ``cache`` say the same apart (see ``agentctx.caches.registry`` for caches). ``prefill_rate``:
    tokens per second. Raises ``UsageError`` for a name that is none of them, and for a cache without a renderer.
    """
    spec, _, tail = name.rpartition("+")
    if spec and cache is None and _is_cache(tail):
        return parse_target(spec, tokenizer=tokenizer, cache=tail, prefill_rate=prefill_rate)
    target = _named(name, tokenizer)
    if cache is not None:
        target = _with_cache(target, name, cache)
    return replace(target, prefill_rate=prefill_rate) if prefill_rate is not None else target


def _is_cache(spec: str) -> bool:
    from agentctx.caches.registry import KINDS

    return spec.partition(":")[0] in {kind.name for kind in KINDS}


def _with_cache(target: Target, name: str, cache: str) -> Target:
    from agentctx.caches.registry import parse_cache, read_spec

    read_spec(cache)  # a wrong one is told before anything is read
    if target.renderer is None:
        raise UsageError(
            f"target {name!r} has no tokens for the cache {cache!r}; name a template or a layout"
        )
    return replace(target, name=f"{target.name}+{cache}", cache=lambda: parse_cache(cache))


def _named(name: str, tokenizer: str | None) -> Target:
    provider = provider_by_id(name)
    if tokenizer is None and name in ("", "as-sent"):
        return AS_SENT
    if tokenizer is None and provider is not None:
        return Target(
            name=name, overlooks=_ANTHROPIC if name == "anthropic" else frozenset(), provider=provider
        )
    from agentctx.rendering.load import is_path, load_renderer

    try:
        renderer = load_renderer(name, tokenizer=tokenizer)
    except UsageError as error:
        if is_path(name):
            raise UsageError(f"target {name!r}: {error}") from None
        known = ", ".join(entry.id for entry in providers())
        raise UsageError(
            f"unknown target {name!r}; known: as-sent, {known}, or a renderer ({error})"
        ) from None
    return Target(name=f"{name}@{tokenizer}" if tokenizer else name, renderer=renderer)
