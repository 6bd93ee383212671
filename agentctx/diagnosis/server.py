"""Less reused than the request allowed: the causes that lie with the server, or with time.

The measure is the prefix that *this* request shares with the one before it, in the server's own token counts, never
a ratio of reads to input: a large new message lowers that ratio and is no fault.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from agentctx.caches.providers import Provider, provider_by_id, provider_for
from agentctx.diagnosis.breakpoints import Marker, blocks_since
from agentctx.diagnosis.breaks import Break
from agentctx.diagnosis.conversations import State
from agentctx.usage import Usage

Kind = Literal["anthropic", "provider", "llama", "vllm", "sglang", "unknown"]

_SLOTS = re.compile(r"(?:-np|--parallel|n_parallel|slots?)[\s=:]+(\d+)|(\d+)\s+slots?", re.IGNORECASE)
_BLOCK = re.compile(r"(?:block|page)[-_ ]?size[\s=:]*(\d+)|(\d+)[- ]token blocks?", re.IGNORECASE)
_WINDOW = re.compile(r"sliding|swa\b|\bwindow\b|hybrid|recurrent", re.IGNORECASE)
# Fewer shared tokens than this are not worth a finding: templates and rounding take as much.
_SMALL = 256


@dataclass(frozen=True, slots=True)
class Server:
    """What is known of the server: its kind, its provider's rules, and switches found in the endpoint hint."""

    kind: Kind
    provider: Provider | None = None
    slots: int | None = None
    block: int | None = None
    window: bool = False

    @property
    def name(self) -> str:
        return self.provider.id if self.provider is not None else self.kind


def server_of(api: str, model: str | None, hint: str | None, timings: bool) -> Server:
    """Identify the server behind a call. ``timings``: its response has llama-server's timings."""
    text = hint or ""
    low = text.lower()
    block = _number(_BLOCK, text)
    window = bool(_WINDOW.search(text))
    if timings or api == "llama.completion" or "llama-server" in low or "llama.cpp" in low:
        return Server("llama", slots=_number(_SLOTS, text), window=window)
    if "vllm" in low:
        return Server("vllm", block=block, window=window)
    if "sglang" in low:
        return Server("sglang", block=block, window=window)
    provider = provider_for(model, hint)
    if provider is not None and not provider.automatic:
        return Server("anthropic", provider=provider)  # also behind a gateway that speaks another API
    if api == "anthropic.messages" and provider is None:
        return Server("anthropic", provider=provider_by_id("anthropic"))
    return Server("provider" if provider is not None else "unknown", provider=provider, block=block)


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    if match is None:
        return None
    digits = next((group for group in match.groups() if group), None)
    return int(digits) if digits else None


@dataclass(frozen=True, slots=True)
class Arrived:
    """The request in question as the server saw it: what it reported, when, with which markers.

    ``carries_reply``: it goes on with the reply to the earlier request. ``rebuilt``: the body was put together from
    a recording, which leaves markers out.
    """

    usage: Usage
    at: float | None
    markers: list[Marker]
    model: str | None
    life: str | None = None
    carries_reply: bool = True
    rebuilt: bool = False


@dataclass(frozen=True, slots=True)
class Shortfall:
    """The server reused ``cached`` of ``allowed`` tokens. ``place`` where the prompt has to do with it."""

    word: str
    allowed: int
    cached: int
    place: str | None = None
    detail: str = ""
    estimated: bool = False


def shortfall(
    server: Server, before: State, arrived: Arrived, found: Break | None, share: float, others: int
) -> Shortfall | None:
    """What the server lost although the request allowed it; None when nothing is missing or nothing is known.

    ``found`` is the client's own break, or the place where the request turned off, and ``share`` the part of the earlier prompt that stands before it (1.0
    without one). ``others``: conversations that used this server in between.
    """
    cached, earlier = arrived.usage.cached, before.usage
    if cached is None or earlier is None or earlier.prompt is None:
        return None
    if server.kind == "anthropic" and not before.markers and not (arrived.rebuilt and _stored(earlier)):
        return None  # nothing was asked to be kept
    if found is not None:
        return _behind_a_break(server, before, arrived, found, share, others, cached, earlier.prompt)
    missing = _missing(server, before, earlier, arrived, cached, others)
    if missing is not None and arrived.rebuilt and missing.word in ("server_evicted", "template_made"):
        # What the client changed unseen would look the same: the recording doesn't tell.
        what = missing.detail or f"{missing.cached:,} of {missing.allowed:,} tokens reused"
        return replace(missing, word="unexplained", detail=what)
    return missing


def _missing(
    server: Server, before: State, earlier: Usage, arrived: Arrived, cached: int, others: int
) -> Shortfall | None:
    """What is missing of a prompt that the request only added to."""
    prompt = earlier.prompt or 0
    if arrived.usage.prompt is not None and prompt - arrived.usage.prompt > _SHRUNK:
        return _taken_out(prompt, arrived.usage.prompt, cached)
    if server.kind == "llama":
        return _llama(server, before, earlier, arrived, cached, others)
    if server.kind == "anthropic":
        return _anthropic(server, before, earlier, arrived, cached)
    return _automatic(server, before, prompt, arrived, cached)


_SHRUNK = 32  # tokens by which a prompt that was only added to doesn't become shorter by itself


def _stored(earlier: Usage) -> int:
    """Tokens that a provider with markers had in its cache after a request."""
    return (earlier.cached or 0) + (earlier.written or 0)


def _taken_out(before: int, now: int, cached: int) -> Shortfall | None:
    """The request only grew and its prompt shrank: the server's template left out what it had shown before."""
    if cached >= now - _SMALL:
        return None
    detail = f"the request only grew, its prompt shrank from {before:,} to {now:,} tokens; {cached:,} reused"
    return Shortfall("template_made", now, cached, detail=detail, estimated=True)


# Tokens at a reply's end that a template may render otherwise without anyone's fault (end of turn, line end).
_REPLY_SLACK = 4


def _llama(
    server: Server, before: State, earlier: Usage, arrived: Arrived, cached: int, others: int
) -> Shortfall | None:
    prompt = earlier.prompt or 0
    allowed = prompt + (max(0, (earlier.output or 0) - 1) if arrived.carries_reply else 0)
    if arrived.usage.prompt is not None:
        allowed = min(allowed, arrived.usage.prompt - 1)  # the last token is always computed
    missing = allowed - cached
    if cached >= prompt - 8:
        answered = before.reference is not None and bool(before.reference.choices)
        if missing > _REPLY_SLACK and arrived.carries_reply and answered:
            left_out = _reply_left_out(prompt, earlier.output or 0, arrived.usage.prompt, cached)
            if left_out is not None:
                return left_out
        # Reuse reached the reply: what is missing is the end of one reply, encoded otherwise.
        return Shortfall("retokenised", allowed, cached) if missing > _REPLY_SLACK else None
    if missing <= max(16, allowed // 50):
        return None
    if others:
        slots = f"{server.slots} slots" if server.slots else "its slots"
        return Shortfall("slot_taken", allowed, cached, detail=f"{others} other conversations used {slots}")
    return Shortfall("server_evicted", allowed, cached)


def _reply_left_out(before: int, reply: int, now: int | None, cached: int) -> Shortfall | None:
    """The request goes on with the reply, its prompt is too short for it: the template left some of it out again."""
    if now is None or now >= before + reply - _REPLY_SLACK:
        return None
    detail = (
        f"{before:,} tokens and a reply of {reply:,} became a prompt of {now:,}: the reply isn't all in it; "
        f"{cached:,} reused"
    )
    return Shortfall("template_made", now - 1, cached, detail=detail, estimated=True)


def _anthropic(
    server: Server, before: State, earlier: Usage, arrived: Arrived, cached: int
) -> Shortfall | None:
    provider = server.provider
    stored = _stored(earlier)
    prompt = earlier.prompt or 0
    if not arrived.markers and not arrived.rebuilt:
        if stored and cached < stored // 2:
            place = before.markers[-1].path
            return Shortfall("breakpoint_misplaced", stored, cached, place, "this request has no marker")
        return None
    minimum = provider.minimum_for(arrived.model) if provider is not None else 1024
    if stored == 0:
        small = cached == 0 and _SMALL < prompt < minimum
        return Shortfall("below_minimum", prompt, cached, detail=f"minimum {minimum}") if small else None
    if stored - cached <= max(32, stored // 50):
        return None
    lives = [_life(provider, marker.life) for marker in before.markers]
    if not lives:
        lives = [_life(provider, "1h" if earlier.written_1h and not earlier.written_5m else None)]
    gap = None if arrived.at is None or before.at is None else arrived.at - before.at
    shortest = min((life for life in lives if life is not None), default=None)
    if gap is not None and shortest is not None and gap > shortest:
        return Shortfall("ttl_expired", stored, cached, detail=f"{gap:.0f} s passed, life {shortest:.0f} s")
    blocks = blocks_since(before.markers, arrived.markers)
    reach = provider.lookback_blocks if provider is not None else 20
    if blocks is not None and reach is not None and blocks > reach:
        place = arrived.markers[-1].path
        return Shortfall(
            "breakpoint_lookback", stored, cached, place, f"{blocks} blocks since the last marker"
        )
    return Shortfall("server_evicted", stored, cached)


def _life(provider: Provider | None, name: str | None) -> float | None:
    if provider is None:
        return None
    return provider.ttl_s.get(name or provider.ttl_default or "")


def longest_life(server: Server, markers: list[Marker], asked: str | None) -> float | None:
    """Seconds after which what a request left with its provider is surely gone; None where that isn't known."""
    provider = server.provider
    if provider is None:
        return None
    if server.kind == "anthropic":
        lives = [_life(provider, marker.life) for marker in markers]
        return max((life for life in lives if life is not None), default=None)
    return _life(provider, asked) if asked else provider.ttl_certain_s


def _automatic(server: Server, before: State, prompt: int, arrived: Arrived, cached: int) -> Shortfall | None:
    """Servers that cache by themselves: hosted ones, vLLM, SGLang, unknown ones."""
    step, minimum, hidden = _grain(server, arrived.model)
    # What rules and rounding leave of the shared prompt, and a tenth for what templates render otherwise.
    expected = prompt // step * step - hidden if prompt >= minimum else 0
    if expected - cached > max(2 * step, _SMALL, expected // 10):
        return _why_lost(server, before, arrived, expected, cached)
    if expected <= 0 and cached == 0 and 0.8 * prompt > _SMALL and prompt < minimum:
        return Shortfall("below_minimum", prompt, cached, detail=f"minimum {minimum}")
    return None


def _grain(server: Server, model: str | None) -> tuple[int, int, int]:
    """(step, minimum, tokens the provider hides) of a server that caches by itself."""
    if server.provider is not None:
        provider = server.provider
        return provider.step_tokens, provider.minimum_for(model), provider.hidden_tokens
    if server.block is not None:
        return server.block, server.block, 0
    return (16, 16, 0) if server.kind in ("vllm", "sglang") else (128, 128, 128)


def _why_lost(server: Server, before: State, arrived: Arrived, expected: int, cached: int) -> Shortfall:
    provider = server.provider
    gap = None if arrived.at is None or before.at is None else arrived.at - before.at
    if provider is not None and gap is not None:
        life = _life(provider, arrived.life)
        if life is not None and gap > life:
            return Shortfall("ttl_expired", expected, cached, detail=f"{gap:.0f} s passed, life {life:.0f} s")
    if provider is None and cached == 0 and before.reads == 0 and expected < 1024:
        return Shortfall(
            "below_minimum", expected, cached, detail="nothing was ever reused below 1,024 tokens"
        )
    return Shortfall("server_evicted", expected, cached)


def _behind_a_break(
    server: Server,
    before: State,
    arrived: Arrived,
    found: Break,
    share: float,
    others: int,
    cached: int,
    prompt: int,
) -> Shortfall | None:
    """The client changed something; did the server lose far more than that?"""
    if server.kind == "anthropic" or found.zone in ("model", "params", "tools"):
        # What is read there depends on markers; what other parameters cost isn't known, nor where tools are printed.
        return None
    if found.word == "branch" and server.kind != "llama":
        return None  # going back there on purpose: hosted caches keep what they like of it
    allowed = int(prompt * share)
    if allowed - cached <= max(_SMALL, allowed // 2) or allowed - cached <= prompt - allowed:
        return None
    if server.kind == "llama":
        word = "slot_taken" if others else "sliding_window"
    elif server.window:
        word = "sliding_window"
    else:
        word = _why_lost(server, before, arrived, allowed, cached).word
    return Shortfall(word, allowed, cached, found.place, estimated=True)


def disproved(before: State, usage: Usage | None, found: Break, share: float) -> bool:
    """Whether the server's own count shows that a difference cost nothing: it reused the earlier prompt behind it, too."""
    if found.returned or usage is None or usage.cached is None:
        return False
    if before.usage is None or before.usage.prompt is None or before.usage.prompt < 128:
        return False
    prompt = before.usage.prompt
    missing, behind = prompt - usage.cached, (1 - share) * prompt
    if missing <= 0:
        return (
            behind >= 16
        )  # all of it was reused: wherever the difference lies, it doesn't reach this prompt
    # Rounding may take a little; what stands behind the difference must be clearly more than that.
    return missing <= 0.03 * prompt + 32 and behind > max(64, 2 * missing)


def asked_life(body: Mapping[str, Any]) -> str | None:
    """The life that a request asks an automatic provider for."""
    options = body.get("prompt_cache_options")
    life = options.get("ttl") if isinstance(options, Mapping) else body.get("prompt_cache_retention")
    return life if isinstance(life, str) else None
