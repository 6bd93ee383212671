"""One conversation over two real servers behind a router: with affinity it stays where its prefix is, without it the report shows the miss."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import httpx
import pytest

from agentctx.backends.adapter import Adapter
from agentctx.backends.affinity import NO_AFFINITY, SESSION_HEADER, SGLANG_GATEWAY, Affinity
from agentctx.backends.anthropic import AnthropicMessages
from agentctx.backends.backend import Options
from agentctx.backends.http import HttpBackend
from agentctx.backends.llama_server import LlamaCompletion
from agentctx.backends.openai_chat import OpenAIChat
from agentctx.caches.registry import parse_cache
from agentctx.history import History
from agentctx.rendering import load_renderer
from agentctx.session import Session, SessionParts

from .conftest import StartServer
from .tiny_gguf import write_full_attention

pytestmark = pytest.mark.real

ONE_SLOT = {"n_parallel": 1, "n_ctx": 2048, "cache_ram_mib": 0, "kv_unified": False}
TURNS = 6


class Router:
    """Passes requests on: by a hash of ``header`` where the request has it, else to one server after the other."""

    def __init__(self, servers: list[str], header: str) -> None:
        self.chosen: list[int] = []
        router = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                key = self.headers.get(header)
                turn = len(router.chosen)
                which = (zlib.crc32(key.encode()) if key else turn) % len(servers)
                router.chosen.append(which)
                body = self.rfile.read(int(self.headers["Content-Length"]))
                answer = httpx.post(servers[which] + self.path, content=body, timeout=60)
                self.send_response(answer.status_code)
                self.send_header("Content-Type", answer.headers["content-type"])
                self.send_header("Content-Length", str(len(answer.content)))
                self.end_headers()
                self.wfile.write(answer.content)

            def log_message(self, *_: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture(scope="module")
def model(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights with SmolLM2's vocabulary and template."""
    folder = tmp_path_factory.mktemp("two-servers")
    return write_full_attention(folder / "tiny.gguf", n_ctx=2048, vocabulary=smollm2_gguf)


@pytest.fixture
def routed(start_server: StartServer, model: Path) -> Iterator[Callable[[str], tuple[Router, Path]]]:
    """``routed(header)``: two servers with one slot each behind a router, and their model."""
    running: list[tuple[Router, Thread]] = []

    def start(header: str) -> tuple[Router, Path]:
        router = Router([start_server(model, **ONE_SLOT).url for _ in range(2)], header)
        thread = Thread(target=router.server.serve_forever, daemon=True)
        thread.start()
        running.append((router, thread))
        return router, model

    yield start
    for router, thread in running:
        router.server.shutdown()
        router.server.server_close()
        thread.join()


def talk(router: Router, model: Path, adapter: Adapter, conversation: str | None, path: str = "") -> Session:
    history = History("You fix bugs. " * 10)
    renderer = load_renderer(str(model))
    with HttpBackend(adapter, router.url + path) as backend:
        session = Session(SessionParts(history, renderer, parse_cache("slot")), backend)
        for turn in range(TURNS):
            history.user(f"Question {turn}: what is next?")
            session.complete(Options(max_tokens=8, temperature=0.0, conversation=conversation))
    return session


@pytest.mark.parametrize(
    "affinity", [SESSION_HEADER, SGLANG_GATEWAY], ids=["session header", "SGLang gateway"]
)
def test_with_affinity_every_turn_is_predicted(
    routed: Callable[[str], tuple[Router, Path]], affinity: Affinity
) -> None:
    router, model = routed(affinity.headers[0])
    session = talk(router, model, LlamaCompletion(affinity), "conversation-1")
    assert len(set(router.chosen)) == 1
    assert all(turn.matches_prediction for turn in session.report.turns)
    assert session.report.turns[-1].cached > session.report.turns[0].prompt


def test_without_it_the_report_shows_where_the_router_missed(
    routed: Callable[[str], tuple[Router, Path]],
) -> None:
    """Each server sees every other turn: what lies between is read again, and is the server's doing, not the client's."""
    router, model = routed("X-Session-Id")
    session = talk(router, model, LlamaCompletion(NO_AFFINITY), "conversation-1")
    assert router.chosen == [0, 1] * (TURNS // 2)
    turns = session.report.turns
    assert turns[1].cached == 0  # the other server has never seen the conversation
    for before, turn in zip(turns, turns[2:], strict=False):
        assert turn.cached is not None
        assert turn.cached < turn.predicted
        assert turn.cached == before.prompt + before.reply - 1  # what this server had seen two turns ago
        assert turn.server == turn.predicted - turn.cached
        assert turn.broken == 0
        assert turn.mismatch is not None


@pytest.mark.parametrize("adapter", ["chat", "anthropic"])
def test_other_apis_carry_the_header_too(routed: Callable[[str], tuple[Router, Path]], adapter: str) -> None:
    router, model = routed("X-Session-Id")
    made: Adapter = (
        OpenAIChat(affinity=SESSION_HEADER)
        if adapter == "chat"
        else AnthropicMessages(model="m", affinity=SESSION_HEADER)
    )
    session = talk(router, model, made, "conversation-1", "/v1" if adapter == "chat" else "")
    assert len(set(router.chosen)) == 1
    cached = [turn.cached for turn in session.report.turns]
    assert None not in cached
    assert all(count > 0 for count in cached[1:] if count is not None)
