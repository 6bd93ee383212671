"""A request as it is sent. Whoever logs it learns of its address what an error may say, and no more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from agentctx.backends.secrecy import shown
from agentctx.errors import UsageError


class _Discreet(httpx.URL):
    """An address that is whole when it is sent and short when it is said: httpx logs the one of every request."""

    def __str__(self) -> str:
        return shown(super().__str__())

    def __repr__(self) -> str:
        return f"URL({str(self)!r})"


def built(
    client: httpx.Client | httpx.AsyncClient,
    method: str,
    url: str,
    body: Mapping[str, Any] | None,
    **how: Any,
) -> httpx.Request:
    """The request, or the ``UsageError`` that says why there can't be one."""
    try:
        request = client.build_request(method, url, json=body, **how)
    except httpx.InvalidURL:
        problem = "its address is none"
    except UnicodeEncodeError:
        problem = "it holds half a character (a lone surrogate), which is no valid text"
    except (TypeError, ValueError) as error:
        problem = str(error)
    else:
        request.url = _Discreet(request.url)
        return request
    raise UsageError(f"the request to {shown(url)} can't be written: {problem}")
