"""Sessions on the bundled engine: what is predicted is what happens, with room and without, whatever the model writes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentctx.backends.backend import Options
from agentctx.backends.engine import AsyncEngineBackend, EngineBackend
from agentctx.caches.prefix import PrefixCacheModel
from agentctx.caches.registry import parse_cache
from agentctx.history import History
from agentctx.messages import Message, Tool
from agentctx.policies import SummarizeAtBudget, SummaryTask, parse_policy
from agentctx.rendering import load_renderer
from agentctx.rendering.chatml_reply import read_reply
from agentctx.session import AsyncSession, PrefixBroken, Session, SessionParts
from agentctx_engine.models import random_config, random_model
from agentctx_engine.runtime import Engine

RENDERER = load_renderer("chatml")
TOKENIZER = RENDERER.tokenizer
END = TOKENIZER.special_tokens["<|im_end|>"]
VOCABULARY = max(TOKENIZER.special_tokens.values()) + 1
TOOLS = (Tool.of("read", "Read a file", {"type": "object", "properties": {"path": {"type": "string"}}}),)


@pytest.fixture(scope="module")
def model() -> object:
    config = random_config(
        "llama", vocab_size=VOCABULARY, hidden_size=32, num_layers=1, num_heads=2, num_kv_heads=1
    )
    return random_model(config=config, seed=3)


@pytest.fixture(scope="module")
def engine(model: object) -> Iterator[Engine]:
    with Engine(model, num_blocks=2048) as running:
        yield running


def backend(engine: Engine) -> EngineBackend:
    return EngineBackend(engine, lambda ids: read_reply(TOKENIZER, ids), (END,))


def parts(cache: PrefixCacheModel, policy: str = "append-only", **more: object) -> SessionParts:
    history = History(system="You fix bugs.", tools=TOOLS)
    return SessionParts(history, RENDERER, cache, parse_policy(policy), **more)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_generated_replies_never_break_the_prefix(engine: Engine, temperature: float) -> None:
    """A random model writes ids that no tokenizer would choose; kept as they were generated, they stay a prefix."""
    engine.drop_cached()
    session = Session(parts(parse_cache("paged:16")), backend(engine))
    for turn in range(8):
        session.history.user(f"question {turn}")
        answer = session.complete(Options(max_tokens=24, temperature=temperature, seed=turn))
        assert answer.report.cached == answer.report.predicted
        assert answer.report.broken == 0
        assert answer.report.prompt == answer.completion.usage.prompt
    session.history.user("last")
    prepared = session.check(session.history.request())
    kept, encoded = prepared.prompt.token_ids, prepared.rendered.token_ids
    assert prepared.prompt.text == prepared.rendered.text
    if temperature:
        assert kept.tolist() != encoded.tolist()  # else this test would prove nothing


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 40), st.integers(1, 12)), min_size=2, max_size=14),
    st.sampled_from(["paged", "radix"]),
    st.sampled_from([None, 40, 60]),
)
def test_predicted_is_observed_for_interleaved_conversations(
    model: object, turns: list[tuple[int, int, int]], kind: str, blocks: int | None
) -> None:
    """Three conversations on one engine and one cache model, with memory for all of them or for hardly one."""
    block = 16 if kind == "paged" else 1
    total = blocks or 4096
    capacity = f",capacity={total if kind == 'paged' else total * 16}" if blocks else ""
    cache = parse_cache(f"paged:block=16{capacity}" if kind == "paged" else f"radix:page=1{capacity}")
    num_blocks = total if kind == "paged" else total * 16
    with Engine(
        model, block_size=block, num_blocks=num_blocks, prefix_cache="hash" if kind == "paged" else "radix"
    ) as own:
        sessions = [Session(parts(cache), backend(own)) for _ in range(3)]
        for which, words, tokens in turns:
            session = sessions[which]
            session.history.user("word " * words)
            prompt_tokens = len(RENDERER.render(session.history.request()).token_ids)
            if prompt_tokens + tokens > total * 16 - 64:
                break  # it would not fit even alone
            answer = session.complete(Options(max_tokens=tokens, temperature=1.0, seed=words))
            assert answer.report.cached == answer.report.predicted, answer.report


@pytest.mark.parametrize("policy", ["keep-last:1", "clear-results:1", "window:2", "summarize-budget:200"])
def test_predicted_is_observed_under_policies_that_rewrite(engine: Engine, policy: str) -> None:
    engine.drop_cached()
    session = Session(parts(parse_cache("paged:16"), policy), backend(engine))
    for turn in range(6):
        session.history.user(f"read file {turn}")
        answer = session.complete(Options(max_tokens=8, temperature=1.0, seed=turn))
        assert answer.report.cached == answer.report.predicted


async def test_the_async_face_gives_the_same_reports(engine: Engine) -> None:
    engine.drop_cached()
    one = Session(parts(parse_cache("paged:16")), backend(engine))
    one.history.user("hello")
    expected = one.complete(Options(max_tokens=8))
    engine.drop_cached()
    two = AsyncSession(
        parts(parse_cache("paged:16")),
        AsyncEngineBackend(engine, lambda ids: read_reply(TOKENIZER, ids), (END,)),
    )
    two.history.user("hello")
    answer = await two.complete(Options(max_tokens=8))
    assert answer.report == expected.report
    assert answer.message == expected.message


def test_streaming_gives_the_text_and_then_the_answer(engine: Engine) -> None:
    session = Session(parts(parse_cache("paged:16")), backend(engine))
    session.history.user("hello")
    *deltas, answer = session.stream(Options(max_tokens=12))
    assert "".join(delta.text for delta in deltas) == TOKENIZER.decode(answer.completion.reply_ids)
    assert session.history.messages[-1] == answer.message


def test_a_checked_request_is_not_sent_and_strict_mode_raises(engine: Engine) -> None:
    session = Session(parts(parse_cache("paged:16"), strict=True), backend(engine))
    session.history.user("hello " * 40)
    session.complete(Options(max_tokens=4))
    session.history.user("again")
    request = session.history.request()
    edited = request.model_copy(
        update={"messages": (Message(role="system", content="Time: 10:06"), *request.messages[1:])}
    )
    assert session.check(request).report.broken == 0
    with pytest.raises(PrefixBroken, match=r"messages\[0\]"):
        session.check(edited)


def test_a_failed_turn_leaves_the_question_and_no_reply(model: object) -> None:
    from agentctx.backends.backend import BackendError

    with Engine(model, num_blocks=4) as small:
        session = Session(parts(parse_cache("paged:16")), backend(small))
        session.history.user("word " * 200)
        before = session.history.messages
        with pytest.raises(BackendError):
            session.complete(Options(max_tokens=4))
        assert session.history.messages == before
        assert session.history.sealed == len(before)  # as it was sent
        assert session.report.turns == ()


async def test_an_async_session_waits_for_an_async_summarizer(engine: Engine) -> None:
    """A summary asked of a model in the same event loop: only the async face can wait for it."""
    asked: list[int] = []

    async def summarize(task: SummaryTask) -> str:
        await asyncio.sleep(0)
        asked.append(task.tokens)
        return "They read files."

    policy = SummarizeAtBudget(200, 80, 40, summarizer=summarize)
    session = AsyncSession(
        SessionParts(History(system="You fix bugs."), RENDERER, parse_cache("paged:16"), policy),
        AsyncEngineBackend(engine, lambda ids: read_reply(TOKENIZER, ids), (END,)),
    )
    for turn in range(4):
        session.history.user(f"read file {turn} " * 20)
        await session.complete(Options(max_tokens=4))
    assert asked
    assert session.history.epoch == len(asked)
    assert [turn.compacted for turn in session.report.turns].count(True) == len(asked)
