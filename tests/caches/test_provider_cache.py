"""Hosted caches: the rules one by one, and what real providers reported on recorded sessions."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agentctx.backends.anthropic import AnthropicMessages
from agentctx.backends.backend import Completion, Options
from agentctx.backends.openai_chat import OpenAIChat
from agentctx.caches.marked_blocks import block_ends, marks_by_rule
from agentctx.caches.model import Arrival, CacheModel
from agentctx.caches.providers import provider_by_id, providers
from agentctx.caches.registry import parse_cache
from agentctx.diagnosis import exchange_of
from agentctx.diagnosis.breakpoints import markers_of
from agentctx.diagnosis.views import view_of
from agentctx.errors import UsageError
from agentctx.history import History
from agentctx.messages import Message, Params, Tool, ToolCall
from agentctx.rendering import load_renderer
from agentctx.rendering.prompt import TokenIds
from agentctx.session import SessionParts
from agentctx.usage import Usage, usage_from_response

NONE = np.zeros(0, np.int32)


def text(tokens: int, *, changed: int | None = None) -> TokenIds:
    """A text of so many tokens; two of them share a prefix as long as the shorter, up to what is changed."""
    ids = np.arange(1, tokens + 1, dtype=np.int32)
    if changed is not None:
        ids[changed] = 0
    return ids


def marked(
    *ends: int, blocks: tuple[int, ...] = (), at: float | None = None, life: str | None = None
) -> Arrival:
    return Arrival(at=at, blocks=tuple(sorted({*ends, *blocks})), markers=tuple((end, life) for end in ends))


def reused(cache: CacheModel, ids: TokenIds, arrival: Arrival) -> int:
    """What is read, and then written, by one request; every token has its reason."""
    predicted = cache.predict(ids, arrival)
    assert predicted.cached + sum(tokens for _, tokens in predicted.lost) == len(ids)
    assert predicted.cached <= cache.without_limits(ids, arrival)
    assert cache.commit(ids, NONE, arrival) == predicted
    return predicted.cached


class TestAnthropic:
    def test_an_entry_is_read_where_it_was_written(self) -> None:
        cache = parse_cache("anthropic:claude-sonnet-4-5")
        assert reused(cache, text(3000), marked(2000, 3000)) == 0
        assert reused(cache, text(4000), marked(3000, 4000)) == 3000
        assert reused(cache, text(4000, changed=2500), marked(2000, 4000)) == 2000
        assert reused(cache, text(4000, changed=1500), marked(2000, 4000)) == 0

    def test_without_markers_nothing_is_kept_or_read(self) -> None:
        cache = parse_cache("anthropic:claude-sonnet-4-5")
        assert reused(cache, text(3000), Arrival(blocks=(3000,))) == 0
        assert reused(cache, text(3000), marked(3000)) == 0
        assert reused(cache, text(3000), Arrival(blocks=(3000,))) == 0
        assert reused(cache, text(3000), marked(3000)) == 3000

    def test_a_caller_that_knows_no_blocks(self) -> None:
        """Then the prompt counts as marked at its end."""
        cache = parse_cache("anthropic:claude-sonnet-4-5")
        for tokens, cached in ((2000, 0), (2500, 2000), (3000, 2500)):
            assert reused(cache, text(tokens), Arrival()) == cached
        assert reused(cache, text(3000, changed=2700), Arrival()) == 2500

    @pytest.mark.parametrize(("between", "cached"), [(18, 2000), (19, 0), (30, 0)])
    def test_the_look_back_is_twenty_blocks_with_the_marked_one(self, between: int, cached: int) -> None:
        cache = parse_cache("anthropic:claude-sonnet-4-5")
        reused(cache, text(2000), marked(2000))
        blocks = tuple(2000 + 10 * (step + 1) for step in range(between))
        assert reused(cache, text(3000), marked(3000, blocks=(2000, *blocks))) == cached

    def test_a_second_marker_bridges_a_long_turn(self) -> None:
        cache = parse_cache("anthropic:claude-sonnet-4-5")
        reused(cache, text(2000), marked(2000))
        blocks = tuple(2000 + 10 * (step + 1) for step in range(40))
        assert reused(cache, text(3000), marked(2000, 3000, blocks=blocks)) == 2000

    @pytest.mark.parametrize(
        ("model", "minimum"),
        [("claude-sonnet-4-5", 1024), ("claude-opus-4-5", 4096), ("claude-haiku-4-5-20251001", 4096), ("anthropic/claude-opus-5", 512)],
    )  # fmt: skip
    def test_the_minimum_is_the_models(self, model: str, minimum: int) -> None:
        cache = parse_cache(f"anthropic:{model}")
        for tokens in (minimum - 1, minimum):
            reused(cache, text(tokens), marked(tokens))
        assert reused(cache, text(minimum - 1), marked(minimum - 1)) == 0
        assert reused(cache, text(minimum), marked(minimum)) == minimum

    def test_a_life_is_renewed_by_reading_and_ends(self) -> None:
        cache = parse_cache("anthropic:claude-sonnet-4-5")
        for at, cached in ((0, 0), (299, 2000), (598, 2000), (899, 0)):
            assert reused(cache, text(2000), marked(2000, at=at)) == cached
        assert dict(cache.predict(text(2000), marked(2000, at=1300)).lost)["expired"] == 2000

    def test_an_hour_lives_an_hour_beside_five_minutes(self) -> None:
        cache = parse_cache("anthropic:claude-sonnet-4-5")
        mixed = Arrival(at=0, blocks=(2000, 3000), markers=((2000, "1h"), (3000, "5m")))
        assert reused(cache, text(3000), mixed) == 0
        assert reused(cache, text(3000), replace(mixed, at=3000)) == 2000

    def test_only_four_markers_count(self) -> None:
        cache = parse_cache("anthropic:claude-sonnet-4-5")
        ends = (1100, 1200, 1300, 1400, 1500)
        reused(cache, text(1500), marked(*ends))
        assert reused(cache, text(1500), marked(1500, blocks=(1400,))) == 1400

    def test_what_stands_in_front_takes_what_is_behind_along(self) -> None:
        """Tools before system before messages: the order of the rendering is the order of invalidation."""
        renderer = load_renderer("anthropic")
        words = "word " * 1500

        def conversation(tool: str = "Read.", system: str = "You fix bugs.") -> History:
            history = History(system + words, [Tool.of("read", tool + words)])
            history.user("Why? " + words)
            return history

        cache = parse_cache("anthropic:claude-sonnet-4-5")
        ends = []
        for history, kept in (
            (conversation(), None),
            (conversation(), "all"),
            (conversation(system="You write. "), "tools"),
            (conversation(tool="Write. "), "nothing"),
        ):
            prompt = renderer.render(history.request())
            arrival = Arrival(blocks=block_ends(prompt), markers=marks_by_rule(prompt))
            ends = [end for end, _ in arrival.markers]
            assert len(ends) == 3
            cached = reused(cache, prompt.token_ids, arrival)
            assert cached == {None: 0, "all": ends[2], "tools": ends[0], "nothing": 0}[kept]


class TestOthers:
    def test_openai_counts_steps_above_its_minimum(self) -> None:
        cache = parse_cache("openai:gpt-5.1")
        rules = provider_by_id("openai")
        assert rules is not None
        reused(cache, text(1023), Arrival())
        assert reused(cache, text(1023), Arrival()) == 0
        reused(cache, text(3000), Arrival())
        cached = reused(cache, text(3000), Arrival())
        assert cached == 2999 // 128 * 128 - rules.hidden_tokens
        assert reused(cache, text(3000, changed=1500), Arrival()) == 1500 // 128 * 128 - rules.hidden_tokens

    def test_retention(self) -> None:
        short, long = parse_cache("openai:gpt-5.1"), parse_cache("openai:gpt-5.1,life=24h")
        for cache in (short, long):
            reused(cache, text(3000), Arrival(at=0))
        late = Arrival(at=3600 * 5)
        assert short.predict(text(3000), late).cached == 0
        assert dict(short.predict(text(3000), late).lost)["expired"] > 2000
        assert long.predict(text(3000), late).cached > 2000

    def test_deepseek_counts_units_of_64(self) -> None:
        cache = parse_cache("deepseek")
        reused(cache, text(1000), Arrival())
        assert reused(cache, text(2000), Arrival()) == 1000 // 64 * 64

    @pytest.mark.parametrize("provider", [provider.id for provider in providers()])
    def test_every_provider_has_a_model_and_dated_rules(self, provider: str) -> None:
        rules = provider_by_id(provider)
        assert rules is not None
        assert rules.source.startswith("https://")
        assert datetime.fromisoformat(rules.seen).year >= 2026
        cache = parse_cache(provider)
        arrival = marked(20_000, at=0.0)
        assert reused(cache, text(20_000), arrival) == 0
        assert reused(cache, text(20_000), replace(arrival, at=1.0)) > 15_000
        assert reused(cache, text(20_000, changed=0), replace(arrival, at=2.0)) == 0

    @pytest.mark.parametrize(
        ("spec", "says"),
        [("openai:gpt-5,life=week", "life=NAME"), ("openai:gpt-5,step=3", "step=3"), ("anthropic:claude,life=1h", "no further option"), ("opnai", "openai")],
    )  # fmt: skip
    def test_a_wrong_spec_says_what_is_allowed(self, spec: str, says: str) -> None:
        with pytest.raises(UsageError, match=says):
            parse_cache(spec)


def test_a_session_predicts_what_its_adapter_marks() -> None:
    """Markers in the body that is sent, and the places that the prediction goes by, are one rule; counts are estimates."""
    renderer = load_renderer("anthropic")
    history = History(
        "You fix bugs. " * 500, [Tool.of("read", "Read.")], params=Params(model="claude-sonnet-4-5")
    )
    turns = SessionParts(history, renderer, parse_cache("anthropic:claude-sonnet-4-5")).check(
        takes_tokens=False
    )
    previous = 0
    for number, at in enumerate((0.0, 100.0, 350.0, 700.0)):
        if history.open_calls:
            history.tool_result(history.open_calls[0], "result " * 300)
        else:
            history.user("Go.")
        options = Options(at=at, cache_life="5m")
        prepared = turns.prepare(options)
        body = AnthropicMessages().call(prepared.prompt, options, stream=False).body
        assert json.dumps(body).count('"ephemeral"') == len(prepared.arrival.markers)
        expected = 0 if number in (0, 3) else previous
        assert prepared.report.predicted == expected
        assert not prepared.report.exact
        previous = prepared.arrival.markers[-1][0]
        call = ToolCall(id=f"c{number}", name="read", arguments="{}")
        usage = Usage(prompt=len(prepared.prompt), cached=expected)
        turns.observe(prepared, Completion(Message(role="assistant", tool_calls=(call,)), usage))


def test_the_life_is_asked_for_in_the_providers_words() -> None:
    history = History(params=Params(model="m"))
    history.user("hi")
    prompt = load_renderer("chatml").render(history.request())
    body = OpenAIChat().call(prompt, Options(cache_life="24h"), stream=False).body
    assert body["prompt_cache_retention"] == "24h"
    marker = AnthropicMessages().call(prompt, Options(cache_life="1h"), stream=False).body["messages"][0]
    assert marker["content"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    with pytest.raises(UsageError, match="5m or 1h"):
        AnthropicMessages().call(prompt, Options(cache_life="2h"), stream=False)


# -- recorded figures ------------------------------------------------------------------------------------------


def recorded_turns(path: Path) -> Iterator[tuple[float, str, Usage]]:
    """(time, model, usage) of each model call of a Claude Code session, in order."""
    seen: set[str] = set()
    for line in path.read_text(encoding="utf-8").splitlines():
        record: dict[str, Any] = json.loads(line)
        message = record.get("message")
        if record.get("type") != "assistant" or not isinstance(message, dict) or message.get("id") in seen:
            continue
        usage = usage_from_response({"type": "message", "usage": message.get("usage")})
        if usage is None or not usage.prompt:
            continue
        seen.add(message["id"])
        yield datetime.fromisoformat(record["timestamp"]).timestamp(), message["model"], usage


@pytest.mark.corpus
def test_reads_of_recorded_claude_sessions(shared_dir: Path) -> None:
    """Real sessions that only grow: each turn's read is the entry that the turn before wrote or read, while it lives.

    The prompts themselves aren't in the recordings, so they stand here as texts of the reported lengths, marked where the
    provider says that what it cached ended. Where the client rewrote its prompt (compaction, a changed context) or the provider lost an
    entry, the figures differ, and nothing in the recording could foretell it.
    """
    counts: Counter[str] = Counter()
    for path in sorted((shared_dir / "corpus/traces").glob("claude-code*/*.jsonl")):
        cache: CacheModel | None = None
        ends: list[int] = []
        for at, model, usage in recorded_turns(path):
            assert usage.prompt is not None
            assert usage.cached is not None
            end = usage.cached + (usage.written or 0)
            arrival = marked(end, blocks=tuple(place for place in ends[-5:] if place < end), at=at)
            ends.append(end)
            if cache is None:
                cache = parse_cache(f"anthropic:{model}")
            else:
                predicted = cache.predict(text(usage.prompt), arrival)
                kind = "expired" if dict(predicted.lost).get("expired") else "alive"
                # The shared system prompt outlives the conversation's own entries: other conversations read it.
                gone = kind == "expired" and usage.cached < ends[-2] / 2
                agrees = gone or predicted.cached == usage.cached
                counts[f"{kind} {'agrees' if agrees else 'differs'}"] += 1
            cache.commit(text(usage.prompt), NONE, arrival)
    # One entry was still read 308 seconds after the log's last word of it, by a clock that isn't the provider's.
    assert counts == {"alive agrees": 495, "alive differs": 32, "expired agrees": 8, "expired differs": 1}


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("case", "reads"),
    [
        ("s24-marker-behind-live-line", [0, 0, 0, 0]),
        ("s27-seven-minutes-idle", [0, 1230, 1831, 0, 2205, 2256]),
        ("s28-fourteen-parallel-reads", [0, 1351, 1324, 7261]),
        ("s34-large-page-healthy-read", [0, 1076, 1598, 7779, 7939]),
    ],
)
def test_reads_of_the_cases(shared_dir: Path, case: str, reads: list[int]) -> None:
    """Whole bodies with their markers and times: the predicted share of each prompt is the reported one, within five points.

    Tokens are estimates of another vocabulary over the blocks as JSON, so shares are compared, and nothing with nothing.
    """
    cache = parse_cache("anthropic:claude-sonnet-4-5")
    tokenizer = load_renderer("anthropic").tokenizer
    lines = (shared_dir / f"cases/requests/{case}/requests.jsonl").read_text(encoding="utf-8").splitlines()
    for number, (line, read) in enumerate(zip(lines, reads, strict=True), start=1):
        call = exchange_of(json.loads(line), line=number)
        view = view_of(call)
        ids: list[int] = []
        ends: list[int] = []
        for block in [
            *view.tools,
            *blocks_of(view.system),
            *(b for m in view.items for b in blocks_of(m["content"])),
        ]:
            bare = {key: value for key, value in block.items() if key != "cache_control"}
            ids += tokenizer.encode_ordinary(json.dumps(bare)).tolist()
            ends.append(len(ids))
        markers = tuple((ends[marker.block - 1], marker.life) for marker in markers_of(view))
        arrival = Arrival(at=call.at, blocks=tuple(ends), markers=markers)
        predicted = reused(cache, np.array(ids, np.int32), arrival)
        usage = usage_from_response(call.response or {})
        assert usage is not None
        assert usage.cached == read
        assert usage.prompt is not None
        assert (predicted == 0) == (read == 0)
        assert abs(predicted / len(ids) - read / usage.prompt) < 0.05


def blocks_of(content: Any) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
