"""Addresses as users write them: with and without /v1, slashes, a path of a gateway, a query, a password."""

from __future__ import annotations

import numpy as np
import pytest

from agentctx.backends.backend import Options
from agentctx.backends.doctor import examine
from agentctx.backends.http import AsyncHttpBackend, HttpBackend
from agentctx.backends.llama_server import LlamaCompletion, LlamaServer
from agentctx.backends.openai_chat import OpenAIChat
from agentctx.backends.server_address import below, endpoint, openai_base, root_of, says_openai
from agentctx.messages import Message, Request
from agentctx.rendering import Prompt
from agentctx.replaying.live import connect

from .faulty_server import APIS, Connection, FaultyServer

PROMPT = Prompt(np.zeros(1, np.int32), "", (), Request(messages=(Message(role="user", content="hi"),)))


@pytest.mark.parametrize(
    ("given", "root", "base", "openai"),
    [
        ("http://h:8080", "http://h:8080", "http://h:8080/v1", False),
        ("http://h:8080/", "http://h:8080", "http://h:8080/v1", False),
        ("http://h:8080/v1", "http://h:8080", "http://h:8080/v1", True),
        ("http://h:8080/v1/", "http://h:8080", "http://h:8080/v1", True),
        ("https://gate/models/a/v1", "https://gate/models/a", "https://gate/models/a/v1", True),
        ("https://gate/models/a/", "https://gate/models/a", "https://gate/models/a/v1", False),
        (
            "http://me:word@[::1]:1/v1?k=2",
            "http://me:word@[::1]:1?k=2",
            "http://me:word@[::1]:1/v1?k=2",
            True,
        ),
        ("http://h/v10", "http://h/v10", "http://h/v10/v1", False),
    ],
)
def test_every_way_to_write_it(given: str, root: str, base: str, openai: bool) -> None:
    assert root_of(given) == root
    assert openai_base(given) == base
    assert says_openai(given) is openai
    assert root_of(base) == root


def test_an_endpoint_keeps_the_query_at_its_end() -> None:
    assert below("http://h/v1?k=2", "/props") == "http://h/props?k=2"


@pytest.mark.parametrize(
    ("base", "path", "whole"),
    [
        ("http://h/v1", "/chat/completions", "http://h/v1/chat/completions"),
        ("http://h/v1/", "/chat/completions", "http://h/v1/chat/completions"),
        ("http://h", "/props", "http://h/props"),
        ("http://h?k=2", "/props", "http://h/props?k=2"),
        ("http://h/?k=a/", "/props", "http://h/props?k=a/"),
        ("http://h/v1?k=2&l=%2F", "/models", "http://h/v1/models?k=2&l=%2F"),
        ("http://h/v1?k=2#part", "/models", "http://h/v1/models?k=2"),
        ("http://h/v1#part", "/models", "http://h/v1/models"),
        ("http://h?k=2", "/slots/3?action=save", "http://h/slots/3?action=save&k=2"),
        ("http://h/v1/?k=a/", "", "http://h/v1?k=a/"),
        ("http://me:word@[::1]:1/v1", "/models", "http://me:word@[::1]:1/v1/models"),
    ],
)
def test_an_endpoint_below_an_address_as_it_is(base: str, path: str, whole: str) -> None:
    assert endpoint(base, path) == whole
    assert endpoint(endpoint(base, ""), path) == whole


class TestQueriesThatAreSent:
    """What stands in the query of an address (a version, a key) is sent behind each path."""

    QUERY = "api-version=2&key=a%2Fb/"

    def address(self, server: FaultyServer, path: str) -> str:
        return f"{server.url}{path}?{self.QUERY}"

    def sent(self, server: FaultyServer) -> list[str]:
        paths = [target.partition("?") for target in server.targets]
        assert {query for _, _, query in paths} == {self.QUERY}
        return [path for path, _, _ in paths]

    async def test_turns(self, server: FaultyServer) -> None:
        api = APIS["openai-chat"]
        server.script = [api.healthy] * 4
        with HttpBackend(OpenAIChat(), self.address(server, "/v1/")) as backend:
            backend.complete(PROMPT, Options())
            list(backend.stream(PROMPT, Options()))
        async with AsyncHttpBackend(OpenAIChat(), self.address(server, "/v1")) as async_backend:
            await async_backend.complete(PROMPT, Options())
            async for _ in async_backend.stream(PROMPT, Options()):
                pass
        assert self.sent(server) == ["/v1/chat/completions"] * 4

    def test_turns_of_a_llama_server(self, server: FaultyServer) -> None:
        server.script = [APIS["llama-server"].healthy]
        with HttpBackend(LlamaCompletion(), self.address(server, "")) as backend:
            backend.complete(PROMPT, Options())
        assert self.sent(server) == ["/completion"]

    def test_endpoints(self, server: FaultyServer) -> None:
        server.script = [lambda connection: connection.whole(b"{}")] * 3
        with LlamaServer(self.address(server, "")) as endpoints:
            assert endpoints.props() == {}
            assert endpoints.metrics() == "{}"
            assert endpoints.save_slot(3, "name") == {}
        server.targets[2] = server.targets[2].replace("action=save&", "")
        assert self.sent(server) == ["/props", "/metrics", "/slots/3"]

    @pytest.mark.parametrize("path", ["", "/v1"])
    def test_an_examination(self, server: FaultyServer, path: str) -> None:
        server.script = [lambda connection: connection.whole(b"{}")] * 12
        found = examine(self.address(server, path))
        assert found.url == server.url
        assert {"/props", "/v1/models", "/version", "/v1/chat/completions"} <= set(self.sent(server))

    @pytest.mark.parametrize("path", ["", "/v1"])
    def test_a_live_target(self, server: FaultyServer, path: str) -> None:
        """A server of unknown kind: asked for what a llama-server has, then for its models, then for a turn."""

        def answer(connection: Connection) -> None:
            if connection.target.startswith("/v1/chat/completions"):
                APIS["openai-chat"].healthy(connection)
            else:
                connection.whole(b'{"data": [{"id": "one"}]}')

        server.script = [answer] * 3
        with connect(self.address(server, path)) as live:
            completion = live.backend.complete(PROMPT, Options())
            assert live.name == f"{server.url}/v1"
        assert completion.message.text == "yes sir"
        assert self.sent(server) == [*["/props"][: not path], "/v1/models", "/v1/chat/completions"]
