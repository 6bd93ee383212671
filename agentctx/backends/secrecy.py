"""What an error may say of an address, and what of a server's words: never a key."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit, urlunsplit

KEY_VARIABLE = "AGENTCTX_API_KEY"
"""The environment variable that commands read a server's key from."""
NO_ACCESS = (401, 403)
"""Statuses of a server that wants a key, or another one."""
_SENSITIVE = re.compile("auth|key|token|secret|cookie", re.IGNORECASE)


def shown(url: str) -> str:
    """An address as an error may name it: who asks, and what stands in the query, may be secret."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def secrets_in(*headers: Mapping[str, str]) -> tuple[str, ...]:
    """Texts that must not come back in an error: values of headers that authorize, and what stands behind ``Bearer`` in them."""
    values = {value for each in headers for name, value in each.items() if _SENSITIVE.search(name)}
    values |= {value.partition(" ")[2] for value in values}
    return tuple(sorted(filter(None, values), key=len, reverse=True))


def without(secrets: Iterable[str], text: str) -> str:
    """The text with every secret masked: a server may repeat the key that it refuses."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def key_advice(status: int) -> str:
    """What to do about an error status, if it is one about keys; to be put behind the error."""
    if status not in NO_ACCESS:
        return ""
    return (
        f"; give the server's key: api_key= or a header, for commands the environment variable {KEY_VARIABLE}"
    )
