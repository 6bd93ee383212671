"""The transports against a loopback server that refuses: what is tried again, how often, and what is said in the end."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest

from agentctx.backends.backend import BackendError, Completion, ConnectionFailed, Options, Refused
from agentctx.backends.http import AsyncHttpBackend, HttpBackend
from agentctx.backends.openai_chat import OpenAIChat
from agentctx.messages import Message, Request
from agentctx.rendering import Prompt

PROMPT = Prompt(np.zeros(1, np.int32), "", (), Request(messages=(Message(role="user", content="hi"),)))
REPLY = {"choices": [{"message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}]}


class Script:
    """Answers with the statuses of a list, then with 200; counts the requests."""

    def __init__(self) -> None:
        self.statuses: list[int] = []
        self.requests = 0
        script = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["Content-Length"]))
                script.requests += 1
                status = script.statuses.pop(0) if script.statuses else 200
                body = json.dumps(REPLY if status == 200 else {"error": "not now"}).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                if status != 200:
                    self.send_header("Retry-After", "0")
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def script() -> Iterator[Script]:
    script = Script()
    thread = Thread(target=script.server.serve_forever, daemon=True)
    thread.start()
    yield script
    script.server.shutdown()
    script.server.server_close()
    thread.join()


async def complete(face: str, url: str, retries: int) -> Completion:
    if face == "sync":
        with HttpBackend(OpenAIChat(), url, retries=retries) as backend:
            return backend.complete(PROMPT, Options())
    async with AsyncHttpBackend(OpenAIChat(), url, retries=retries) as backend:
        return await backend.complete(PROMPT, Options())


@pytest.mark.parametrize("face", ["sync", "async"])
class TestRetries:
    @pytest.mark.parametrize("status", [429, 503])
    async def test_a_busy_server_is_asked_again(self, script: Script, face: str, status: int) -> None:
        script.statuses = [status, status]
        assert (await complete(face, script.url, 2)).message.text == "yes"
        assert script.requests == 3

    async def test_it_is_not_asked_more_often_than_allowed(self, script: Script, face: str) -> None:
        script.statuses = [503] * 5
        with pytest.raises(Refused, match="503") as refused:
            await complete(face, script.url, 2)
        assert refused.value.status == 503
        assert refused.value.retry_after == 0
        assert script.requests == 3

    @pytest.mark.parametrize("status", [400, 401, 404, 500])
    async def test_other_statuses_end_the_turn_at_once(self, script: Script, face: str, status: int) -> None:
        script.statuses = [status]
        with pytest.raises(Refused, match=str(status)):
            await complete(face, script.url, 2)
        assert script.requests == 1

    async def test_nobody_at_the_address(self, face: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        with pytest.raises(ConnectionFailed, match="is the server running") as error:
            await complete(face, url, 1)
        assert isinstance(error.value, BackendError)
