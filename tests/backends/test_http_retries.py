"""The transports against a loopback server that refuses: what is tried again, how often, and what is said in the end."""

from __future__ import annotations

import numpy as np
import pytest

from agentctx.backends.backend import Completion, ConnectionFailed, Options, Refused
from agentctx.backends.http import AsyncHttpBackend, HttpBackend
from agentctx.backends.openai_chat import OpenAIChat
from agentctx.messages import Message, Request
from agentctx.rendering import Prompt
from tests.real.llama_server import free_port

from .faulty_server import APIS, FaultyServer, busy

PROMPT = Prompt(np.zeros(1, np.int32), "", (), Request(messages=(Message(role="user", content="hi"),)))


def refuse(server: FaultyServer, *statuses: int) -> None:
    """Answer with these statuses, then as one should."""
    server.script = [busy(f"{status} No", Retry_After="0") for status in statuses]
    server.script.append(APIS["openai-chat"].healthy)


async def complete(face: str, url: str, retries: int) -> Completion:
    if face == "sync":
        with HttpBackend(OpenAIChat(), url, retries=retries) as backend:
            return backend.complete(PROMPT, Options())
    async with AsyncHttpBackend(OpenAIChat(), url, retries=retries) as backend:
        return await backend.complete(PROMPT, Options())


@pytest.mark.parametrize("face", ["sync", "async"])
class TestRetries:
    @pytest.mark.parametrize("status", [429, 503])
    async def test_a_busy_server_is_asked_again(self, server: FaultyServer, face: str, status: int) -> None:
        refuse(server, status, status)
        assert (await complete(face, server.url, 2)).message.text == "yes sir"
        assert len(server.requests) == 3

    async def test_it_is_not_asked_more_often_than_allowed(self, server: FaultyServer, face: str) -> None:
        refuse(server, *[503] * 5)
        with pytest.raises(Refused, match="503") as refused:
            await complete(face, server.url, 2)
        assert refused.value.status == 503
        assert refused.value.retry_after == 0
        assert len(server.requests) == 3

    @pytest.mark.parametrize("status", [400, 401, 404, 500])
    async def test_other_statuses_end_the_turn_at_once(
        self, server: FaultyServer, face: str, status: int
    ) -> None:
        refuse(server, status)
        with pytest.raises(Refused, match=str(status)):
            await complete(face, server.url, 2)
        assert len(server.requests) == 1

    async def test_nobody_at_the_address(self, face: str) -> None:
        with pytest.raises(ConnectionFailed, match="is the server running"):
            await complete(face, f"http://127.0.0.1:{free_port()}", 1)
