"""Providers' cache rules and prices, read from ``data/providers.json``: each with its source and date."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelPrice:
    """List prices of a model in USD per million tokens. ``write`` maps an entry's life to its price."""

    match: str
    input: float
    cache_read: float | None
    cache_write: Mapping[str, float]
    minimum_tokens: int | None
    source: str
    seen: str

    def paid_again(self, tokens: int, life: str | None = None) -> float:
        """USD that ``tokens`` cost more when they are computed (and written) again instead of read from the cache."""
        write = self.cache_write.get(life or "", next(iter(self.cache_write.values()), self.input))
        read = self.input if self.cache_read is None else self.cache_read
        return max(0.0, write - read) * tokens / 1e6


@dataclass(frozen=True, slots=True)
class Provider:
    """How a provider caches prompts.

    ``step_tokens``: reads come in multiples of this. ``minimum_tokens``: shorter prefixes aren't cached.
    ``ttl_s`` maps the name of a life to seconds, ``ttl_default`` names the usual one; beyond ``ttl_certain_s`` an
    entry is surely gone. ``max_markers`` and ``lookback_blocks`` hold for providers with cache markers.
    ``hidden_tokens`` the provider keeps out of its count. ``exact``: its counts can be predicted to the token.
    """

    id: str
    hosts: tuple[str, ...]
    models: tuple[str, ...]
    source: str
    seen: str
    automatic: bool
    minimum_tokens: int
    step_tokens: int
    exact: bool
    max_markers: int | None = None
    lookback_blocks: int | None = None
    hidden_tokens: int = 0
    ttl_s: Mapping[str, float] = field(default_factory=dict)
    ttl_default: str | None = None
    ttl_certain_s: float | None = None
    order: tuple[str, ...] = ("tools", "system", "messages")
    prices: tuple[ModelPrice, ...] = ()

    def price(self, model: str | None) -> ModelPrice | None:
        """The price row whose ``match`` is the longest prefix of the model's name; None when unknown."""
        name = _bare(model)
        rows = [row for row in self.prices if name.startswith(row.match)]
        return max(rows, key=lambda row: len(row.match), default=None)

    def minimum_for(self, model: str | None) -> int:
        """Tokens below which nothing is cached for this model."""
        row = self.price(model)
        return self.minimum_tokens if row is None or row.minimum_tokens is None else row.minimum_tokens


def _bare(model: str | None) -> str:
    """A model's name in lower case, without the vendor that gateways put in front, dots of Claude versions as dashes."""
    name = (model or "").lower().rsplit("/", 1)[-1]
    if "claude" in name:
        name = name[name.index("claude") :].replace(".", "-")
    return name


@cache
def providers() -> tuple[Provider, ...]:
    """All providers of the data file."""
    text = (files("agentctx.caches") / "data" / "providers.json").read_text(encoding="utf-8")
    return tuple(_provider(entry) for entry in json.loads(text)["providers"])


def _provider(entry: Mapping[str, Any]) -> Provider:
    rules, prices = entry["rules"], entry["prices"]
    return Provider(
        id=entry["id"],
        hosts=tuple(entry["hosts"]),
        models=tuple(entry["models"]),
        source=rules["source"],
        seen=rules["seen"],
        automatic=rules["automatic"],
        minimum_tokens=rules["minimum_tokens"],
        step_tokens=rules["step_tokens"],
        exact=rules["exact"],
        max_markers=rules.get("max_markers"),
        lookback_blocks=rules.get("lookback_blocks"),
        hidden_tokens=rules.get("hidden_tokens", 0),
        ttl_s=rules.get("ttl_s", {}),
        ttl_default=rules.get("ttl_default"),
        ttl_certain_s=rules.get("ttl_certain_s"),
        order=tuple(rules.get("order", ("tools", "system", "messages"))),
        prices=tuple(
            ModelPrice(
                match=row["match"],
                input=row["input"],
                cache_read=row.get("cache_read"),
                cache_write=row.get("cache_write", {}),
                minimum_tokens=row.get("minimum_tokens"),
                source=prices["source"],
                seen=prices["seen"],
            )
            for row in prices["models"]
        ),
    )


def provider_by_id(name: str) -> Provider | None:
    """The provider of that id."""
    return next((provider for provider in providers() if provider.id == name), None)


def provider_for(model: str | None, endpoint: str | None = None) -> Provider | None:
    """The provider behind an endpoint or, where that is unknown, the one that usually serves the model.

    None for self-hosted and unknown ones.
    """
    where = (endpoint or "").lower()
    for provider in providers():
        if any(host in where for host in provider.hosts):
            return provider
    if _self_hosted(where):
        return None
    name = _bare(model)
    for provider in providers():
        if any(name.startswith(prefix) for prefix in provider.models):
            return provider
    return None


def _self_hosted(endpoint: str) -> bool:
    return any(
        word in endpoint
        for word in (
            "127.0.0.1",
            "localhost",
            "0.0.0.0",
            "vllm",
            "sglang",
            "llama-server",
            "llama.cpp",
            "ollama",
        )
    )
