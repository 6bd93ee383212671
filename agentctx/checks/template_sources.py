"""Where the templates to check come from: files, folders, GGUFs, running servers."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from agentctx.backends.secrecy import shown
from agentctx.backends.server_address import below, root_of
from agentctx.errors import InputError, UsageError
from agentctx.rendering.sources import DEFAULT, ModelSource, props_source, read_source, token_like
from agentctx.rendering.tokenizer import Tokenizer, embedded_tokenizer, with_tokens

_SUFFIXES = (".jinja", ".jinja2", ".j2", ".gguf")
_CONFIGS = ("tokenizer_config.json", "chat_template.json")
_MOST_BYTES = 20_000_000
_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class TemplateSource:
    """One template to check. ``location``: the file or URL that it stands in. ``tokenizer``: the model's own, if the source has one.

    ``error``: why the source could not be read. ``which``: its name among the templates of that place. ``shared``: others have
    its name, too.
    """

    name: str
    location: str
    source: str = ""
    variables: dict[str, Any] = field(default_factory=dict)
    tokenizer: Tokenizer | None = None
    error: str = ""
    which: str = DEFAULT
    shared: bool = False

    @property
    def subject(self) -> str:
        """What reports call it: its name where no other template has the same."""
        return self.place if self.shared else self.name

    @property
    def place(self) -> str:
        """The location, and which of several templates it is: no other template has the same."""
        return self.location if self.which == DEFAULT else f"{self.location}:{self.which}"

    def counting(self) -> Tokenizer:
        """The tokenizer to count with: the model's, or the embedded one with the template's special tokens."""
        return self.tokenizer or with_tokens(embedded_tokenizer(), token_like(self.source))


def template_sources(places: Iterable[str]) -> list[TemplateSource]:
    """The templates in files, folders and at URLs, in order. A source that can't be read is one with an ``error``.

    Raises ``UsageError`` for a path that isn't there or holds no template.
    """
    found: list[TemplateSource] = []
    for place in places:
        if place.startswith(("http://", "https://")):
            found += _tried(shown(place), lambda place=place: _fetched(place))
            continue
        path = Path(place)
        if not path.exists():
            raise UsageError(
                f"{place} isn't there; name a template, a folder, a GGUF, a tokenizer_config.json or a URL"
            )
        files = list(_files(path))
        if not files:
            raise UsageError(f"{place} holds no chat template (*.jinja, *.gguf, tokenizer_config.json)")
        for file in files:
            found += _tried(str(file), lambda file=file: read_source(file))
    return told_apart(found)


def told_apart(sources: Sequence[TemplateSource]) -> list[TemplateSource]:
    """The same sources, knowing whether others have their name."""
    places: dict[str, set[str]] = defaultdict(set)
    for source in sources:
        places[source.name].add(source.place)
    return [replace(source, shared=len(places[source.name]) > 1) for source in sources]


def _files(path: Path) -> Iterator[Path]:
    """The sources in a folder: a checkpoint is one, whatever files it has."""
    if not path.is_dir() or any((path / name).is_file() for name in (*_CONFIGS, "chat_template.jinja")):
        yield path
    else:
        for inner in sorted(path.iterdir()):
            if inner.is_dir() or inner.suffix in _SUFFIXES:
                yield from _files(inner)


def _tried(location: str, read: Any) -> list[TemplateSource]:
    try:
        source: ModelSource = read()
    except InputError as error:
        name = location if "://" in location else Path(location).stem or location
        return [TemplateSource(name, location, error=str(error))]
    return [
        TemplateSource(
            source.name if which == DEFAULT else f"{source.name}:{which}",
            _file_of(location, which),
            text,
            dict(source.variables),
            source.tokenizer,
            which=which,
        )
        for which, text in source.templates.items()
    ]


def _file_of(location: str, which: str) -> str:
    """The file that a template stands in, where it stands alone."""
    plain = Path(location) / "chat_template.jinja"
    return str(plain) if which == DEFAULT and plain.is_file() else location


def _fetched(url: str) -> ModelSource:
    """A template, a config, or what a llama-server says about itself.

    Raises ``InputError`` when nothing usable is there. User name, password and query of the URL never reach an error.
    """
    parts = urlsplit(url)
    if not urlsplit(root_of(url)).path:  # a server, and no file on it
        url = below(url, "/props")
    address = shown(url)
    text = _body(url, address)
    name = parts.path.rstrip("/").rpartition("/")[2] or parts.netloc.rpartition("@")[2]
    if not text.lstrip().startswith("{") or text.lstrip().startswith(("{%", "{{", "{#")):
        return ModelSource(Path(name).stem, {DEFAULT: text})
    try:
        data = json.loads(text)
    except ValueError as error:
        raise InputError(f"no JSON: {error}", file=address) from error
    return props_source(data, name=address)


def _body(url: str, address: str) -> str:
    chunks: list[bytes] = []
    size = 0
    try:
        with httpx.stream("GET", url, timeout=_SECONDS, follow_redirects=True) as response:
            if response.status_code != 200:
                raise InputError(f"the server answers {response.status_code}", file=address)
            for chunk in response.iter_bytes():
                size += len(chunk)
                if size > _MOST_BYTES:
                    raise InputError(f"more than {_MOST_BYTES} bytes", file=address)
                chunks.append(chunk)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise InputError(
            f"can't be fetched: {type(error).__name__}",
            file=address,
            remedy="check the address, and whether there is a network",
        ) from error
    try:
        return b"".join(chunks).decode()
    except UnicodeDecodeError as error:
        raise InputError("no UTF-8 text", file=address) from error
