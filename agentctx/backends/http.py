"""HTTP transports, sync and async: retries, timeouts, streaming; the adapters decide what is said.

Retried: connections that could not be made or broke before the first byte of an answer, and the statuses 429, 503 and 529
(Anthropic's "overloaded"), after ``Retry-After`` or with a growing pause; a server that asks for more than a minute is left alone.
Nothing is retried after silence, or once an answer has begun.

A connection that breaks after the request was sent says nothing of what the server did: mostly it was an idle one that the server
was about to close, but the turn may have run, and been paid for. So that no turn runs twice unseen, ``Completion.unanswered`` counts
these requests, and an error that ends the turn names their number; ``retries=0`` sends once.

Errors name the address without its user and query, no header, and nothing of either that a server repeats.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from dataclasses import replace
from typing import Any

import httpx
from httpx_sse import EventSource, ServerSentEvent

from agentctx.backends.adapter import Adapter, Call, StreamParser
from agentctx.backends.backend import (
    BackendError,
    BadResponse,
    Completion,
    ConnectionFailed,
    Delta,
    Options,
)
from agentctx.backends.http_errors import NEVER_SENT, failed, refusal
from agentctx.backends.http_request import built
from agentctx.backends.secrecy import discreet, secrets_in, shown
from agentctx.backends.server_address import endpoint, need_address, need_headers
from agentctx.errors import AgentctxError, InputError
from agentctx.rendering.prompt import Prompt

_RETRIED = (429, 503, 529)
_LONGEST_PAUSE_S = 60.0


def _json_body(response: httpx.Response, url: str) -> Mapping[str, Any]:
    kind = response.headers.get("content-type", "").partition(";")[0].strip()
    try:
        body = response.json()
    except (ValueError, RecursionError):
        raise BadResponse(f"{url} answered with {kind or 'no content type'}, not with JSON") from None
    if not isinstance(body, Mapping):
        raise BadResponse(f"{url} answered with a JSON {type(body).__name__}, not an object")
    return body


def _event_data(event: ServerSentEvent, url: str) -> Mapping[str, Any] | None:
    """The JSON of one event; ``None`` for the end marker of OpenAI-style streams and for empty keep-alives."""
    if not event.data or event.data == "[DONE]":
        return None
    try:
        data = json.loads(event.data)
    except (ValueError, RecursionError):
        raise BadResponse(f"{url} sent a malformed stream event: {event.data[:80]!r}") from None
    if not isinstance(data, Mapping):
        raise BadResponse(f"{url} sent a stream event that is no JSON object: {event.data[:80]!r}")
    return data


class _Shared:
    """What both transports know: the adapter, the address and the limits."""

    def __init__(
        self,
        adapter: Adapter,
        base_url: str,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 600.0,
        connect_timeout: float = 10.0,
        retries: int = 2,
    ) -> None:
        need_address(base_url)
        self.adapter = adapter
        need_headers(headers or {})
        self.base_url = endpoint(base_url, "")
        self._headers = dict(headers or {})
        self._timeout = httpx.Timeout(timeout, connect=connect_timeout)
        self._retries = retries

    @property
    def name(self) -> str:
        return self.adapter.name

    @property
    def takes_tokens(self) -> bool:
        return self.adapter.takes_tokens

    def __repr__(self) -> str:  # headers may hold keys: they never reach a log
        return f"{type(self).__name__}({self.adapter.name}, {shown(self.base_url)})"


class _Exchange:
    """One call on its way: what was sent last, and how often.

    ``unanswered``: after how many requests the connection broke without a byte of an answer, and the call was sent again.
    """

    def __init__(self, backend: _Shared, client: httpx.Client | httpx.AsyncClient, call: Call) -> None:
        need_headers(call.headers)
        self._whole_url = endpoint(backend.base_url, call.path)
        self.url = shown(self._whole_url)
        self.unanswered = 0
        self._backend = backend
        self._client = client
        self._call = call
        self._tries = 0
        self._request: httpx.Request | None = None

    def request(self) -> httpx.Request:
        """The request to send now; a new one each time, with the cookies that came with a refusal."""
        backend, call = self._backend, self._call
        self._request = built(
            self._client,
            "POST",
            self._whole_url,
            call.body,
            headers={**backend._headers, **call.headers},
            timeout=backend._timeout,
        )
        return self._request

    def _secrets(self) -> tuple[str, ...]:
        # A client's own headers, its auth and a password in the address are headers only of what was sent.
        sent = {} if self._request is None else self._request.headers
        return secrets_in(self._backend._headers, self._whole_url) + secrets_in(sent)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """What passes names no secret, and says how often the turn may have run before."""
        with discreet(self._secrets):
            try:
                yield
            except BackendError as error:
                if self.unanswered:
                    times = "once" if self.unanswered == 1 else f"{self.unanswered} times"
                    note = f"sent before and not answered: {times}, and the server may have run it"
                    error.args = (f"{error}; {note}",)
                raise

    def failed(self, error: httpx.RequestError, partial: str | None = None) -> AgentctxError:
        """The documented error for a transport error; ``partial`` is the reply so far once it had begun."""
        return failed(error, self.url, self._backend._timeout.read, partial)

    def pause_after_error(self, error: httpx.RequestError) -> float:
        """Seconds to wait before a request that never got an answer is made again, or the error that ends it."""
        failure = self.failed(error)
        if not isinstance(failure, ConnectionFailed) or self._tries >= self._backend._retries:
            raise failure from error
        if not isinstance(error, NEVER_SENT):
            self.unanswered += 1
        return self._pause(None)

    def pause_after_refusal(self, response: httpx.Response) -> float:
        """The same for an answer with an error status; its body must have been read."""
        refused = refusal(response, self.url)
        too_long = refused.retry_after is not None and refused.retry_after > _LONGEST_PAUSE_S
        if refused.status not in _RETRIED or self._tries >= self._backend._retries or too_long:
            raise refused
        return self._pause(refused.retry_after)

    def _pause(self, retry_after: float | None) -> float:
        self._tries += 1
        return min(_LONGEST_PAUSE_S, 0.5 * 2 ** (self._tries - 1) if retry_after is None else retry_after)

    def finished(self, completion: Completion, started: float, first: float | None = None) -> Completion:
        """The completion with what the transport knows of the turn; ``started`` is a time of ``perf_counter``."""
        seconds = time.perf_counter() - started
        return replace(completion, unanswered=self.unanswered, seconds=seconds, first_token_seconds=first)


@contextmanager
def _understood(api: str, url: str) -> Iterator[None]:
    """Whatever an answer of another shape makes the adapter trip over becomes the error that says so."""
    try:
        yield
    except (InputError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise BadResponse(
            f"{url} answered with what is no {api} answer: {type(error).__name__}: {error}"
        ) from error


class _Reply:
    """The parts of a streamed reply as they arrive, and the clock beside them."""

    def __init__(self, adapter: Adapter, exchange: _Exchange) -> None:
        self._api = adapter.name
        self._parser: StreamParser = adapter.parser()
        self._exchange = exchange
        self._url = exchange.url
        self._started = time.perf_counter()
        self._first: float | None = None
        self.text = ""

    def take(self, event: ServerSentEvent) -> str:
        data = _event_data(event, self._url)
        if data is None:
            return ""
        with _understood(self._api, self._url):
            text = self._parser.feed(event.event, data)
            self.text += text
        if text and self._first is None:
            self._first = time.perf_counter() - self._started
        return text

    def finish(self) -> Completion:
        with _understood(self._api, self._url):
            completion = self._parser.finish()
        return self._exchange.finished(completion, self._started, self._first)


class HttpBackend(_Shared):
    """A Backend over HTTP. Close it, or use it as a context manager.

    ``timeout`` is the longest silence in seconds, ``retries`` how often a refused, unmade or unanswered request is made again.
    ``client`` is an httpx client of the caller's own (its transport is used as it is).
    """

    def __init__(
        self, adapter: Adapter, base_url: str, *, client: httpx.Client | None = None, **limits: Any
    ) -> None:
        super().__init__(adapter, base_url, **limits)
        self._client = client or httpx.Client()
        self._owned = client is None

    def __enter__(self) -> HttpBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._owned:
            self._client.close()

    @contextmanager
    def _answer(self, exchange: _Exchange) -> Iterator[httpx.Response]:
        """The response to a call, its headers read, its status good."""
        with exchange.errors():
            while True:
                try:
                    response = self._client.send(exchange.request(), stream=True)
                    if not response.is_success:
                        with closing(response):
                            response.read()
                except httpx.RequestError as error:
                    pause = exchange.pause_after_error(error)
                else:
                    if response.is_success:
                        break
                    pause = exchange.pause_after_refusal(response)
                time.sleep(pause)
            with closing(response):
                yield response

    def complete(self, prompt: Prompt, options: Options) -> Completion:
        exchange = _Exchange(self, self._client, self.adapter.call(prompt, options, stream=False))
        started = time.perf_counter()
        with self._answer(exchange) as response:
            try:
                response.read()
            except httpx.RequestError as error:
                raise exchange.failed(error, "") from error
            with _understood(self.adapter.name, exchange.url):
                completion = self.adapter.completion(_json_body(response, exchange.url))
        return exchange.finished(completion, started)

    def stream(self, prompt: Prompt, options: Options) -> Generator[Delta, None, None]:
        exchange = _Exchange(self, self._client, self.adapter.call(prompt, options, stream=True))
        reply = _Reply(self.adapter, exchange)
        with self._answer(exchange) as response:
            try:
                for event in EventSource(response).iter_sse():
                    text = reply.take(event)
                    if text:
                        yield Delta(text)
            except httpx.RequestError as error:
                raise exchange.failed(error, reply.text) from error
            completion = reply.finish()
        yield Delta(completion=completion)


class AsyncHttpBackend(_Shared):
    """The same for asyncio. Cancelling a task closes its connection, which ends the turn on the server."""

    def __init__(
        self, adapter: Adapter, base_url: str, *, client: httpx.AsyncClient | None = None, **limits: Any
    ) -> None:
        super().__init__(adapter, base_url, **limits)
        self._client = client or httpx.AsyncClient()
        self._owned = client is None

    async def __aenter__(self) -> AsyncHttpBackend:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        if self._owned:
            await self._client.aclose()

    @asynccontextmanager
    async def _answer(self, exchange: _Exchange) -> AsyncIterator[httpx.Response]:
        with exchange.errors():
            while True:
                try:
                    response = await self._client.send(exchange.request(), stream=True)
                    if not response.is_success:
                        async with aclosing(response):
                            await response.aread()
                except httpx.RequestError as error:
                    pause = exchange.pause_after_error(error)
                else:
                    if response.is_success:
                        break
                    pause = exchange.pause_after_refusal(response)
                await asyncio.sleep(pause)
            async with aclosing(response):
                yield response

    async def complete(self, prompt: Prompt, options: Options) -> Completion:
        exchange = _Exchange(self, self._client, self.adapter.call(prompt, options, stream=False))
        started = time.perf_counter()
        async with self._answer(exchange) as response:
            try:
                await response.aread()
            except httpx.RequestError as error:
                raise exchange.failed(error, "") from error
            with _understood(self.adapter.name, exchange.url):
                completion = self.adapter.completion(_json_body(response, exchange.url))
        return exchange.finished(completion, started)

    async def stream(self, prompt: Prompt, options: Options) -> AsyncGenerator[Delta, None]:
        exchange = _Exchange(self, self._client, self.adapter.call(prompt, options, stream=True))
        reply = _Reply(self.adapter, exchange)
        async with self._answer(exchange) as response:
            try:
                async with aclosing(EventSource(response).aiter_sse()) as events:
                    async for event in events:
                        text = reply.take(event)
                        if text:
                            yield Delta(text)
            except httpx.RequestError as error:
                raise exchange.failed(error, reply.text) from error
            completion = reply.finish()
        yield Delta(completion=completion)
