"""HTTP transports, sync and async: retries, timeouts, streaming; the adapters decide what is said.

Retried: connections that could not be made, and the statuses 429, 503 and 529 (Anthropic's "overloaded"), after
``Retry-After`` or with a growing pause; a server that asks for more than a minute is left alone. Nothing is retried once a
reply has begun, so a turn never runs twice unseen. Errors name the address without its user and query, and no header.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Any

import httpx
from httpx_sse import EventSource, ServerSentEvent, SSEError

from agentctx.backends.adapter import Adapter, Call, StreamParser
from agentctx.backends.backend import (
    BadResponse,
    Completion,
    ConnectionFailed,
    Delta,
    Options,
    Refused,
    StreamBroken,
    TimedOut,
)
from agentctx.backends.secrecy import key_advice, secrets_in, shown, without
from agentctx.backends.server_address import need_address
from agentctx.errors import InputError
from agentctx.rendering.prompt import Prompt

_RETRIED = (429, 503, 529)
_LONGEST_PAUSE_S = 60.0
_EXCERPT = 300


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds from a Retry-After header (a number or an HTTP date, RFC 9110 section 10.2.3)."""
    value = response.headers.get("retry-after")
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return None


def _pause(attempt: int, retry_after: float | None) -> float:
    return min(_LONGEST_PAUSE_S, 0.5 * 2**attempt if retry_after is None else retry_after)


def _refusal(response: httpx.Response, url: str, secrets: tuple[str, ...]) -> Refused:
    """The error for a status that is not 2xx; the body must have been read. A server may repeat the key that it refuses."""
    text = without(secrets, response.text.strip().replace("\n", " "))[:_EXCERPT]
    return Refused(
        f"{url} answered {response.status_code} {response.reason_phrase}: {text or 'no body'}"
        + key_advice(response.status_code),
        status=response.status_code,
        retry_after=_retry_after(response),
    )


def _json_body(response: httpx.Response, url: str) -> Mapping[str, Any]:
    kind = response.headers.get("content-type", "").partition(";")[0].strip()
    try:
        body = response.json()
    except ValueError:
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
    except ValueError:
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
        self.base_url = base_url.rstrip("/")
        self._headers = dict(headers or {})
        self._secrets: tuple[str, ...] = ()
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

    def _url(self, call: Call) -> str:
        return self.base_url + call.path

    def _failed(self, error: httpx.RequestError, url: str, partial: str | None) -> Exception:
        """The documented error for a transport error; ``partial`` is the reply so far once it had begun."""
        detail = str(error) or type(error).__name__
        if isinstance(error, SSEError):
            return BadResponse(f"{url} did not answer with a stream of events: {detail}")
        if isinstance(error, httpx.DecodingError):
            return BadResponse(f"{url} sent a body that its content encoding does not fit: {detail}")
        if isinstance(error, httpx.UnsupportedProtocol | httpx.TooManyRedirects):
            return BadResponse(f"{url} is no address of an API: {detail}")
        if isinstance(error, httpx.ConnectTimeout | httpx.ConnectError | httpx.PoolTimeout):
            return ConnectionFailed(f"can't connect to {url}: {detail}; is the server running?")
        if isinstance(error, httpx.TimeoutException):
            return TimedOut(
                f"{url} was silent for {self._timeout.read} s; raise timeout= if the turn needs longer"
            )
        if partial is not None:
            return StreamBroken(
                f"{url} broke off the reply after {len(partial)} characters: {detail}", partial=partial
            )
        return ConnectionFailed(f"{url} closed the connection before it answered: {detail}")

    def _pause_after_error(self, error: httpx.RequestError, url: str, attempt: int) -> float:
        """Seconds to wait before a request that never got an answer is made again, or the error that ends it."""
        failure = self._failed(error, url, None)
        if not isinstance(failure, ConnectionFailed) or attempt >= self._retries:
            raise failure from error
        return _pause(attempt, None)

    def _pause_after_refusal(self, response: httpx.Response, url: str, attempt: int) -> float:
        """The same for an answer with an error status; its body must have been read."""
        refusal = _refusal(response, url, self._secrets)
        too_long = refusal.retry_after is not None and refusal.retry_after > _LONGEST_PAUSE_S
        if refusal.status not in _RETRIED or attempt >= self._retries or too_long:
            raise refusal
        return _pause(attempt, refusal.retry_after)


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

    def __init__(self, adapter: Adapter, url: str) -> None:
        self._api = adapter.name
        self._parser: StreamParser = adapter.parser()
        self._url = url
        self._started = time.perf_counter()
        self._first: float | None = None
        self.text = ""

    def take(self, event: ServerSentEvent) -> str:
        data = _event_data(event, self._url)
        if data is None:
            return ""
        with _understood(self._api, self._url):
            text = self._parser.feed(event.event, data)
        if text and self._first is None:
            self._first = time.perf_counter() - self._started
        self.text += text
        return text

    def finish(self) -> Completion:
        with _understood(self._api, self._url):
            completion = self._parser.finish()
        return replace(
            completion,
            seconds=time.perf_counter() - self._started,
            first_token_seconds=self._first,
        )


class HttpBackend(_Shared):
    """A Backend over HTTP. Close it, or use it as a context manager.

    ``timeout`` is the longest silence in seconds, ``retries`` how often a refused or unmade connection is tried again.
    ``client`` is an httpx client of the caller's own (its transport is used as it is).
    """

    def __init__(
        self, adapter: Adapter, base_url: str, *, client: httpx.Client | None = None, **limits: Any
    ) -> None:
        super().__init__(adapter, base_url, **limits)
        self._client = client or httpx.Client()
        self._owned = client is None
        self._secrets = secrets_in(self._headers, self._client.headers)

    def __enter__(self) -> HttpBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._owned:
            self._client.close()

    @contextmanager
    def _open(self, call: Call) -> Iterator[httpx.Response]:
        """The response to a call, its headers read, its status good."""
        url = self._url(call)
        attempt = 0
        while True:
            request = self._client.build_request(
                "POST", url, json=call.body, headers={**self._headers, **call.headers}, timeout=self._timeout
            )
            try:
                response = self._client.send(request, stream=True)
                if not response.is_success:
                    with closing(response):
                        response.read()
            except httpx.RequestError as error:
                pause = self._pause_after_error(error, shown(url), attempt)
            else:
                if response.is_success:
                    break
                pause = self._pause_after_refusal(response, shown(url), attempt)
            time.sleep(pause)
            attempt += 1
        with closing(response):
            yield response

    def complete(self, prompt: Prompt, options: Options) -> Completion:
        call = self.adapter.call(prompt, options, stream=False)
        url = shown(self._url(call))
        started = time.perf_counter()
        with self._open(call) as response:
            try:
                response.read()
            except httpx.RequestError as error:
                raise self._failed(error, url, "") from error
            with _understood(self.adapter.name, url):
                completion = self.adapter.completion(_json_body(response, url))
        return replace(completion, seconds=time.perf_counter() - started)

    def stream(self, prompt: Prompt, options: Options) -> Generator[Delta, None, None]:
        call = self.adapter.call(prompt, options, stream=True)
        url = shown(self._url(call))
        reply = _Reply(self.adapter, url)
        with self._open(call) as response:
            try:
                for event in EventSource(response).iter_sse():
                    text = reply.take(event)
                    if text:
                        yield Delta(text)
            except httpx.RequestError as error:
                raise self._failed(error, url, reply.text) from error
        yield Delta(completion=reply.finish())


class AsyncHttpBackend(_Shared):
    """The same for asyncio. Cancelling a task closes its connection, which ends the turn on the server."""

    def __init__(
        self, adapter: Adapter, base_url: str, *, client: httpx.AsyncClient | None = None, **limits: Any
    ) -> None:
        super().__init__(adapter, base_url, **limits)
        self._client = client or httpx.AsyncClient()
        self._owned = client is None
        self._secrets = secrets_in(self._headers, self._client.headers)

    async def __aenter__(self) -> AsyncHttpBackend:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        if self._owned:
            await self._client.aclose()

    @asynccontextmanager
    async def _open(self, call: Call) -> AsyncIterator[httpx.Response]:
        url = self._url(call)
        attempt = 0
        while True:
            request = self._client.build_request(
                "POST", url, json=call.body, headers={**self._headers, **call.headers}, timeout=self._timeout
            )
            try:
                response = await self._client.send(request, stream=True)
                if not response.is_success:
                    async with aclosing(response):
                        await response.aread()
            except httpx.RequestError as error:
                pause = self._pause_after_error(error, shown(url), attempt)
            else:
                if response.is_success:
                    break
                pause = self._pause_after_refusal(response, shown(url), attempt)
            await asyncio.sleep(pause)
            attempt += 1
        async with aclosing(response):
            yield response

    async def complete(self, prompt: Prompt, options: Options) -> Completion:
        call = self.adapter.call(prompt, options, stream=False)
        url = shown(self._url(call))
        started = time.perf_counter()
        async with self._open(call) as response:
            try:
                await response.aread()
            except httpx.RequestError as error:
                raise self._failed(error, url, "") from error
            with _understood(self.adapter.name, url):
                completion = self.adapter.completion(_json_body(response, url))
        return replace(completion, seconds=time.perf_counter() - started)

    async def stream(self, prompt: Prompt, options: Options) -> AsyncGenerator[Delta, None]:
        call = self.adapter.call(prompt, options, stream=True)
        url = shown(self._url(call))
        reply = _Reply(self.adapter, url)
        async with self._open(call) as response:
            try:
                async with aclosing(EventSource(response).aiter_sse()) as events:
                    async for event in events:
                        text = reply.take(event)
                        if text:
                            yield Delta(text)
            except httpx.RequestError as error:
                raise self._failed(error, url, reply.text) from error
        yield Delta(completion=reply.finish())
