"""The doctor before servers that answer as vLLM, SGLang and others are documented to, and before a real llama-server.

vLLM and SGLang can't run here; what their endpoints answer is taken from docs.vllm.ai ("OpenAI-Compatible Server", "Tokenizer API") and
docs.sglang.io ("SGLang Native APIs", "OpenAI APIs"), seen 2026-11-30.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from agentctx.backends.backend import ConnectionFailed, Refused
from agentctx.backends.doctor import SAMPLES, Examination, examine
from agentctx.rendering import load_renderer
from agentctx.rendering.load import load_tokenizer
from tests.cli.command import Command
from tests.real.conftest import StartServer, chat_model, start_server, tiny_model

__all__ = ["chat_model", "start_server", "tiny_model"]  # fixtures of the real servers

TOKENIZER = load_renderer("chatml").tokenizer
MODEL = "Qwen/Qwen2.5-0.5B-Instruct"


def answered(cached: Any) -> dict[str, Any]:
    return {
        "object": "chat.completion",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "Y"}, "finish_reason": "length"}
        ],
        "usage": {
            "prompt_tokens": 160,
            "completion_tokens": 1,
            "total_tokens": 161,
            "prompt_tokens_details": cached,
        },
    }


def tokenized(body: dict[str, Any]) -> dict[str, Any]:
    ids = TOKENIZER.encode(body["prompt"]).tolist()
    return {"count": len(ids), "max_model_len": 32768, "tokens": ids, "token_strs": None}


VLLM: dict[str, Any] = {
    "/version": {"version": "0.33.0"},
    "/v1/models": {
        "object": "list",
        "data": [{"id": MODEL, "object": "model", "owned_by": "vllm", "root": MODEL, "parent": None, "max_model_len": 32768}],
    },
    "/tokenize": tokenized,
    "/v1/chat/completions": answered({"cached_tokens": 144}),
}  # fmt: skip
SGLANG: dict[str, Any] = {
    "/get_model_info": {"model_path": MODEL, "tokenizer_path": MODEL, "is_generation": True},
    "/server_info": {"version": "0.5.23", "model_path": MODEL, "context_length": 32768, "page_size": 1, "enable_cache_report": True},
    "/v1/models": {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "sglang", "max_model_len": 32768}]},
    "/tokenize": tokenized,
    "/v1/chat/completions": answered({"cached_tokens": 159}),
}  # fmt: skip
OTHER: dict[str, Any] = {
    "/v1/models": {"object": "list", "data": [{"id": "m", "object": "model", "owned_by": "someone"}]},
    "/v1/chat/completions": answered({"cached_tokens": 128}),
}

Serve = Callable[[dict[str, Any]], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """``serve(answers)``: the address of a server that has these paths and no other; asks for a key when ``key`` is among them."""
    running: list[tuple[ThreadingHTTPServer, Thread]] = []

    def start(answers: dict[str, Any]) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else {}
                answer = answers.get(self.path)
                status = 200 if answer is not None else 404
                if "key" in answers and self.headers.get("Authorization") != f"Bearer {answers['key']}":
                    status, answer = 401, {"error": f"no such key: {self.headers.get('Authorization')}"}
                data = json.dumps(
                    answer(body) if callable(answer) else answer or {"detail": "Not Found"}
                ).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_POST(self) -> None:
                self.do_GET()

            def log_message(self, *_: object) -> None: ...

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        running.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server, thread in running:
        server.shutdown()
        server.server_close()
        thread.join()


def remark(found: Examination, subject: str) -> tuple[str, str, str | None]:
    (only,) = [each for each in found.remarks if each.subject == subject]
    return only.level, only.text, only.remedy


@pytest.mark.parametrize(
    ("answers", "kind", "version", "context"),
    [
        (VLLM, "vLLM", "0.33.0", 32768),
        (SGLANG, "SGLang", "0.5.23", 32768),
        (OTHER, "OpenAI-style", None, None),
    ],
    ids=["vLLM", "SGLang", "other"],
)
class TestKinds:
    def test_healthy(
        self, serve: Serve, answers: Any, kind: str, version: str | None, context: int | None
    ) -> None:
        for suffix in ("", "/", "/v1"):
            found = examine(serve(answers) + suffix)
            assert (found.kind, found.version, found.context) == (kind, version, context)
            assert found.model == answers["/v1/models"]["data"][0]["id"]
            assert found.reports_cached is True
            assert found.clean
            assert remark(found, "cached tokens")[0] == "ok"

    @pytest.mark.parametrize("details", [None, {"cached_tokens": None}, {}])
    def test_cached_tokens_that_are_not_reported(
        self, serve: Serve, answers: Any, kind: str, version: str | None, context: int | None, details: Any
    ) -> None:
        """Null is not zero: the finding names the switch of this server."""
        found = examine(serve({**answers, "/v1/chat/completions": answered(details)}))
        assert found.reports_cached is False
        level, text, remedy = remark(found, "cached tokens")
        assert (level, text) == ("finding", "are not reported")
        switch = {"vLLM": "--enable-prompt-tokens-details", "SGLang": "--enable-cache-report"}
        assert switch.get(kind, "cached_tokens") in str(remedy)
        assert not found.clean

    def test_nothing_reused(
        self, serve: Serve, answers: Any, kind: str, version: str | None, context: int | None
    ) -> None:
        found = examine(serve({**answers, "/v1/chat/completions": answered({"cached_tokens": 0})}))
        assert found.reports_cached is True
        level, text, remedy = remark(found, "cached tokens")
        assert level == "finding"
        assert "0 of 160" in text
        assert "router" in str(remedy)

    def test_nothing_is_asked_unless_wanted(
        self, serve: Serve, answers: Any, kind: str, version: str | None, context: int | None
    ) -> None:
        found = examine(serve({k: v for k, v in answers.items() if "chat" not in k}), ask=False)
        assert found.reports_cached is None
        assert found.clean


@pytest.mark.parametrize("answers", [VLLM, SGLANG], ids=["vLLM", "SGLang"])
def test_the_tokenizer_is_compared(serve: Serve, answers: Any) -> None:
    found = examine(serve(answers), tokenizer=TOKENIZER)
    assert found.tokenizer_matches is True

    def shifted(body: dict[str, Any]) -> dict[str, Any]:
        ids = tokenized(body)["tokens"]
        return {"tokens": ids[:2] + [token + 1 for token in ids[2:]]}

    wrong = examine(serve({**answers, "/tokenize": shifted}), tokenizer=TOKENIZER)
    assert wrong.tokenizer_matches is False
    level, text, _ = remark(wrong, "tokenizer")
    assert level == "finding"
    assert repr(SAMPLES[0]) in text
    assert "at token 2" in text
    without = examine(serve({k: v for k, v in answers.items() if k != "/tokenize"}), tokenizer=TOKENIZER)
    assert without.tokenizer_matches is None
    assert without.clean


def test_sglang_without_its_tree(serve: Serve) -> None:
    info = {**SGLANG["/server_info"], "disable_radix_cache": True}
    found = examine(serve({**SGLANG, "/server_info": info}))
    assert "--disable-radix-cache" in str(remark(found, "cache")[2])


def test_older_sglang(serve: Serve) -> None:
    answers = {("/get_server_info" if k == "/server_info" else k): v for k, v in SGLANG.items()}
    assert examine(serve(answers)).version == "0.5.23"


def test_a_key(serve: Serve, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "sk-secret-0123456789"
    url = serve({**VLLM, "key": key})
    with pytest.raises(Refused) as refused:
        examine(url, api_key="sk-wrong-key-012345")
    assert "sk-wrong-key" not in str(refused.value)
    assert examine(url, api_key=key).clean
    refusal = command("doctor", url)
    assert refusal.code == 3
    assert "the environment variable AGENTCTX_API_KEY" in " ".join(refusal.err.split())
    monkeypatch.setenv("AGENTCTX_API_KEY", key)
    assert command("doctor", url).code == 0


def test_nobody_there() -> None:
    with pytest.raises(ConnectionFailed, match="is the server running"):
        examine("http://127.0.0.1:1")


def test_the_command(serve: Serve, command: Command) -> None:
    """Exit codes 0, 1, 2; text and JSON."""
    good, silent = serve(VLLM), serve({**VLLM, "/v1/chat/completions": answered(None)})
    clean = command("doctor", good)
    assert clean.code == 0
    assert "vLLM 0.33.0" in clean.out
    found = command("doctor", silent, "--json")
    assert found.code == 1
    data = json.loads(found.out)
    assert (data["schema"], data["kind"], data["reports_cached"], data["clean"]) == (1, "vLLM", False, False)
    assert any("--enable-prompt-tokens-details" in (each["remedy"] or "") for each in data["remarks"])
    text = command("doctor", silent)
    assert "! cached tokens   are not reported" in text.out
    assert command("doctor").code == 2


@pytest.mark.real
def test_a_real_llama_server(
    start_server: StartServer, chat_model: Callable[[str], Path], command: Command
) -> None:
    path = chat_model("SmolLM2")
    server = start_server(path, n_parallel=2, n_ctx=2048)
    found = examine(server.url, tokenizer=load_tokenizer(str(path)))
    assert found.kind == "llama-server"
    assert (found.slots, found.context) == (2, 1024)
    assert found.reports_cached is True
    assert found.has_template is True
    assert found.tokenizer_matches is True
    assert found.clean, found.lines()
    ended = command("doctor", server.url, "--tokenizer", path, "--no-ask")
    assert ended.code == 0, ended.out + ended.err
    wrong = examine(server.url, tokenizer=TOKENIZER, ask=False)
    assert wrong.tokenizer_matches is False
    assert not wrong.clean
