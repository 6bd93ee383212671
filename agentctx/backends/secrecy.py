"""What an error may say of an address, and what of a server's words: never a key."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import quote, unquote, unquote_plus, urlsplit, urlunsplit

from agentctx.common_ends import common_start
from agentctx.errors import AgentctxError

KEY_VARIABLE = "AGENTCTX_API_KEY"
"""The environment variable that commands read a server's key from."""
NO_ACCESS = (401, 403)
"""Statuses of a server that wants a key, or another one."""
_SENSITIVE = re.compile(
    "auth|key|token|secret|cookie|pass|pwd|sign?$|signature|session|credential", re.IGNORECASE
)
_EVERYBODYS = re.compile(
    "accept(-.*)?|anthropic-(beta|version)|cache-control|connection|content-.*|date|host|openai-beta|transfer-encoding|user-agent",
    re.IGNORECASE,
)
_LONG = 8  # characters: from here on a text is masked wherever it stands, and so is what is left of it behind a cut


def shown(url: str) -> str:
    """An address as an error may name it: who asks, and what stands in the query, may be secret."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def secrets_in(headers: Mapping[str, str], url: str = "") -> tuple[str, ...]:
    """Texts that must not come back in an error, in each way to write them: what authorizes in headers and address.

    Values of headers, of cookies and of the query count when they are long or their name says so, user name and password as they
    are and as the header that they become.
    """
    found: set[str] = set()
    for name, value in headers.items():
        if not _EVERYBODYS.fullmatch(name):
            found |= _of_header(name, value)
    if url:
        found |= _of_address(url)
    forms = {form for secret in found if secret for form in _forms(secret)}
    return tuple(sorted(forms, key=lambda form: (-len(form), form)))


def _of_header(name: str, value: str) -> set[str]:
    """The credential behind a scheme such as ``Bearer``, and the values of cookies and parameters."""
    value = value.strip()
    scheme, _, rest = value.partition(" ")
    if scheme.lower() == "basic":
        return {rest} | _of_basic(rest)
    if not _SENSITIVE.search(name):
        return _when_telling(name, value)
    found = {rest if rest and "=" not in scheme else value}
    for part in re.split(r"[\s,;]+", value):
        parameter = part.rstrip("=").partition("=")[2].strip('"')
        found |= {parameter} if parameter else _when_telling("", part)
    return found


def _of_basic(credential: str) -> set[str]:
    try:
        user, _, password = base64.b64decode(credential).decode().partition(":")
    except ValueError:
        return set()
    return _of_pair(user, password)


def _of_pair(user: str, password: str) -> set[str]:
    """A name alone is a key; a short one beside a password is none."""
    return {password, user} if len(user) >= _LONG or not password else {password}


def _of_address(url: str) -> set[str]:
    parts = urlsplit(url)
    found: set[str] = set()
    if "@" in parts.netloc:
        user, _, password = parts.netloc.rpartition("@")[0].partition(":")
        plain = (unquote(user), unquote(password))
        header = base64.b64encode(":".join(plain).encode()).decode()
        found |= {header} | _of_pair(user, password) | _of_pair(*plain)
    for pair in parts.query.split("&"):
        name, _, value = pair.partition("=")
        found |= _when_telling(name, value) | _when_telling(name, unquote_plus(value))
        if not value:  # a bare word, which may be a key
            found |= _when_telling("", name)
    return found


def _when_telling(name: str, value: str) -> set[str]:
    """The value, unless it is short and its name is no secret's: ``api-version=2`` makes no secret of every 2."""
    return {value} if len(value) >= _LONG or _SENSITIVE.search(name) else set()


def _forms(secret: str) -> set[str]:
    """A secret as it stands in an address, in JSON, and in a quoted excerpt."""
    quoted = {quote(secret, safe=safe, errors="replace") for safe in ("", "/")}
    quoted |= {form.replace("%20", "+") for form in quoted}
    quoted |= {re.sub("%..", lambda code: code[0].lower(), form) for form in quoted}
    texts = {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1]}
    return {secret, secret.replace("/", "\\/"), *texts, *quoted}


def without(secrets: Iterable[str], text: str) -> str:
    """The text with every secret masked, and beginnings of long ones: a server may repeat the key that it refuses, an excerpt cut it."""
    spans: list[tuple[int, int]] = []
    for secret in secrets:
        head = re.escape(secret[:_LONG])
        for found in re.finditer(head if len(secret) >= _LONG else rf"(?<!\w){head}(?!\w)", text):
            rest = common_start(secret[_LONG:], text[found.end() : found.start() + len(secret)])
            spans.append((found.start(), found.end() + rest))
    pieces: list[str] = []
    at = 0
    for start, end in sorted(spans):
        if start >= at:
            pieces += [text[at:start], "***"]
        at = max(at, end)
    return "".join([*pieces, text[at:]])


@contextmanager
def discreet(secrets: Callable[[], Iterable[str]]) -> Iterator[None]:
    """No error that passes names a secret: they are masked in its text, and a cause that holds one is left out."""
    try:
        yield
    except AgentctxError as error:
        known = tuple(secrets())
        error.args = tuple(without(known, arg) if isinstance(arg, str) else arg for arg in error.args)
        _cut_causes(error, known, set())
        raise


def _cut_causes(error: BaseException, secrets: tuple[str, ...], seen: set[int]) -> None:
    seen.add(id(error))
    for link in ("__cause__", "__context__"):
        behind = getattr(error, link)
        if behind is None or id(behind) in seen:
            continue
        said = f"{behind} {behind!r} {getattr(behind, '__notes__', '')}"
        if without(secrets, said) != said:
            setattr(error, link, None)
        else:
            _cut_causes(behind, secrets, seen)


def key_advice(status: int) -> str:
    """What to do about an error status, if it is one about keys; to be put behind the error."""
    if status not in NO_ACCESS:
        return ""
    return (
        f"; give the server's key: api_key= or a header, for commands the environment variable {KEY_VARIABLE}"
    )
