"""What a break costs: exact tokens under a target, seconds at a prefill rate, money by the price table."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from agentctx.caches.providers import provider_by_id, provider_for, providers
from agentctx.caches.registry import parse_cache
from agentctx.diagnosis import Exchange, Target, diagnose_log
from agentctx.diagnosis.views import view_of
from agentctx.diagnosis.wire import request_of
from agentctx.interchange import read_request
from agentctx.messages import Request
from agentctx.rendering.chatml import ChatMLRenderer
from agentctx.rendering.prompt import Prompt, TokenIds

from .healthy_sessions import WIRES, Session, make
from .mutations import CLIENT
from .server_mutations import grown, later, lost, observed, reported

MESSAGE_WIRES = tuple(wire for wire in WIRES if wire != "llama.completion")
RENDERER = ChatMLRenderer()
CHATML = Target("chatml", RENDERER)
EXACT = RENDERER.tokenizer.exact


class Served(ChatMLRenderer):
    """The layout of a server that runs just this vocabulary: its counts are exact."""

    def render(self, request: Request, previous: Prompt | None = None) -> Prompt:
        return replace(super().render(request, previous), exact=True)


def ids(session: Session, turn: int) -> TokenIds:
    """The turn's prompt, rendered afresh from the whole body."""
    return RENDERER.render(read_request(session.api, session.bodies[turn])).token_ids


def prefix(left: TokenIds, right: TokenIds) -> int:
    limit = min(len(left), len(right))
    apart = np.flatnonzero(left[:limit] != right[:limit])
    return int(apart[0]) if len(apart) else limit


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 10**6), kind=st.sampled_from(sorted(CLIENT)), api=st.sampled_from(MESSAGE_WIRES))
def test_tokens_of_every_turn_equal_a_count_from_scratch(seed: int, kind: str, api: str) -> None:
    """Whatever changes: lost tokens are those outside the longest common prefix of prompts rendered afresh."""
    mutate, apis = CLIENT[kind]
    wire = next(wire for wire in MESSAGE_WIRES if wire == api)
    case = mutate(random.Random(seed), make(seed, wire)) if wire in apis else None
    session, turn = (case[0], case[1].turn) if case is not None else (make(seed, wire), -1)
    diagnosis = diagnose_log(session.exchanges(), CHATML)
    prompts = [ids(session, number) for number in range(len(session.bodies))]
    truth = [len(a) - prefix(a, b) for a, b in pairwise(prompts)]
    (conversation,) = diagnosis.conversations
    assert conversation.tokens == sum(map(len, prompts))
    assert conversation.lost == sum(truth)
    for finding in diagnosis.findings:
        if finding.cause not in ("model_changed", "parameter_changed", "breakpoint_limit"):
            assert finding.turn == turn
            assert finding.loss.lost == truth[turn - 1] > 0
            assert finding.loss.exact is EXACT
    # A difference that changed no token is no finding here.
    if turn > 0 and truth[turn - 1] == 0:
        assert {f.cause for f in diagnosis.findings} <= {
            "model_changed",
            "parameter_changed",
            "breakpoint_limit",
        }


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, 10**6),
    api=st.sampled_from(MESSAGE_WIRES),
    shared=st.integers(0, 40),
    marked=st.booleans(),
)
def test_a_request_read_step_by_step_is_the_request_read_whole(
    seed: int, api: str, shared: int, marked: bool
) -> None:
    session = make(seed, next(wire for wire in MESSAGE_WIRES if wire == api))
    previous, known = None, 0
    for exchange in session.exchanges():
        view = view_of(exchange)
        length = min(shared, known)
        mapped = request_of(view, previous, length)
        whole = read_request(exchange.api, exchange.request)
        assert [
            (m.role, m.text, m.reasoning, m.tool_calls, m.tool_call_id) for m in mapped.request.messages
        ] == [(m.role, m.text, m.reasoning, m.tool_calls, m.tool_call_id) for m in whole.messages]
        assert mapped.request.tools == whole.tools
        assert len(mapped.origins) == len(mapped.request.messages)
        assert list(mapped.origins) == sorted(mapped.origins)
        previous, known = mapped, len(view.items)


def test_a_cache_model_says_what_blocks_leave() -> None:
    session = make(4, "openai.chat", turns=6)
    blocks = Target("vllm", RENDERER, cache=lambda: parse_cache("paged:16"))
    plain, paged = diagnose_log(session.exchanges(), CHATML), diagnose_log(session.exchanges(), blocks)
    assert plain.findings == paged.findings == []
    (smooth,), (rounded,) = plain.conversations, paged.conversations
    assert smooth.tokens == rounded.tokens
    assert smooth.reused is not None
    assert rounded.reused is not None
    turns = len(session.bodies) - 1
    assert rounded.reused % 16 == 0
    assert smooth.reused - 16 * turns <= rounded.reused < smooth.reused


def test_seconds_at_the_targets_rate() -> None:
    case = CLIENT["tool order"][0](random.Random(1), make(1, "openai.chat"))
    assert case is not None
    target = Target("chatml", RENDERER, prefill_rate=250.0)
    (finding,) = diagnose_log(case[0].exchanges(), target).findings
    assert finding.loss.again is not None
    assert finding.loss.seconds == pytest.approx(finding.loss.again / 250.0)


def test_seconds_at_the_rate_that_the_server_showed() -> None:
    session = make(2, "llama.completion")
    read = grown(session)[2] + 1
    (finding,) = diagnose_log(lost(session, 3, read).exchanges()).findings
    assert finding.cause == "retokenised"
    assert finding.loss.seconds == pytest.approx((finding.loss.again or 0) * 3.0 / 1000)


@pytest.mark.parametrize(("life", "ratio"), [(None, 1.25 - 0.1), ("1h", 2.0 - 0.1)])
def test_money_of_an_expired_entry(life: str | None, ratio: float) -> None:
    """What is written again costs the write price; reading it would have cost the read price."""
    session = make(5, "anthropic.messages")
    for body in session.bodies:
        for part in (body["system"][0], body["messages"][-1]["content"][-1]):
            part["cache_control"] = {"type": "ephemeral", **({"ttl": life} if life else {})}
    log = lost(later(session, 2, 4_000), 2, 0).exchanges()
    (finding,) = diagnose_log(log).findings
    assert finding.cause == "ttl_expired"
    assert finding.loss.exact
    assert finding.loss.usd == pytest.approx((finding.loss.again or 0) * 3.0 * ratio / 1e6)


def test_no_price_for_servers_of_ones_own() -> None:
    session = make(5, "openai.chat")
    session.hint = "vllm http://127.0.0.1:8000"
    (finding,) = diagnose_log(lost(session, 2, 0).exchanges()).findings
    assert finding.cause == "server_evicted"
    assert finding.loss.usd is None


def test_unknown_costs_stay_unknown() -> None:
    case = CLIENT["model"][0](random.Random(1), make(1, "openai.chat"))
    assert case is not None
    (finding,) = diagnose_log(case[0].exchanges()).findings
    assert finding.loss.exact is False
    assert finding.loss.seconds is None


def test_reuse_that_nothing_explains() -> None:
    """The server counts the same tokens as the target and reuses half of what the prompts share."""
    session = make(6, "openai.chat", turns=5)
    total = [len(ids(session, turn)) for turn in range(len(session.bodies))]
    shared = [0, *(prefix(ids(session, n), ids(session, n + 1)) for n in range(len(total) - 1))]
    healthy = [size // 16 * 16 for size in shared]
    target = Target("served", Served())
    assert diagnose_log(reported(session, healthy, total).exchanges(), target).clean
    slow = [*healthy[:3], healthy[3] - 300, *healthy[4:]]
    # Its rounding could take as much: only the tokens show that it didn't.
    session.hint = "vllm block_size 256"
    findings = diagnose_log(reported(session, slow, total).exchanges(), target).findings
    assert [(finding.cause, finding.turn) for finding in findings] == [("unexplained", 3)]
    assert findings[0].info.blame == "unknown"
    # A stand-in's count proves nothing.
    assert diagnose_log(reported(session, slow, total).exchanges(), CHATML).clean


def test_a_request_that_the_target_cant_render_is_noted() -> None:
    session = make(7, "openai.chat", turns=4)
    bodies: list[Any] = copy.deepcopy(session.bodies)
    for body in bodies[2:]:
        body["messages"][1]["role"] = "narrator"
    log = [Exchange("openai.chat", body, None, line=n + 1, file="x.jsonl") for n, body in enumerate(bodies)]
    diagnosis = diagnose_log(log, CHATML)
    assert diagnosis.notes
    assert diagnosis.notes[0].startswith("x.jsonl:3: not counted, the renderer chatml refused it:")
    assert "narrator" in diagnosis.notes[0]


# -- the data file ------------------------------------------------------------------------------------------------


def test_rules_and_prices_name_their_source_and_day() -> None:
    assert {provider.id for provider in providers()} >= {"anthropic", "openai", "google", "deepseek", "xai"}
    for provider in providers():
        assert provider.source.startswith("https://")
        assert provider.seen >= "2026-01-01"
        matches = [price.match for price in provider.prices]
        assert len(set(matches)) == len(matches)
        for price in provider.prices:
            assert price.source.startswith("https://")
            assert price.seen >= "2026-01-01"
            assert price.cache_read is not None
            assert 0 < price.cache_read < price.input
            assert all(write >= price.input for write in price.cache_write.values())
            assert provider.price(price.match) == price


@pytest.mark.parametrize(
    ("model", "endpoint", "provider", "minimum"),
    [
        ("claude-sonnet-4-5", None, "anthropic", 1024),
        ("claude-haiku-4-5-20251001", None, "anthropic", 4096),
        ("anthropic/claude-opus-4.5", "https://openrouter.ai/api", "anthropic", 4096),
        ("us.anthropic.claude-sonnet-5-5", None, "anthropic", 512),
        ("gpt-4.1-mini", None, "openai", 1024),
        ("my-deployment", "https://me.openai.azure.com/x", "openai", 1024),
        ("grok-4.20", None, "xai", 128),
        ("llama-3.3-70b-versatile", "https://api.groq.com/openai/v1", "groq", 1),
    ],
)
def test_the_provider_of_a_model(model: str, endpoint: str | None, provider: str, minimum: int) -> None:
    found = provider_for(model, endpoint)
    assert found is not None
    assert found.id == provider
    assert found.minimum_for(model) == minimum


def test_a_known_model_on_ones_own_server_has_no_provider() -> None:
    assert provider_for("gpt-oss-20b", "vllm http://127.0.0.1:8000") is None
    assert provider_for("qwen3-32b", None) is None
    assert provider_by_id("nobody") is None


def test_the_longest_name_gives_the_price() -> None:
    openai = provider_by_id("openai")
    assert openai is not None
    price, mini = openai.price("gpt-4.1-2025-04-14"), openai.price("gpt-4.1-mini-2025-04-14")
    assert price is not None
    assert mini is not None
    assert (price.match, mini.match) == ("gpt-4.1", "gpt-4.1-mini")
    assert mini.paid_again(1_000_000) == pytest.approx(0.4 - 0.1)


def test_observed_healthy_sessions_cost_nothing() -> None:
    for api in WIRES:
        assert diagnose_log(observed(make(9, api)).exchanges()).clean


def test_a_reply_that_comes_back_otherwise_costs_the_reply() -> None:
    """It was generated, so it lay in the cache: what the client stored instead is computed, at the reply's size."""
    session = make(19, "openai.chat", turns=4, reasoning=False)
    reply = session.replies[1]
    assert reply is not None
    said = reply["choices"][0]["message"]
    place = len(session.bodies[1]["messages"])
    for body in session.bodies[2:]:
        item = body["messages"][place]
        body["messages"][place] = {**item, "content": f"Assistant: {item.get('content') or ''}"}
    (finding,) = diagnose_log(session.exchanges()).findings
    chars = len(said.get("content") or "") + sum(
        len(call["function"]["name"] + call["function"]["arguments"]) for call in said.get("tool_calls") or ()
    )
    assert finding.turn == 2
    assert finding.loss.again == pytest.approx(chars / 4, abs=4)
    reply["usage"] = {"prompt_tokens": 2_000, "completion_tokens": 77}
    (finding,) = diagnose_log(session.exchanges()).findings
    assert (finding.loss.again, finding.loss.exact) == (77, False)
