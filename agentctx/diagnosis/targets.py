"""Target: for which server a verdict is given. The same change may break one prompt and leave another as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agentctx.caches.model import CacheModel
from agentctx.caches.providers import Provider, provider_by_id, providers
from agentctx.errors import UsageError
from agentctx.rendering.prompt import Renderer


@dataclass(frozen=True, slots=True)
class Target:
    """What a difference has to reach to count.

    With a ``renderer`` the verdict is exact: a difference counts when it changes the tokens, and each turn's tokens
    are counted. ``cache`` makes a cache model for each conversation; without one a turn reuses the common prefix.
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


def parse_target(name: str) -> Target:
    """A target by name: ``as-sent``, a provider of the data file (``anthropic``, ``openai``, …), or the name of a
    renderer (``chatml``, a template file: see ``agentctx.rendering.load``).

    Raises ``UsageError`` for a name that is none of them.
    """
    if name in ("", "as-sent"):
        return AS_SENT
    provider = provider_by_id(name)
    if provider is not None:
        return Target(
            name=name, overlooks=_ANTHROPIC if name == "anthropic" else frozenset(), provider=provider
        )
    from agentctx.rendering.load import load_renderer

    try:
        return Target(name=name, renderer=load_renderer(name))
    except UsageError as error:
        known = ", ".join(entry.id for entry in providers())
        raise UsageError(
            f"unknown target {name!r}; known: as-sent, {known}, or a renderer ({error})"
        ) from None
