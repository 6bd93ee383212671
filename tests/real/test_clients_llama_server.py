"""A real llama-server asked by the vendors' own clients and by our adapters: the same answer, the same counts; and one that is killed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from agentctx.backends.adapter import Adapter
from agentctx.backends.anthropic import AnthropicMessages
from agentctx.backends.backend import Completion, ConnectionFailed, Delta, Options, StreamBroken
from agentctx.backends.http import HttpBackend
from agentctx.backends.llama_server import LlamaCompletion
from agentctx.backends.openai_chat import OpenAIChat
from agentctx.backends.openai_responses import OpenAIResponses
from agentctx.caches.registry import parse_cache
from agentctx.history import History
from agentctx.messages import Params
from agentctx.rendering import Prompt, load_renderer
from agentctx.session import Session, SessionParts

from .llama_server import LlamaServer
from .tiny_gguf import write_full_attention

pytestmark = pytest.mark.real

OPTIONS = Options(max_tokens=12, temperature=0.0)
ONE_SLOT = {"n_parallel": 1, "n_ctx": 2048, "cache_ram_mib": 0, "kv_unified": False}
ADAPTERS: dict[str, tuple[Callable[[], Adapter], str]] = {
    "chat": (OpenAIChat, "/v1"),
    "responses": (OpenAIResponses, "/v1"),
    "anthropic": (AnthropicMessages, ""),
}


@pytest.fixture(scope="module")
def model(smollm2_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights with SmolLM2's vocabulary and template."""
    folder = tmp_path_factory.mktemp("clients")
    return write_full_attention(folder / "tiny.gguf", n_ctx=2048, vocabulary=smollm2_gguf)


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[LlamaServer]:
    with LlamaServer(model, **ONE_SLOT) as running:
        yield running


def by_client(name: str, url: str, body: dict[str, Any]) -> list[Any]:
    """What the vendor's client makes of the server's answer, as dictionaries: one, or one for each event."""
    create: Any
    if name == "anthropic":
        create = anthropic.Anthropic(base_url=url, api_key="k", max_retries=0).messages.create
        body = {key: value for key, value in body.items() if key != "temperature"} | {
            "extra_body": {"temperature": 0.0}
        }
    else:
        client = openai.OpenAI(base_url=url + "/v1", api_key="k", max_retries=0)
        create = client.chat.completions.create if name == "chat" else client.responses.create
    answer = create(**body)
    items = list(answer) if body.get("stream") else [answer]
    return [
        (getattr(item, "type", ""), item.model_dump(exclude_unset=True, warnings=False)) for item in items
    ]


def gist(completion: Completion) -> tuple[Any, ...]:
    usage = completion.usage
    return completion.message.text, usage.prompt, usage.cached, usage.output, completion.finish_reason


def asked(backend: HttpBackend, prompt: Prompt, stream: bool) -> Completion:
    if not stream:
        return backend.complete(prompt, OPTIONS)
    *_, last = backend.stream(prompt, OPTIONS)
    assert last.completion is not None
    return last.completion


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("name", list(ADAPTERS))
def test_client_and_adapter_agree(server: LlamaServer, model: Path, name: str, stream: bool) -> None:
    make, path = ADAPTERS[name]
    adapter = make()
    history = History("You fix bugs.", params=Params(model="m"))
    renderer = load_renderer(str(model))
    with HttpBackend(adapter, server.url + path) as backend:
        for turn in range(3):
            history.user(f"Question {turn}: what is next?")
            prompt = renderer.render(history.request())
            first = asked(backend, prompt, stream)
            second = asked(backend, prompt, stream)
            items = by_client(name, server.url, adapter.call(prompt, OPTIONS, stream=stream).body)
            if stream:
                parser = adapter.parser()
                for event, data in items:
                    parser.feed(event, data)
                theirs = parser.finish()
            else:
                theirs = adapter.completion(items[0][1])
            assert gist(theirs) == gist(second)
            # The server's rule: of an equal prompt all but the last token is reused.
            assert first.usage.prompt == second.usage.prompt == len(prompt)
            assert first.usage.cached is not None
            assert second.usage.cached == len(prompt) - 1
            assert second.usage.output is not None
            history.append(second.message)


def test_a_server_that_is_killed_in_its_reply(model: Path) -> None:
    """The half reply is in the error, not in the history; the session goes on when a server is there again."""
    renderer = load_renderer(str(model))
    history = History("You fix bugs.")
    history.user("Count to a thousand.")
    with (
        LlamaServer(model, **ONE_SLOT) as server,
        HttpBackend(LlamaCompletion(), server.url, retries=0) as backend,
    ):
        session = Session(SessionParts(history, renderer, parse_cache("slot")), backend)
        stream = session.stream(Options(max_tokens=1500, temperature=1.0, seed=1))
        texts = [piece.text for piece in itertools.islice(stream, 3) if isinstance(piece, Delta)]
        before = history.messages
        server.stop()
        with pytest.raises(StreamBroken, match="broke off the reply") as broken:
            texts.extend(piece.text for piece in stream if isinstance(piece, Delta))
        assert broken.value.partial.startswith("".join(texts))
        assert history.messages == before
        with pytest.raises(ConnectionFailed):
            session.complete(OPTIONS)
        assert history.messages == before
        assert session.report.turns == ()
        server.start()
        backend.base_url = server.url
        answer = session.complete(OPTIONS)
        assert answer.report.matches_prediction
        assert history.messages == (*before, answer.message)
