"""Asking a loopback server for its models: what it lists, and what is said when it lists none or isn't there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from agentctx.backends.backend import BadResponse, ConnectionFailed, Refused
from agentctx.backends.served_models import first_model
from tests.real.llama_server import free_port

ANSWERS = {
    "/v1/models": (200, {"data": [{"id": "one"}, {"id": "two"}]}),
    "/empty/models": (200, {"data": []}),
    "/list/models": (200, ["one"]),
    "/locked/models": (401, {"error": "no key"}),
}
KEY = "secret"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, answer = ANSWERS.get(self.path, (404, {}))
        if self.headers["Authorization"] != f"Bearer {KEY}":
            status = 401
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_first_model_of_the_list(server: str) -> None:
    assert first_model(f"{server}/v1", KEY) == "one"


@pytest.mark.parametrize("where", ["empty", "list", "nowhere"])
def test_a_server_that_lists_no_model(server: str, where: str) -> None:
    with pytest.raises(BadResponse, match="did not list a model") as caught:
        first_model(f"{server}/{where}", KEY)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("key", [KEY, "another", None])
def test_a_server_that_wants_another_key(server: str, key: str | None) -> None:
    with pytest.raises(Refused, match="AGENTCTX_API_KEY") as caught:
        first_model(f"{server}/locked", key)
    assert "secret" not in str(caught.value)


def test_nobody_there() -> None:
    with pytest.raises(ConnectionFailed, match="is the server running"):
        first_model(f"http://127.0.0.1:{free_port()}/v1")


def test_a_password_in_the_address_stays_out_of_errors(server: str) -> None:
    address = server.replace("http://", "http://me:hidden@") + "/empty?token=hidden"
    with pytest.raises(Refused) as caught:  # it takes the key's place
        first_model(address, KEY)
    assert "hidden" not in str(caught.value)
    assert f"{server}/empty/models" in str(caught.value)
