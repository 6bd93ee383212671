"""Usage: what a provider or server said about one model call's tokens, in one shape.

Providers count differently: Anthropic's ``input_tokens`` leaves cached tokens out, OpenAI's includes them. Here
``prompt`` is always the whole prompt. What wasn't said is ``None``: unknown is not zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one model call. ``prompt`` = all prompt tokens; ``cached`` of them were read from a cache,
    ``written`` of them were written to one; ``output`` = generated tokens, ``reasoning`` of them thoughts.

    ``written_5m`` and ``written_1h`` split ``written`` by lifetime where writes are billed by it (Anthropic).
    """

    prompt: int | None = None
    cached: int | None = None
    written: int | None = None
    output: int | None = None
    written_5m: int | None = None
    written_1h: int | None = None
    reasoning: int | None = None


def _count(source: Mapping[str, Any], *keys: str) -> int | None:
    for key in keys:
        value = source.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
    return None


def _details(source: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        value = source.get(key)
        if isinstance(value, Mapping):
            return value
    return {}


def _sum(*counts: int | None) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def usage_from_openai(usage: Mapping[str, Any]) -> Usage:
    """From ``usage`` of OpenAI chat completions and Responses, and of servers that follow them."""
    details = _details(usage, "prompt_tokens_details", "input_tokens_details")
    lives = _details(details, "cache_creation_token_details")  # as LiteLLM passes Anthropic's on
    return Usage(
        prompt=_count(usage, "prompt_tokens", "input_tokens"),
        cached=_first_known(
            _count(details, "cached_tokens"),
            _count(usage, "cached_tokens", "cached_input_tokens", "prompt_cache_hit_tokens"),
        ),
        written=_first_known(
            _count(details, "cache_write_tokens", "cache_creation_tokens"),
            _count(usage, "cache_creation_input_tokens"),
        ),
        output=_count(usage, "completion_tokens", "output_tokens"),
        written_5m=_count(lives, "ephemeral_5m_input_tokens"),
        written_1h=_count(lives, "ephemeral_1h_input_tokens"),
        reasoning=_count(
            _details(usage, "completion_tokens_details", "output_tokens_details"), "reasoning_tokens"
        ),
    )


def usage_from_anthropic(usage: Mapping[str, Any]) -> Usage:
    """From ``usage`` of Anthropic messages, whose ``input_tokens`` count only what was neither read nor written."""
    cached = _count(usage, "cache_read_input_tokens")
    written = _count(usage, "cache_creation_input_tokens")
    plain = _count(usage, "input_tokens")
    return Usage(
        prompt=None if plain is None else _sum(plain, cached, written),
        cached=cached,
        written=written,
        output=_count(usage, "output_tokens"),
        written_5m=_count(_details(usage, "cache_creation"), "ephemeral_5m_input_tokens"),
        written_1h=_count(_details(usage, "cache_creation"), "ephemeral_1h_input_tokens"),
        reasoning=_count(_details(usage, "output_tokens_details"), "thinking_tokens"),
    )


def usage_from_llama(response: Mapping[str, Any]) -> Usage:
    """From a llama-server response: its ``timings``, or the older ``tokens_cached`` and ``tokens_evaluated``."""
    timings = _details(response, "timings")
    cached, fresh = _count(timings, "cache_n"), _count(timings, "prompt_n")
    if cached is not None and fresh is not None:
        return Usage(prompt=cached + fresh, cached=cached, output=_count(timings, "predicted_n"))
    return Usage(
        prompt=_count(response, "tokens_evaluated"),
        output=_first_known(_count(timings, "predicted_n"), _count(response, "tokens_predicted")),
    )


def _first_known(*counts: int | None) -> int | None:
    return next((count for count in counts if count is not None), None)


def usage_from_response(response: Mapping[str, Any]) -> Usage | None:
    """The usage that a response body of any known API carries, or ``None`` when it carries none."""
    usage = response.get("usage")
    if isinstance(usage, Mapping) and usage:
        if "cache_read_input_tokens" in usage and "prompt_tokens" not in usage:
            return usage_from_anthropic(usage)
        if response.get("type") == "message" or "stop_reason" in response:
            return usage_from_anthropic(usage)
        found = usage_from_openai(usage)
        if found.cached is None and "timings" in response:
            return replace(found, cached=usage_from_llama(response).cached)
        return found
    if "timings" in response or "tokens_evaluated" in response:
        return usage_from_llama(response)
    return None
