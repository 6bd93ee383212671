"""No secret stands in an error, whoever repeats it: each adapter, whole and streamed, each way in which a turn can fail.

A loopback server knows everything that it was sent, and says all of it in its answers, in each way to write it.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentctx.backends.adapter import Adapter
from agentctx.backends.affinity import SESSION_HEADER, Affinity
from agentctx.backends.anthropic import AnthropicMessages
from agentctx.backends.backend import (
    BackendError,
    BadResponse,
    ConnectionFailed,
    Options,
    Refused,
    StreamBroken,
    TimedOut,
)
from agentctx.backends.doctor import examine
from agentctx.backends.http import AsyncHttpBackend, HttpBackend
from agentctx.backends.llama_server import LlamaCompletion, LlamaServer
from agentctx.backends.openai_chat import OpenAIChat
from agentctx.backends.openai_responses import OpenAIResponses
from agentctx.backends.secrecy import secrets_in, without
from agentctx.caches.registry import parse_cache
from agentctx.errors import AgentctxError, UsageError
from agentctx.history import History
from agentctx.messages import Params
from agentctx.rendering import Prompt, load_renderer
from agentctx.replaying.live import connect
from agentctx.session import Session, SessionParts

from .faulty_server import APIS, Answer, Api, Connection, Event, FaultyServer, sse

RENDERER = load_renderer("chatml")
ADAPTERS: dict[str, Callable[[Affinity], Adapter]] = {
    "openai-chat": lambda affinity: OpenAIChat(affinity=affinity),
    "openai-responses": lambda affinity: OpenAIResponses(affinity=affinity),
    "anthropic": lambda affinity: AnthropicMessages(affinity=affinity),
    "llama-server": LlamaCompletion,
}

BEARER = "sk-bearer/0123+4567\"89\\ab='cd"
API_KEY = "xk-apikey-" + "0123456789" * 9  # longer than any excerpt
COOKIE = "ck-cookie~0123456789"
TRACE = "tr-header-of-the-caller-0123"
CONVERSATION = "cv-conversation-0123"
PASSWORD = "pw:pass/word?0123 456"
IN_QUERY = "qk-query+/=&0123456789"
BASIC = base64.b64encode(f"me:{PASSWORD}".encode()).decode()
SECRETS = (BEARER, API_KEY, COOKIE, TRACE, CONVERSATION, PASSWORD, IN_QUERY, BASIC)
HEADERS = {
    "Authorization": f"Bearer {BEARER}",
    "x-api-key": API_KEY,
    "Cookie": f"lang=de; sid={COOKIE}",
    "X-Trace": TRACE,
}


def written(secret: str) -> set[str]:
    """Each way in which a secret may come back."""
    ways = {secret, quote(secret), quote(secret, safe=""), quote_plus(secret), json.dumps(secret)[1:-1]}
    lower = re.sub("%..", lambda code: code[0].lower(), quote(secret, safe=""))
    return ways | {lower, repr(secret)[1:-1]}


def echo(first: int) -> str:
    """All that was sent, from one secret on: excerpts show the beginning."""
    return " ".join(way for secret in SECRETS[first:] + SECRETS[:first] for way in sorted(written(secret)))


def said(error: BaseException) -> str:
    """All that an error says of itself and of what led to it."""
    links: list[BaseException] = [error]
    for link in links:
        links += [
            behind
            for behind in (link.__cause__, link.__context__)
            if behind is not None and behind not in links
        ]
    return "\n".join(
        [*traceback.format_exception(error), *(f"{link} {link!r} {link.args}" for link in links)]
    )


def silent(text: str, *secrets: str) -> None:
    """None of the secrets stands in the text, and no beginning of one: an excerpt ends anywhere."""
    begun = {way[:10] for secret in secrets or SECRETS for way in written(secret)}
    assert [begin for begin in begun if begin in text] == []


def address(server: FaultyServer, path: str = "/v1") -> str:
    host = server.url.removeprefix("http://")
    return f"http://me:{quote(PASSWORD, safe='')}@{host}{path}?api-version=2&key={quote(IN_QUERY, safe='')}"


def prompt() -> Prompt:
    history = History("Be kind.", params=Params(model="m"))
    history.user("May I?")
    return RENDERER.render(history.request())


async def ask(server: FaultyServer, adapter: str, face: str, mode: str, timeout: float) -> None:
    """One turn with every secret on board."""
    options = Options(conversation=CONVERSATION)
    made = ADAPTERS[adapter](SESSION_HEADER)
    how: dict[str, Any] = {"headers": HEADERS, "timeout": timeout, "retries": 0}
    if face == "sync":
        with HttpBackend(made, address(server), **how) as backend:
            if mode == "whole":
                backend.complete(prompt(), options)
            else:
                list(backend.stream(prompt(), options))
        return
    async with AsyncHttpBackend(made, address(server), **how) as async_backend:
        if mode == "whole":
            await async_backend.complete(prompt(), options)
        else:
            async with aclosing(async_backend.stream(prompt(), options)) as deltas:
                async for _ in deltas:
                    pass


# -- ways to fail, each of which repeats everything ---------------------------------------------------------


Fault = Callable[[Api, str], Answer]


def refused(status: str) -> Fault:
    return lambda api, all_of_it: (
        lambda connection: connection.whole(all_of_it.encode(), status, "text/plain")
    )


def reason(api: Api, all_of_it: str) -> Answer:
    return lambda connection: connection.whole(b"{}", f"403 {all_of_it}")


def elsewhere(api: Api, all_of_it: str) -> Answer:
    return lambda connection: connection.whole(
        all_of_it.encode(), "307 Elsewhere", Location=f"/?{quote(all_of_it)}"
    )


def no_json(api: Api, all_of_it: str) -> Answer:
    return lambda connection: connection.whole(b"{" + all_of_it.encode())


def no_text(api: Api, all_of_it: str) -> Answer:
    return lambda connection: connection.whole(b'{"a": "\xff' + all_of_it.encode() + b'"}')


def kind(api: Api, all_of_it: str) -> Answer:
    return lambda connection: connection.whole(b"", kind=f"text/{all_of_it}")


def a_list(api: Api, all_of_it: str) -> Answer:
    return lambda connection: connection.whole(json.dumps([all_of_it]).encode())


def another_shape(api: Api, all_of_it: str) -> Answer:
    """Where a good reply has its role and its text, or the items of it, what was sent stands instead."""

    def spoilt(value: object, name: str = "") -> object:
        if name == "role":
            return all_of_it
        if name in ("content", "output"):
            return [all_of_it] if isinstance(value, list) else {all_of_it: SECRETS}
        if isinstance(value, dict):
            return {name: spoilt(part, name) for name, part in value.items()}
        return [spoilt(part) for part in value] if isinstance(value, list) else value

    return lambda connection: connection.whole(json.dumps(spoilt(api.body)).encode())


def status_line(api: Api, all_of_it: str) -> Answer:
    return lambda connection: connection.raw.sendall(f"HTTP/1.1 {all_of_it}\r\n\r\n".encode())


def header_line(api: Api, all_of_it: str) -> Answer:
    return lambda connection: connection.raw.sendall(f"HTTP/1.1 200 OK\r\n{all_of_it}\r\n\r\n".encode())


def encoding(api: Api, all_of_it: str) -> Answer:
    return lambda connection: connection.whole(
        all_of_it.encode(), kind="text/event-stream", Content_Encoding="gzip"
    )


def silence(api: Api, all_of_it: str) -> Answer:
    return api.stalls_at_once


def hang_up(api: Api, all_of_it: str) -> Answer:
    return api.hangs_up


def cut_body(api: Api, all_of_it: str) -> Answer:
    def answer(connection: Connection) -> None:
        connection.head(Content_Type="application/json", Content_Length="100000")
        connection.raw.sendall(b"{" + all_of_it.encode())
        connection.reset()

    return answer


def events(*sent: str | Event, reset: bool = False) -> Fault:
    """Two good events, these with all that was sent in the place of ECHO, and the end."""

    def of(api: Api, all_of_it: str) -> Answer:
        def answer(connection: Connection) -> None:
            connection.events(list(api.events[:2]))
            for event in sent:
                if isinstance(event, str):
                    data = f"data: {event.replace(ECHO, all_of_it)}\n\n".encode()
                else:
                    data = sse(event).replace(ECHO.encode(), json.dumps(all_of_it)[1:-1].encode())
                connection.chunk(data)
            if reset:
                connection.reset()
            else:
                connection.raw.sendall(b"0\r\n\r\n")

        return answer

    return of


ECHO = "ECHO"
ERROR = {"type": "error", "error": {"type": f"no {ECHO}", "message": f"bad key {ECHO}"}}
WHOLE: dict[str, tuple[Fault, type[AgentctxError]]] = {
    "400": (refused("400 Bad Request"), Refused),
    "401": (refused("401 Unauthorized"), Refused),
    "503": (refused("503 Busy"), Refused),
    "reason": (reason, Refused),
    "redirect": (elsewhere, Refused),
    "status line": (status_line, ConnectionFailed),
    "header line": (header_line, ConnectionFailed),
    "silence": (silence, TimedOut),
    "hang-up": (hang_up, ConnectionFailed),
    "no JSON": (no_json, BadResponse),
    "no text": (no_text, BadResponse),
    "kind": (kind, BadResponse),
    "list": (a_list, BadResponse),
    "another shape": (another_shape, BadResponse),
    "encoding": (encoding, BadResponse),
    "cut": (cut_body, StreamBroken),
}
STREAMED: dict[str, tuple[Fault, type[AgentctxError]]] = {
    **{
        name: WHOLE[name]
        for name in ("400", "reason", "status line", "silence", "hang-up", "kind", "encoding")
    },
    "no stream": (no_json, BadResponse),
    "error event": (events(("error", ERROR)), StreamBroken),
    "error text": (events((None, {"type": "error", "error": {"message": ECHO}})), StreamBroken),
    "malformed": (events(f"bad key {ECHO}"), BadResponse),
    **{f"excerpt from {at}": (events("x" * at + ECHO), BadResponse) for at in (0, 40, 60, 69, 79)},
    "quoted": (events(f"{BEARER} {json.dumps(BEARER)}"), BadResponse),
    "list": (events((None, f'["{ECHO}"]')), BadResponse),
    "deep": (events("[" * 200_000), BadResponse),
    "cut": (events(reset=True), StreamBroken),
    "ended": (events(), StreamBroken),
}
CASES = [("whole", name) for name in WHOLE] + [("stream", name) for name in STREAMED]


@pytest.mark.parametrize("face", ["sync", "async"])
@pytest.mark.parametrize(("mode", "fault"), CASES, ids=[" ".join(case) for case in CASES])
@pytest.mark.parametrize("adapter", list(APIS))
async def test_no_error_repeats_a_secret(
    server: FaultyServer, adapter: str, face: str, mode: str, fault: str
) -> None:
    make, error = (WHOLE if mode == "whole" else STREAMED)[fault]
    first = 2 * list(APIS).index(adapter) + (face == "async")
    server.script = [make(APIS[adapter], echo(first))]
    with pytest.raises(error) as failure:
        await ask(server, adapter, face, mode, 0.2 if fault == "silence" else 5.0)
    assert type(failure.value) is error
    silent(said(failure.value))
    sent = server.headers[0]
    assert sent["authorization"] == f"Basic {BASIC}"  # the password in the address takes the key's place
    assert (sent["x-api-key"], sent["x-trace"], sent["x-session-id"]) == (API_KEY, TRACE, CONVERSATION)
    assert sent["cookie"] == HEADERS["Cookie"]
    assert server.targets[0].endswith(f"?api-version=2&key={quote(IN_QUERY, safe='')}")


@pytest.mark.parametrize("secret", [TRACE, COOKIE, PASSWORD, BASIC])
@pytest.mark.parametrize("adapter", list(APIS))
async def test_what_a_client_of_the_callers_adds(server: FaultyServer, adapter: str, secret: str) -> None:
    """Its headers, its cookies and its auth, which becomes a header only when it is sent."""
    server.script = [refused("403 Forbidden")(APIS[adapter], echo(SECRETS.index(secret)))]
    with (
        httpx.Client(headers={"x-trace": TRACE}, cookies={"sid": COOKIE}, auth=("me", PASSWORD)) as client,
        HttpBackend(ADAPTERS[adapter](SESSION_HEADER), server.url, client=client) as backend,
    ):
        with pytest.raises(Refused, match=r"\*\*\*") as failure:
            backend.complete(prompt(), Options())
        silent(said(failure.value), TRACE, COOKIE, PASSWORD, BASIC)
        assert server.headers[0]["authorization"] == f"Basic {BASIC}"


@pytest.mark.parametrize("way", ["whole", "stream"])
def test_neither_report_nor_recording_repeats_it(server: FaultyServer, tmp_path: Path, way: str) -> None:
    """A session fails in each way, goes on, and is written down."""
    path = tmp_path / "history.jsonl"
    api = APIS["openai-chat"]
    cases = WHOLE if way == "whole" else STREAMED
    with (
        HttpBackend(OpenAIChat("m"), address(server), headers=HEADERS, timeout=0.2, retries=0) as backend,
        History.open(path, "Be kind.") as history,
    ):
        history.user("May I?")
        session = Session(SessionParts(history, RENDERER, parse_cache("paged:16")), backend)

        def turn() -> None:
            if way == "whole":
                session.complete()
            else:
                list(session.stream())

        for number, (make, error) in enumerate(cases.values()):
            server.script = [make(api, echo(number % len(SECRETS)))]
            with pytest.raises(error):
                turn()
        server.script = [api.healthy]
        turn()
        assert session.report.turns[0].cached == 16
        silent(repr(session) + repr(backend) + repr(session.report) + path.read_text())


@pytest.mark.parametrize("mode", ["whole", "stream"])
@pytest.mark.parametrize("face", ["sync", "async"])
async def test_logs_name_none(
    server: FaultyServer, caplog: pytest.LogCaptureFixture, face: str, mode: str
) -> None:
    """Whatever level they are at: httpx logs each request's address, httpcore each step."""
    caplog.set_level(logging.DEBUG)
    server.script = [refused("503 Busy")(APIS["openai-chat"], echo(0)), APIS["openai-chat"].healthy]
    with pytest.raises(Refused):
        await ask(server, "openai-chat", face, mode, 5.0)
    await ask(server, "openai-chat", face, mode, 5.0)
    server.script = [lambda connection: connection.whole(b"{}")]
    with LlamaServer(address(server, ""), api_key=BEARER) as endpoints:
        endpoints.props()
    said_at_info = [record.getMessage() for record in caplog.records if record.name == "httpx"]
    assert [line for line in said_at_info if "/props " in line] != []
    assert len(said_at_info) == 3
    silent(caplog.text)


# -- the endpoints beside the completion --------------------------------------------------------------------


OF_ENDPOINTS = (BEARER, PASSWORD, IN_QUERY, BASIC)


@pytest.mark.parametrize("call", ["props", "metrics", "slots"])
@pytest.mark.parametrize(
    "fault",
    ["400", "401", "503", "reason", "redirect", "status line", "silence", "hang-up", "no JSON", "no text", "list", "encoding"],
)  # fmt: skip
def test_the_endpoints_of_a_llama_server(server: FaultyServer, call: str, fault: str) -> None:
    make, error = WHOLE[fault]
    first = SECRETS.index(OF_ENDPOINTS[("props", "metrics", "slots").index(call)])
    server.script = [make(APIS["llama-server"], echo(first))]
    with LlamaServer(
        address(server, ""), api_key=BEARER, timeout=0.2 if fault == "silence" else 5.0
    ) as endpoints:
        if call == "metrics" and fault in ("no JSON", "no text", "list"):
            assert "pw%3Apass" in endpoints.metrics()  # text, and taken as such
            return
        if call == "slots" and fault == "list":
            assert list(endpoints.slots()) == [echo(first)]
            return
        with pytest.raises(error) as failure:
            getattr(endpoints, call)()
        assert type(failure.value) is error
        silent(said(failure.value) + repr(endpoints), *OF_ENDPOINTS)
    assert server.targets[0] == f"/{call}?api-version=2&key={quote(IN_QUERY, safe='')}"


@pytest.mark.parametrize("status", [404, 501])
def test_metrics_that_are_off(server: FaultyServer, status: int) -> None:
    server.script = [lambda connection: connection.whole(echo(5).encode(), f"{status} No", "text/plain")]
    with (
        LlamaServer(address(server)) as endpoints,
        pytest.raises(Refused, match="start it with --metrics") as failure,
    ):
        endpoints.metrics()
    assert failure.value.status == status
    silent(said(failure.value), PASSWORD, IN_QUERY, BASIC)


@pytest.mark.parametrize("first", [SECRETS.index(secret) for secret in OF_ENDPOINTS])
def test_an_examination_repeats_none(server: FaultyServer, first: int) -> None:
    server.script = [lambda connection: connection.whole(echo(first).encode(), "400 No", "text/plain")] * 12
    found = examine(address(server), api_key=BEARER)
    silent("\n".join(found.lines()) + json.dumps(found.to_json()), *OF_ENDPOINTS)
    assert all(target.endswith(quote(IN_QUERY, safe="")) for target in server.targets)
    assert len(server.targets) > 4


# -- what is refused before anything is sent ----------------------------------------------------------------

SPOILT = [
    "{}\n",
    "{}\r\n",
    "{}\r\nX-Evil: 1",
    "{} ",
    "{}\t",
    "{}\0",
    "{}\x7f",
    "{}ü",
    "{}\ud800",
    "{}\u2028",
]


@pytest.mark.parametrize("spoilt", SPOILT)
def test_a_key_that_no_header_can_carry(spoilt: str) -> None:
    value = spoilt.format(BEARER)
    makers: list[Callable[[], object]] = [
        lambda: HttpBackend(OpenAIChat(), "http://h", headers={"x-api-key": value}),
        lambda: AsyncHttpBackend(OpenAIChat(), "http://h", headers={"x-api-key": value}),
        lambda: HttpBackend(OpenAIChat(), "http://h", headers={value: "x"}),
        lambda: LlamaServer("http://h", api_key=value),
        lambda: examine("http://h", api_key=value),
    ]
    for make in makers:
        with pytest.raises(UsageError, match="header") as failure:
            make()
        silent(said(failure.value))


def test_a_spoilt_header_of_a_client_of_the_callers(server: FaultyServer) -> None:
    """Found only when it is sent; it isn't tried again."""
    with (
        httpx.Client(headers={"x-api-key": f"{API_KEY}\n"}) as client,
        HttpBackend(OpenAIChat(), server.url, client=client) as backend,
        pytest.raises(UsageError, match="can't be sent") as failure,
    ):
        backend.complete(prompt(), Options())
    silent(said(failure.value))
    assert server.requests == []


def test_a_spoilt_header_of_an_adapter(server: FaultyServer) -> None:
    adapter = AnthropicMessages("m", version="2023-06-01\n")
    with (
        HttpBackend(adapter, server.url) as backend,
        pytest.raises(UsageError, match="header anthropic-version"),
    ):
        backend.complete(prompt(), Options())


@pytest.mark.parametrize(
    "url",
    [
        f"http://me:{PASSWORD}@h/v1",
        f"http://me:{BEARER}@h:port/v1",
        f"htp://me:{BEARER}@h",
        f"http://me:{API_KEY}@",
        f"//me:{API_KEY}@h",
        f"http://me:{API_KEY}@[::1",
        f"http://me:{API_KEY}@[v1.x]/v1",
        f"http://h/v1?key={API_KEY}\n",
        f"http://\u2100?key={API_KEY}",
        f"http://h/\ud800?key={API_KEY}",
    ],
)
def test_an_address_that_is_none(url: str) -> None:
    for make in (
        lambda: HttpBackend(OpenAIChat(), url),
        lambda: AsyncHttpBackend(OpenAIChat(), url),
        lambda: LlamaServer(url),
        lambda: connect(url).__enter__(),
    ):
        with pytest.raises(UsageError, match="http://") as failure:
            make()
        silent(said(failure.value))


@pytest.mark.parametrize("extra", [{"x": {1, 2}}, {"x": float("nan")}, {"x": "\ud800"}])
def test_a_body_that_is_no_json(server: FaultyServer, extra: dict[str, object]) -> None:
    with (
        HttpBackend(OpenAIChat(), address(server), headers=HEADERS) as backend,
        pytest.raises(UsageError, match="can't be written") as failure,
    ):
        backend.complete(prompt(), Options(extra=extra))
    silent(said(failure.value))


@pytest.mark.parametrize("name", ["füß-日本", " spaces ", "two\r\nlines", "\ud800", "", "a/b c%41"])
def test_any_name_of_a_conversation_goes_into_a_header(server: FaultyServer, name: str) -> None:
    server.script = [APIS["openai-chat"].healthy]
    with HttpBackend(OpenAIChat("m", affinity=SESSION_HEADER), server.url) as backend:
        backend.complete(prompt(), Options(conversation=name))
    sent = server.headers[0]["x-session-id"]
    assert sent == quote(name, safe="/%", errors="surrogatepass")
    assert "x-evil" not in server.headers[0]


# -- masking by itself --------------------------------------------------------------------------------------

WORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=60)


def places(secret: str) -> Iterator[tuple[str, ...]]:
    """What was sent, wherever the secret can stand."""
    yield secrets_in({"Authorization": f"Bearer {secret}"})
    yield secrets_in({"x-api-key": secret})
    yield secrets_in({"X-Anything": secret})
    yield secrets_in({"Authorization": "Basic " + base64.b64encode(f"me:{secret}".encode()).decode()})
    yield secrets_in({}, f"http://me:{quote(secret, safe='')}@h/v1")
    yield secrets_in({}, f"http://{quote(secret, safe='')}@h/v1")
    yield secrets_in({}, f"http://h/v1?a=1&b={quote(secret, safe='')}#c")


@given(WORDS, st.data())
def test_a_secret_is_masked_in_each_form_and_wherever_it_is_cut(secret: str, data: st.DataObject) -> None:
    for known in places(secret):
        way = data.draw(st.sampled_from(sorted(written(secret))))
        cut = data.draw(st.integers(min(8, len(way)), len(way)))
        assert without(known, f"\n{way[:cut]}") == "\n***"
        assert without(known, f"\n{way}\n{way}\n") == "\n***\n***\n"


@given(WORDS.filter(lambda word: not set(word) & set(';, "=')))
def test_values_of_cookies(secret: str) -> None:
    known = secrets_in({"Cookie": f"lang=de; sid={secret}; last=1"})
    assert without(known, f"\n{secret}\n") == "\n***\n"


@pytest.mark.parametrize(
    ("headers", "url", "text"),
    [
        ({"Accept": "application/json", "User-Agent": "python-httpx"}, "", "no application/json for python-httpx"),
        ({}, "http://h/v1?api-version=2", "2 of 22 tokens"),
        ({"Authorization": "Bearer k"}, "", "asked twice, keys unknown"),
        ({"X-Request": "short"}, "", "a short text"),
    ],
)  # fmt: skip
def test_what_is_no_secret_stays(headers: dict[str, str], url: str, text: str) -> None:
    assert without(secrets_in(headers, url), text) == text


def test_a_short_key_is_masked_where_it_stands_alone() -> None:
    known = secrets_in({"Authorization": "Bearer none"}, "http://me:pw@h/?key=abc")
    assert without(known, "none of (pw), 'abc': nonesuch abcd") == "*** of (***), '***': nonesuch abcd"


def test_a_secret_that_begins_another() -> None:
    known = secrets_in({"a-key": "0123456789", "b-key": "0123456789/abc"})
    assert without(known, "0123456789/abc, 0123456789, 012345678x 0123456") == "***, ***, ***x 0123456"


def test_errors_of_a_backend_stay_what_they_are(server: FaultyServer) -> None:
    """Causes that tell nothing are kept."""
    server.script = [APIS["openai-chat"].hangs_up]
    with (
        HttpBackend(OpenAIChat(), server.url, headers=HEADERS, retries=0) as backend,
        pytest.raises(BackendError) as failure,
    ):
        backend.complete(prompt(), Options())
    assert isinstance(failure.value.__cause__, httpx.RemoteProtocolError)
