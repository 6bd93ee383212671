"""The transports against a loopback server that refuses: what is tried again, how often, and what is said in the end."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from agentctx.backends.backend import (
    BackendError,
    BadResponse,
    Completion,
    ConnectionFailed,
    Options,
    Refused,
    StreamBroken,
    TimedOut,
)
from agentctx.backends.http import AsyncHttpBackend, HttpBackend
from agentctx.backends.openai_chat import OpenAIChat
from agentctx.caches.registry import parse_cache
from agentctx.history import History
from agentctx.messages import Message, Request
from agentctx.rendering import Prompt, load_renderer
from agentctx.session import Session, SessionParts
from tests.real.llama_server import free_port

from .faulty_server import APIS, FaultyServer, busy

PROMPT = Prompt(np.zeros(1, np.int32), "", (), Request(messages=(Message(role="user", content="hi"),)))


def refuse(server: FaultyServer, *statuses: int) -> None:
    """Answer with these statuses, then as one should."""
    server.script = [busy(f"{status} No", Retry_After="0") for status in statuses]
    server.script.append(APIS["openai-chat"].healthy)


async def ended(face: str, mode: str, url: str, **limits: Any) -> Completion:
    """One turn, whole or streamed."""
    if face == "sync":
        with HttpBackend(OpenAIChat(), url, **limits) as backend:
            if mode == "whole":
                return backend.complete(PROMPT, Options())
            last = list(backend.stream(PROMPT, Options()))[-1]
    else:
        async with AsyncHttpBackend(OpenAIChat(), url, **limits) as async_backend:
            if mode == "whole":
                return await async_backend.complete(PROMPT, Options())
            last = [delta async for delta in async_backend.stream(PROMPT, Options())][-1]
    assert last.completion is not None
    return last.completion


@pytest.mark.parametrize("face", ["sync", "async"])
class TestRetries:
    @pytest.mark.parametrize("status", [429, 503])
    async def test_a_busy_server_is_asked_again(self, server: FaultyServer, face: str, status: int) -> None:
        refuse(server, status, status)
        assert (await ended(face, "whole", server.url)).message.text == "yes sir"
        assert len(server.requests) == 3

    async def test_it_is_not_asked_more_often_than_allowed(self, server: FaultyServer, face: str) -> None:
        refuse(server, *[503] * 5)
        with pytest.raises(Refused, match="503") as refused:
            await ended(face, "whole", server.url)
        assert refused.value.status == 503
        assert refused.value.retry_after == 0
        assert len(server.requests) == 3

    @pytest.mark.parametrize("status", [400, 401, 404, 500])
    async def test_other_statuses_end_the_turn_at_once(
        self, server: FaultyServer, face: str, status: int
    ) -> None:
        refuse(server, status)
        with pytest.raises(Refused, match=str(status)):
            await ended(face, "whole", server.url)
        assert len(server.requests) == 1

    async def test_nobody_at_the_address(self, face: str) -> None:
        with pytest.raises(ConnectionFailed, match="is the server running"):
            await ended(face, "whole", f"http://127.0.0.1:{free_port()}", retries=1)


@pytest.mark.parametrize("mode", ["whole", "stream"])
@pytest.mark.parametrize("face", ["sync", "async"])
class TestBrokenConnections:
    """The request was sent and no byte came back: the server may have run it. It is sent again, and that is seen."""

    api = APIS["openai-chat"]

    @pytest.mark.parametrize("times", [0, 1, 2])
    async def test_what_was_sent_again_is_counted(
        self, server: FaultyServer, face: str, mode: str, times: int
    ) -> None:
        server.script = [*[self.api.hangs_up] * times, self.api.healthy]
        completion = await ended(face, mode, server.url)
        assert completion.message.text == "yes sir"
        assert completion.unanswered == times
        assert len(server.requests) == times + 1

    async def test_a_refusal_is_an_answer(self, server: FaultyServer, face: str, mode: str) -> None:
        server.script = [busy("503 No", Retry_After="0"), self.api.hangs_up, self.api.healthy]
        assert (await ended(face, mode, server.url)).unanswered == 1

    async def test_the_error_says_how_often(self, server: FaultyServer, face: str, mode: str) -> None:
        server.script = [self.api.hangs_up] * 3
        with pytest.raises(
            ConnectionFailed, match=r"closed the connection .* sent before and not answered: 2 times"
        ):
            await ended(face, mode, server.url)
        assert len(server.requests) == 3

    async def test_so_does_another_error_after_it(self, server: FaultyServer, face: str, mode: str) -> None:
        server.script = [self.api.hangs_up, busy("400 No")]
        with pytest.raises(Refused, match=r"400 No: .*; sent before and not answered: once") as refused:
            await ended(face, mode, server.url)
        assert refused.value.status == 400
        server.script = [self.api.hangs_up, self.api.killed]
        with pytest.raises(StreamBroken, match=r"broke off .*: once, and the server may have run it"):
            await ended(face, mode, server.url)

    async def test_sent_once_with_no_retries(self, server: FaultyServer, face: str, mode: str) -> None:
        server.script = [self.api.hangs_up, self.api.healthy]
        with pytest.raises(ConnectionFailed, match=r"closed the connection before it answered: [^;]*$"):
            await ended(face, mode, server.url, retries=0)
        assert len(server.requests) == 1

    @pytest.mark.parametrize(
        ("fault", "error"),
        [("stalls_at_once", TimedOut), ("killed", StreamBroken), ("malformed", BadResponse)],
    )
    async def test_nothing_else_is_sent_again(
        self, server: FaultyServer, face: str, mode: str, fault: str, error: type[BackendError]
    ) -> None:
        """Neither after silence nor once an answer has begun."""
        server.script = [getattr(self.api, fault), self.api.healthy]
        with pytest.raises(error, match=r"^[^;]*(; raise timeout= [^;]*)?$"):
            await ended(face, mode, server.url, timeout=0.2)
        assert len(server.requests) == 1

    async def test_a_connection_that_was_never_made_ran_nothing(
        self, server: FaultyServer, face: str, mode: str
    ) -> None:
        with pytest.raises(ConnectionFailed, match=r"is the server running\?$"):
            await ended(face, mode, f"http://127.0.0.1:{free_port()}", retries=1)


@pytest.mark.parametrize(("hang_ups", "cause"), [(0, "unexplained"), (1, "sent-again"), (2, "sent-again")])
def test_a_turn_that_may_have_run_before_is_reported(server: FaultyServer, hang_ups: int, cause: str) -> None:
    """The server had read the prompt already: that is why it reuses more than was predicted."""
    history = History("Be kind.")
    history.user("May I?")
    parts = SessionParts(history, load_renderer("chatml"), parse_cache("paged:16"))
    rendered = len(parts.renderer.render(history.request()).token_ids)
    usage = {
        "prompt_tokens": rendered,
        "completion_tokens": 2,
        "prompt_tokens_details": {"cached_tokens": 16},
    }
    body = json.dumps(APIS["openai-chat"].body | {"usage": usage}).encode()
    server.script = [*[APIS["openai-chat"].hangs_up] * hang_ups, lambda connection: connection.whole(body)]
    with HttpBackend(OpenAIChat("m"), server.url) as backend:
        answer = Session(parts, backend).complete()
    assert (answer.report.predicted, answer.report.cached) == (0, 16)
    assert answer.report.mismatch == cause
    assert answer.completion.unanswered == hang_ups
