"""What went wrong on the way to a server and back, as the documented errors. They name addresses without user and query, and no header."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime

import httpx
from httpx_sse import SSEError

from agentctx.backends.backend import BadResponse, ConnectionFailed, Refused, StreamBroken, TimedOut
from agentctx.backends.secrecy import key_advice
from agentctx.errors import AgentctxError, UsageError

_EXCERPT = 300
NEVER_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)
"""Transport errors before any byte of a request was on its way."""


def failed(
    error: httpx.RequestError, address: str, timeout: float | None, partial: str | None = None
) -> AgentctxError:
    """The documented error for a transport error; ``timeout`` in seconds, ``partial`` is the reply so far once it had begun."""
    detail = str(error) or type(error).__name__
    if isinstance(error, SSEError):
        return BadResponse(f"{address} did not answer with a stream of events: {detail}")
    if isinstance(error, httpx.DecodingError):
        return BadResponse(f"{address} sent a body that its content encoding does not fit: {detail}")
    if isinstance(error, httpx.UnsupportedProtocol | httpx.TooManyRedirects):
        return BadResponse(f"{address} is no address of an API: {detail}")
    if isinstance(error, NEVER_SENT):
        return ConnectionFailed(f"can't connect to {address}: {detail}; is the server running?")
    if isinstance(error, httpx.TimeoutException):
        return TimedOut(f"{address} was silent for {timeout} s; raise timeout= if it needs longer")
    if isinstance(error, httpx.LocalProtocolError):
        return UsageError(f"the request to {address} can't be sent: {detail}")
    if partial is not None:
        return StreamBroken(
            f"{address} broke off the reply after {len(partial)} characters: {detail}", partial=partial
        )
    return ConnectionFailed(f"{address} closed the connection before it answered: {detail}")


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


def refusal(response: httpx.Response, address: str) -> Refused:
    """The error for a status that is not 2xx; the body must have been read."""
    text = response.text.strip().replace("\n", " ")[:_EXCERPT]
    return Refused(
        f"{address} answered {response.status_code} {response.reason_phrase}: {text or 'no body'}"
        + key_advice(response.status_code),
        status=response.status_code,
        retry_after=_retry_after(response),
    )
