"""A server's address as a user gives it, with or without ``/v1``: where its own endpoints lie, and where the OpenAI-style ones; its key."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

import httpx

from agentctx.errors import UsageError

_V1 = "/v1"
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"(?:[!-~](?:[\t -~]*[!-~])?)?")


def need_address(url: str) -> None:
    """Raise ``UsageError`` for what is no address of an HTTP server. It isn't repeated: it may hold a password."""
    try:
        address = httpx.URL(url)
        urlsplit(url)
    except (httpx.InvalidURL, ValueError):
        address = httpx.URL("")
    if address.scheme not in ("http", "https") or not address.host:
        raise UsageError(
            "a server's address begins with http:// or https:// and names a host, such as http://127.0.0.1:8080"
        )


def need_headers(headers: Mapping[str, str]) -> None:
    """Raise ``UsageError`` for what can't be sent as a header. Values aren't repeated: they may be keys."""
    for name, value in headers.items():
        if not _NAME.fullmatch(name):
            raise UsageError("a header's name holds a character that no header's name may have")
        if not _VALUE.fullmatch(value):
            raise UsageError(
                f"the value of the header {name} can't be sent: it begins or ends with white space, or holds a line break or a "
                "character that isn't ASCII; a key that was read from a file needs strip()"
            )


def root_of(url: str) -> str:
    """The address below which a server's own endpoints lie (``/props``, ``/version``): without ``/v1`` and without a slash at its end."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/").removesuffix(_V1).rstrip("/")
    return urlunsplit(parts._replace(path=path))


def says_openai(url: str) -> bool:
    """Whether an address ends with ``/v1``."""
    return urlsplit(url).path.rstrip("/").endswith(_V1)


def openai_base(url: str) -> str:
    """The address below which ``/chat/completions`` and ``/models`` lie: it ends with ``/v1``."""
    return below(url, _V1)


def below(url: str, path: str) -> str:
    """The address of an endpoint of the server; what stands in the query stays there."""
    return endpoint(root_of(url), path)


def endpoint(base: str, path: str) -> str:
    """``path`` (which may have a query) below an address that is taken as it is; what stands in the address's query goes behind it."""
    parts, more = urlsplit(base), urlsplit(path)
    query = "&".join(filter(None, (more.query, parts.query)))
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + more.path, query=query, fragment=""))


def authorization(api_key: str | None) -> dict[str, str]:
    """The header that carries a key; none without one."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}
