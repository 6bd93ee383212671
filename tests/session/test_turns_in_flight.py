"""One turn at a time, replies in their place, nothing counted that was not appended, and prompts that were read without an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path

import pytest

from agentctx.backends.backend import Completion, Delta, Options, StreamBroken
from agentctx.backends.engine import EngineBackend
from agentctx.caches.registry import parse_cache
from agentctx.errors import HistoryError, RenderError, UsageError
from agentctx.history import History
from agentctx.messages import Message, ToolCall
from agentctx.rendering import load_renderer
from agentctx.rendering.chatml_reply import read_reply
from agentctx.rendering.prompt import Prompt
from agentctx.session import Answer, AsyncSession, Session, SessionParts
from agentctx_engine.models import random_config, random_model
from agentctx_engine.runtime import Engine

from .dictated import Dictated, written

RENDERER = load_renderer("chatml")
SPECIAL = RENDERER.tokenizer.special_tokens


def reply(text: str = "certainly") -> tuple[str, list[int]]:
    return written(RENDERER, text, "<|im_end|>")


class InPieces(Dictated):
    """Dictated, with two pieces of text before the end; ``calls`` go into the next reply, ``breaks`` ends it after the first."""

    calls: tuple[ToolCall, ...] = ()
    breaks = False

    def complete(self, prompt: Prompt, options: Options) -> Completion:
        completion = super().complete(prompt, options)
        calls, self.calls = self.calls, ()
        return replace(
            completion, message=completion.message.model_copy(update={"tool_calls": calls}), reply_ids=None
        )

    def stream(self, prompt: Prompt, options: Options) -> Generator[Delta, None, None]:
        completion = self.complete(prompt, options)
        text = completion.message.text
        yield Delta(text[:2])
        if self.breaks:
            raise StreamBroken("cut off", partial=text[:2])
        yield Delta(text[2:])
        yield Delta(completion=completion)


class AsyncInPieces:
    """The same for asyncio."""

    name = "dictated"
    takes_tokens = False

    def __init__(self, turns: int) -> None:
        self._inner = InPieces(RENDERER, takes_tokens=False)
        self._inner.replies = [reply() for _ in range(turns)]

    async def complete(self, prompt: Prompt, options: Options) -> Completion:
        await asyncio.sleep(0)
        return self._inner.complete(prompt, options)

    async def stream(self, prompt: Prompt, options: Options) -> AsyncGenerator[Delta, None]:
        for delta in self._inner.stream(prompt, options):
            await asyncio.sleep(0)
            yield delta


def parts(history: History | None = None, **more: object) -> SessionParts:
    history = history or History("Be kind.")
    history.user("May I? " * 20)
    return SessionParts(history, RENDERER, parse_cache("slot"), **more)


def begun(history: History | None = None, **more: object) -> tuple[Session, InPieces]:
    backend = InPieces(RENDERER, takes_tokens=False)
    backend.replies = [reply() for _ in range(4)]
    return Session(parts(history, **more), backend), backend


def roles(session: Session | AsyncSession) -> list[str]:
    return [message.role for message in session.history]


def test_a_second_turn_must_wait() -> None:
    session, _ = begun()
    stream = session.stream()
    next(stream)
    for second in (session.complete, lambda: next(session.stream())):
        with pytest.raises(UsageError, match="in flight"):
            second()
    *_, answer = stream
    assert isinstance(answer, Answer)
    session.history.user("And now?")
    assert session.complete().report.turn == 2
    assert roles(session) == ["system", "user", "assistant", "user", "assistant"]


def test_a_stream_that_is_closed_makes_room_for_the_next_turn() -> None:
    session, _ = begun()
    for item in session.stream():
        assert isinstance(item, Delta)
        break
    assert session.complete().report.turn == 1
    assert roles(session) == ["system", "user", "assistant"]


async def test_of_two_turns_at_once_one_runs() -> None:
    session = AsyncSession(parts(), AsyncInPieces(turns=3))
    found = await asyncio.gather(session.complete(), session.complete(), return_exceptions=True)
    assert [type(one) for one in found] == [Answer, UsageError]
    assert roles(session) == ["system", "user", "assistant"]
    async with aclosing(session.stream()) as items:
        async for _ in items:
            break
    session.history.user("And now?")
    assert (await session.complete()).report.turn == 2


@pytest.mark.parametrize("strict", [False, True])
def test_a_reply_stands_where_its_request_ended(strict: bool, tmp_path: Path) -> None:
    """A person types while the reply arrives: the prompt only grows, and a history in a file tells the same."""
    with History.open(tmp_path / "log.jsonl", "Be kind.") as history:
        session, _ = begun(history, strict=strict)
        for at, item in enumerate(session.stream()):
            if at == 0:
                session.history.user("And make it short.")
                session.history.note("10:05", key="clock")
            last = item
        assert isinstance(last, Answer)
        assert [message.text for message in history][2:] == ["certainly", "And make it short."]
        after = session.complete().report
        assert (after.broken, after.divergence, after.matches_prediction) == (0, None, True)
        assert history[3].notes == ("10:05",)
        kept = history.messages
    with History.open(tmp_path / "log.jsonl") as again:
        assert again.messages == kept


async def test_what_arrives_while_an_async_turn_waits_stands_behind_it() -> None:
    session = AsyncSession(parts(strict=True), AsyncInPieces(turns=2))
    turn = asyncio.create_task(session.complete())
    await asyncio.sleep(0)
    session.history.user("And make it short.")
    await turn
    assert roles(session) == ["system", "user", "assistant", "user"]
    assert (await session.complete()).report.broken == 0


def test_results_find_their_calls_though_somebody_spoke_in_between() -> None:
    session, backend = begun()
    backend.calls = (ToolCall(id="a", name="f", arguments="{}"),)
    stream = session.stream()
    next(stream)
    session.history.user("Hurry.")
    list(stream)
    session.history.tool_result("a", "done")
    assert roles(session) == ["system", "user", "assistant", "tool", "user"]
    assert session.complete().report.broken == 0


def test_an_item_that_can_not_stand_behind_the_reply_is_an_error_and_stays() -> None:
    session, backend = begun()
    backend.calls = (ToolCall(id="a", name="f", arguments="{}"),)
    stream = session.stream()
    next(stream)
    session.history.assistant("I speak for the model.")
    before = session.history.messages
    with pytest.raises(HistoryError, match="has no result yet"):
        list(stream)
    assert session.history.messages == before
    assert session.report.turns == ()


def test_a_call_without_an_id_is_numbered() -> None:
    session, backend = begun()
    backend.calls = tuple(ToolCall(id=name, name="f", arguments="{}") for name in ("", "call_2", ""))
    answer = session.complete()
    ids = [call.id for call in answer.message.tool_calls]
    assert ids == ["call_3", "call_2", "call_4"]
    assert session.history[-1] == answer.message
    for name in reversed(ids):
        session.history.tool_result(name, "done")
    assert session.complete().report.turn == 2


def test_a_reply_that_the_history_refuses_is_not_counted() -> None:
    session, backend = begun()
    backend.calls = (ToolCall(id="a", name="f", arguments="{}"),)
    session.complete()
    session.history.tool_result("a", "done")
    before = session.history.messages
    backend.calls = (ToolCall(id="a", name="f", arguments="{}"),)
    with pytest.raises(HistoryError, match="used before"):
        session.complete()
    assert session.history.messages == before
    assert len(session.report.turns) == 1
    report = session.complete().report  # the server has served it: what it holds is known
    assert (report.turn, report.broken, report.matches_prediction) == (2, 0, True)


def test_the_prompt_of_a_turn_that_was_left_is_known_to_have_been_read() -> None:
    session, _ = begun()
    session.complete()
    session.history.user("Tell me a long story. " * 10)
    stream = session.stream()
    next(stream)
    stream.close()
    session.history.user("No: a short one.")
    report = session.complete().report
    assert report.cached is not None
    assert (report.turn, report.predicted, report.mismatch) == (2, report.cached, None)
    assert report.reprocessed < 20  # not the long question again
    assert (report.new, report.rework) == (report.reprocessed, 0)


def test_an_engine_that_is_left_early_holds_what_is_predicted() -> None:
    config = random_config("llama", vocab_size=max(SPECIAL.values()) + 1, hidden_size=32, num_layers=1)
    with Engine(random_model(config=config, seed=3), num_blocks=256) as engine:
        backend = EngineBackend(
            engine, lambda ids: read_reply(RENDERER.tokenizer, ids), (SPECIAL["<|im_end|>"],)
        )
        history = History("Be kind.")
        session = Session(replace(parts(history), cache=parse_cache("paged:16")), backend)
        stream = session.stream(Options(max_tokens=60))
        next(stream)
        stream.close()
        history.user("Shorter.")
        report = session.complete(Options(max_tokens=4)).report
        assert report.predicted > 32
        assert report.matches_prediction


def test_a_failed_turn_leaves_the_question_sealed_and_no_reply() -> None:
    session, backend = begun()
    session.history.note("10:05", key="clock")
    backend.breaks = True
    with pytest.raises(StreamBroken):
        list(session.stream())
    history = session.history
    assert roles(session) == ["system", "user"]
    assert (history[1].notes, history.pending_notes, history.sealed) == (("10:05",), (), 2)
    with pytest.raises(HistoryError, match="was sent"):
        history[1] = Message(role="user", content="Must I?")
    assert session.report.turns == ()
    backend.breaks = False
    assert session.complete().report.turn == 1


_TAKES_ARGUMENTS_APART = """\
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}
{%- for call in message.tool_calls or [] %}{% for key, value in call.function.arguments.items() %}
{{ key }}: {{ value }}{% endfor %}{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@pytest.mark.parametrize("streamed", [False, True])
def test_a_reply_that_the_template_refuses_is_kept(tmp_path: Path, streamed: bool) -> None:
    """Arguments that a length limit cut off: the reply was paid for. What is wrong with it, the next request says."""
    template = tmp_path / "chat.jinja"
    template.write_text(_TAKES_ARGUMENTS_APART)
    renderer = load_renderer(str(template), tokenizer="embedded")
    backend = InPieces(renderer, takes_tokens=False)
    backend.replies = [written(renderer, "I write it.", "<|im_end|>")]
    backend.calls = (ToolCall(id="c1", name="write", arguments='{"path": "a.py", "text": "imp'),)
    session = Session(SessionParts(History("Be kind."), renderer, parse_cache("slot")), backend)
    session.history.user("Fix it.")
    if streamed:
        *_, answer = session.stream()
        assert isinstance(answer, Answer)
    else:
        answer = session.complete()
    assert session.history[-1] == answer.message
    assert answer.message.tool_calls[0].arguments == '{"path": "a.py", "text": "imp'
    assert answer.report.reply > 10
    assert session.report.turns == (answer.report,)
    session.history.tool_result("c1", "cut off")
    with pytest.raises(RenderError, match="chat"):
        session.complete()
