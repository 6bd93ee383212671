"""A server's address as a user gives it, with or without ``/v1``: where its own endpoints lie, and where the OpenAI-style ones; its key."""

from __future__ import annotations

from urllib.parse import urlsplit, urlunsplit

import httpx

from agentctx.errors import UsageError

_V1 = "/v1"


def need_address(url: str) -> None:
    """Raise ``UsageError`` for what is no address of an HTTP server. It isn't repeated: it may hold a password."""
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL:
        address = httpx.URL("")
    if address.scheme not in ("http", "https") or not address.host:
        raise UsageError(
            "a server's address begins with http:// or https:// and names a host, such as http://127.0.0.1:8080"
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
    parts = urlsplit(root_of(url))
    return urlunsplit(parts._replace(path=parts.path + path))


def authorization(api_key: str | None) -> dict[str, str]:
    """The header that carries a key; none without one."""
    return {"Authorization": f"Bearer {api_key}"} if api_key else {}
