"""Faults of servers and networks: each ends in its documented error, the history holds the question and no reply and goes on, nothing is left open.

Real clients against a loopback server that answers byte by byte as told; both faces, every adapter, whole replies and streams.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from agentctx.backends.adapter import Adapter
from agentctx.backends.anthropic import AnthropicMessages
from agentctx.backends.backend import (
    BackendError,
    BadResponse,
    ConnectionFailed,
    Delta,
    Options,
    Refused,
    StreamBroken,
    TimedOut,
)
from agentctx.backends.http import AsyncHttpBackend, HttpBackend
from agentctx.backends.llama_server import LlamaCompletion
from agentctx.backends.openai_chat import OpenAIChat
from agentctx.backends.openai_responses import OpenAIResponses
from agentctx.caches.registry import parse_cache
from agentctx.errors import UsageError
from agentctx.history import History
from agentctx.messages import Params
from agentctx.rendering import load_renderer
from agentctx.session import Answer, AsyncSession, Session, SessionParts
from tests.real.llama_server import free_port

from .faulty_server import APIS, Api, FaultyServer, busy

RENDERER = load_renderer("chatml")
KEY = "sk-very-secret-0123456789"
ADAPTERS: dict[str, Callable[[], Adapter]] = {
    "openai-chat": OpenAIChat,
    "openai-responses": OpenAIResponses,
    "anthropic": AnthropicMessages,
    "llama-server": LlamaCompletion,
}
FACES, MODES = ("sync", "async"), ("whole", "stream")


def sockets() -> int:
    """Open sockets of this process, where the system tells."""
    found = 0
    for entry in Path("/proc/self/fd").glob("*"):
        try:
            found += os.readlink(entry).startswith("socket:")
        except OSError:
            continue
    return found


@dataclass
class Conversation:
    """A session of either face behind one asynchronous interface; ``mode`` says how it asks."""

    session: Session | AsyncSession
    mode: str
    deltas: list[str]

    async def turn(self) -> Answer:
        session = self.session
        self.deltas.clear()
        if isinstance(session, AsyncSession):
            if self.mode == "whole":
                return await session.complete(Options())
            async with aclosing(session.stream(Options())) as items:
                async for item in items:
                    if isinstance(item, Answer):
                        return item
                    self.deltas.append(item.text)
        elif self.mode == "whole":
            return session.complete(Options())
        else:
            for item in session.stream(Options()):
                if isinstance(item, Answer):
                    return item
                self.deltas.append(item.text)
        raise AssertionError("the stream ended without an answer")


@asynccontextmanager
async def conversation(
    url: str, adapter: str, face: str, mode: str, **limits: Any
) -> AsyncIterator[Conversation]:
    """A conversation with a question asked. At its end no task and no socket may be left."""
    before = sockets()
    tasks = asyncio.all_tasks()
    history = History("Be kind.", params=Params(model="m"))
    history.user("May I?")
    parts = SessionParts(history, RENDERER, parse_cache("paged:16"))
    limits = {"timeout": 5.0, "retries": 0, "headers": {"Authorization": f"Bearer {KEY}"}, **limits}
    session: Session | AsyncSession
    if face == "sync":
        with HttpBackend(ADAPTERS[adapter](), url, **limits) as backend:
            session = Session(parts, backend)
            yield Conversation(session, mode, [])
    else:
        async with AsyncHttpBackend(ADAPTERS[adapter](), url, **limits) as async_backend:
            session = AsyncSession(parts, async_backend)
            yield Conversation(session, mode, [])
    assert asyncio.all_tasks() == tasks
    gc.collect()  # a generator that was left to the collector would start a task of its own
    assert asyncio.all_tasks() == tasks
    for _ in range(100):  # the server's own ends of the connections close a moment later
        if sockets() <= before:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"{sockets() - before} sockets are left open")


async def fails_and_goes_on(
    talk: Conversation, server: FaultyServer, api: Api, kind: type[BackendError], says: str
) -> BackendError:
    """The turn ends in the error, of the history it leaves what was asked, sealed as it was sent, and the same session goes on."""
    history = talk.session.history
    before = history.messages
    asked = History.resume(history.checkpoint())
    asked.request()
    with pytest.raises(kind, match=says) as failure:
        await talk.turn()
    assert type(failure.value) is kind
    if isinstance(failure.value, StreamBroken) and talk.mode == "stream":
        # What had arrived is in the error; of the history it is no part.
        assert failure.value.partial == "".join(talk.deltas)
    assert KEY not in str(failure.value) + repr(failure.value) + repr(talk.session)
    assert history.checkpoint() == asked.checkpoint()
    assert (history.messages, history.sealed, history.open_calls) == (before, len(before), ())
    assert talk.session.report.turns == ()
    server.script = [api.healthy]
    answer = await talk.turn()
    assert answer.message.text == "yes sir"
    assert answer.report.turn == 1
    assert answer.report.cached == 16
    assert history.messages == (*before, answer.message)
    return failure.value


CASES = [
    # fault, mode, error, what it says
    ("killed", "whole", StreamBroken, "broke off the reply"),
    ("killed", "stream", StreamBroken, "broke off the reply"),
    ("ends_early", "stream", StreamBroken, "before the reply did"),
    ("malformed", "whole", BadResponse, "not with JSON"),
    ("malformed", "stream", BadResponse, "malformed stream event"),
    ("another_shape", "whole", BadResponse, "response has no"),
    ("another_shape", "stream", BadResponse, "no JSON object"),
    ("wrong_type", "whole", BadResponse, "text/html"),
    ("wrong_type", "stream", BadResponse, "text/html"),
    ("badly_encoded", "whole", BadResponse, "content encoding"),
    ("badly_encoded", "stream", BadResponse, "content encoding"),
    ("stalls_at_once", "whole", TimedOut, r"silent for 0\.2 s"),
    ("stalls_inside", "whole", TimedOut, r"silent for 0\.2 s"),
    ("stalls_inside", "stream", TimedOut, r"silent for 0\.2 s"),
    ("hangs_up", "whole", ConnectionFailed, "closed the connection before it answered"),
]


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("adapter", list(APIS))
@pytest.mark.parametrize(("fault", "mode", "kind", "says"), CASES)
async def test_a_fault_ends_in_its_error(
    server: FaultyServer,
    adapter: str,
    face: str,
    fault: str,
    mode: str,
    kind: type[BackendError],
    says: str,
) -> None:
    api = APIS[adapter]
    server.script = [getattr(api, fault)]
    timeout = 0.2 if fault.startswith("stalls") else 5.0
    async with conversation(server.url, adapter, face, mode, timeout=timeout) as talk:
        await fails_and_goes_on(talk, server, api, kind, says)
    assert server.wait_until_all_are_closed()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("face", FACES)
async def test_a_stall_of_30_seconds_against_a_timeout_of_2(
    server: FaultyServer, face: str, mode: str
) -> None:
    api = APIS["openai-chat"]
    server.script = [api.stalls_inside]
    async with conversation(server.url, api.name, face, mode, timeout=2.0) as talk:
        start = time.monotonic()
        await fails_and_goes_on(talk, server, api, TimedOut, r"silent for 2\.0 s; raise timeout=")
        assert 1.9 < time.monotonic() - start < 20
    assert server.wait_until_all_are_closed()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("face", FACES)
async def test_connection_refused(server: FaultyServer, face: str, mode: str) -> None:
    """Nobody listens; then somebody does, at the same address, and the same session goes on."""
    async with conversation(f"http://127.0.0.1:{free_port()}", "openai-chat", face, mode) as talk:
        history = talk.session.history
        with pytest.raises(ConnectionFailed, match="is the server running"):
            await talk.turn()
        assert [message.role for message in history.messages] == ["system", "user"]
        talk.session.backend.base_url = server.url  # type: ignore[union-attr]
        server.script = [APIS["openai-chat"].healthy]
        assert (await talk.turn()).message.text == "yes sir"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("adapter", list(APIS))
async def test_busy_then_success(server: FaultyServer, adapter: str, face: str, mode: str) -> None:
    """429 with Retry-After, then 503 and 529: the turn waits as told and runs once."""
    api = APIS[adapter]
    server.script = [
        busy("429 Too Many Requests", Retry_After="0.3"),
        busy("503 Service Unavailable", Retry_After="Wed, 21 Oct 2015 07:28:00 GMT"),
        busy("529 Overloaded", Retry_After="0"),
        api.healthy,
    ]
    async with conversation(server.url, adapter, face, mode, retries=3) as talk:
        start = time.monotonic()
        answer = await talk.turn()
        assert time.monotonic() - start >= 0.3
        assert answer.message.text == "yes sir"
        assert answer.report.turn == 1
        assert len(server.requests) == 4
        assert all(request == server.requests[0] for request in server.requests)
    assert server.wait_until_all_are_closed()


@pytest.mark.parametrize("face", FACES)
async def test_a_server_that_asks_for_an_hour_is_not_waited_for(server: FaultyServer, face: str) -> None:
    api = APIS["openai-chat"]
    server.script = [busy("429 Too Many Requests", Retry_After="3600")]
    async with conversation(server.url, api.name, face, "whole", retries=5) as talk:
        error = await fails_and_goes_on(talk, server, api, Refused, "429 Too Many Requests: .*not now")
        assert isinstance(error, Refused)
        assert (error.status, error.retry_after) == (429, 3600.0)


@pytest.mark.parametrize("face", FACES)
async def test_a_hang_up_before_the_answer_is_tried_again(server: FaultyServer, face: str) -> None:
    api = APIS["openai-chat"]
    server.script = [api.hangs_up, api.healthy]
    async with conversation(server.url, api.name, face, "stream", retries=1) as talk:
        assert (await talk.turn()).message.text == "yes sir"


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("adapter", list(APIS))
async def test_an_error_inside_the_stream(server: FaultyServer, adapter: str, face: str) -> None:
    api = APIS[adapter]
    told: dict[str, Any] = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}

    def answer(connection: Any) -> None:
        connection.events([*api.events[:2], ("error", told)])
        connection.raw.sendall(b"0\r\n\r\n")

    server.script = [answer]
    async with conversation(server.url, adapter, face, "stream") as talk:
        await fails_and_goes_on(talk, server, api, StreamBroken, "Overloaded")
    assert server.wait_until_all_are_closed()


@pytest.mark.parametrize("fault", ["stalls_at_once", "stalls_inside"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("adapter", list(APIS))
async def test_a_cancelled_task_ends_the_turn(
    server: FaultyServer, adapter: str, mode: str, fault: str
) -> None:
    """Cancelling closes the connection, which is how the server learns of it; the session can go on."""
    api = APIS[adapter]
    server.script = [getattr(api, fault)]
    async with conversation(server.url, adapter, "async", mode) as talk:
        history = talk.session.history
        task = asyncio.create_task(talk.turn())
        while not server.requests:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        before = history.messages
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert history.messages == before
        assert talk.session.report.turns == ()
        server.script = [api.healthy]
        assert (await talk.turn()).message.text == "yes sir"
    assert server.wait_until_all_are_closed()


@pytest.mark.parametrize("face", FACES)
async def test_a_reader_that_stops_reading_ends_the_turn(server: FaultyServer, face: str) -> None:
    """Closing a session's stream closes the connection at once, not when the garbage is collected."""
    api = APIS["openai-chat"]
    closed: list[bool] = []

    def answer(connection: Any) -> None:
        connection.events(list(api.events[:2]))
        connection.raw.settimeout(5)
        closed.append(connection.raw.recv(1) == b"")

    server.script = [answer]
    async with conversation(server.url, api.name, face, "stream") as talk:
        session = talk.session
        if isinstance(session, AsyncSession):
            stream = session.stream()
            first = await anext(stream)
            await stream.aclose()
        else:
            plain = session.stream()
            first = next(plain)
            plain.close()
        assert first == Delta("yes")
        assert server.wait_until_all_are_closed()
        assert closed == [True]
        assert len(session.history) == 2
        server.script = [api.healthy]
        assert (await talk.turn()).message.text == "yes sir"


class TestSecrets:
    """Keys never stand in an error, a name or a representation."""

    @pytest.mark.parametrize("face", FACES)
    @pytest.mark.parametrize("header", ["Authorization", "x-api-key"])
    async def test_a_server_that_repeats_the_key(self, server: FaultyServer, face: str, header: str) -> None:
        value = f"Bearer {KEY}" if header == "Authorization" else KEY
        server.script = [
            lambda connection: connection.whole(
                f'{{"error": "Incorrect API key provided: {KEY} ({value})"}}'.encode(), "401 Unauthorized"
            )
        ]
        async with conversation(server.url, "openai-chat", face, "whole", headers={header: value}) as talk:
            with pytest.raises(Refused, match=r"401 .*\*\*\*") as failure:
                await talk.turn()
            assert KEY not in str(failure.value)
            assert server.headers[0][header.lower()] == value

    @pytest.mark.parametrize("face", FACES)
    async def test_a_key_in_the_address(self, face: str) -> None:
        probe = socket.create_server(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        url = f"http://me:{KEY}@127.0.0.1:{port}/v1?key={KEY}"
        async with conversation(url, "openai-chat", face, "whole") as talk:
            assert KEY not in repr(talk.session.backend)
            with pytest.raises(ConnectionFailed, match=f"127.0.0.1:{port}/v1") as failure:
                await talk.turn()
            assert KEY not in str(failure.value)

    async def test_a_key_in_the_callers_client(self, server: FaultyServer) -> None:
        server.script = [
            lambda connection: connection.whole(f"no: {KEY}".encode(), "403 Forbidden", "text/plain")
        ]
        with (
            httpx.Client(headers={"Authorization": f"Bearer {KEY}"}) as client,
            HttpBackend(OpenAIChat(), server.url, client=client) as backend,
        ):
            history = History()
            history.user("hi")
            with pytest.raises(Refused) as failure:
                backend.complete(RENDERER.render(history.request()), Options())
            assert KEY not in str(failure.value)


@pytest.mark.parametrize("url", ["", "127.0.0.1:8080", "ftp://host/v1", "http://", "file:///etc/passwd"])
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(UsageError, match="http://"):
        HttpBackend(OpenAIChat(), url)
