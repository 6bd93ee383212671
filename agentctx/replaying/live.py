"""Live: what runs the turns of a replay. The bundled engine with a tiny model, or a server at a URL."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import numpy as np

from agentctx.backends.adapter import need
from agentctx.backends.backend import (
    Backend,
    BackendError,
    ConnectionFailed,
    Options,
    Refused,
    TimedOut,
)
from agentctx.backends.http import HttpBackend
from agentctx.backends.llama_server import LlamaCompletion, LlamaServer
from agentctx.backends.openai_chat import OpenAIChat
from agentctx.backends.secrecy import NO_ACCESS, shown
from agentctx.backends.served_models import first_model
from agentctx.backends.server_address import authorization, need_address, openai_base, says_openai
from agentctx.caches.model import Arrival, CacheModel
from agentctx.caches.registry import parse_cache, read_spec
from agentctx.errors import UsageError
from agentctx.messages import Request
from agentctx.rendering import Renderer, load_renderer
from agentctx.rendering.model_tokenizer import ModelTokenizer
from agentctx.rendering.prompt import Prompt
from agentctx.rendering.remote import RemoteTokenizer
from agentctx.rendering.sources import props_source, token_like
from agentctx.rendering.template_renderer import renderer_of
from agentctx.rendering.tokenizer import TiktokenTokenizer, Tokenizer

ENGINE = "engine"
DEFAULT_CACHE = "paged:16"
DEFAULT_LAYOUT = "chatml"

_ONE_TOKEN = Options(max_tokens=1, temperature=0.0)


@dataclass(frozen=True, slots=True)
class Live:
    """A server, how prompts are made for it, and the model of its cache.

    ``cache`` follows everything that is sent, so it lives as long as the server does. ``context``: tokens of the longest
    sequence that the server takes, ``None`` if that isn't known. ``notes``: what a reader of the report must know.
    """

    name: str
    backend: Backend
    renderer: Renderer
    cache: CacheModel
    context: int | None = None
    options: Options = _ONE_TOKEN
    slots: int = 0  # llama-server's, 0 for other servers
    notes: tuple[str, ...] = field(default=())

    @property
    def reads_replies(self) -> bool:
        """Whether a recorded reply can be put into the server's memory: it takes token ids."""
        return self.backend.takes_tokens

    def forget(self) -> None:
        """Begin anew, as far as the server lets one: each slot of a llama-server is given one token in the place of what it held.

        What a server keeps in a RAM cache, and what servers without slots hold, can't be taken away: a conversation that
        was there before may still be found.
        """
        nothing = np.zeros(1, np.int32)
        for slot in range(self.slots):
            options = replace(self.options, slot=slot, cache_prompt=False)
            completion = self.backend.complete(Prompt(nothing, "", (), Request()), options)
            reply = completion.reply_ids if completion.reply_ids is not None else nothing[:0]
            self.cache.commit(nothing, reply, Arrival(slot=slot, cache_prompt=False))


@contextmanager
def connect(
    target: str,
    *,
    cache: str | None = None,
    layout: str | None = None,
    slot: int | None = None,
    timeout: float = 600.0,
    api_key: str | None = None,
) -> Iterator[Live]:
    """Open ``engine`` or a server's URL, and close it behind the caller. A URL that ends with ``/v1`` is taken at its word: messages go to
    an OpenAI-style API, whatever else the server has.

    ``cache``, ``layout``: specs; without them a llama-server is asked for its slots, its template and its tokenizer, and
    others count as ``paged:16`` and ``chatml``. ``slot``: pin all turns to one. Raises ``UsageError`` for a target or spec
    that can't be used, ``BackendError`` for a server that doesn't answer.
    """
    if target == ENGINE:
        with _engine(cache or DEFAULT_CACHE, layout or DEFAULT_LAYOUT) as live:
            yield live
        return
    try:
        need_address(target)
    except UsageError:
        # What has a user or a query may have a secret.
        named = "the backend" if set("@?") & set(target) else f"backend {target!r}"
        raise UsageError(f"{named} is neither {ENGINE!r} nor a URL such as http://127.0.0.1:8080") from None
    if cache is not None:
        parse_cache(cache)
    options = Options(max_tokens=1, temperature=0.0, slot=slot)
    with ExitStack() as stack:
        if not says_openai(target):
            server = stack.enter_context(LlamaServer(target, api_key=api_key))
            props = _llama_props(server, api_key)
            if props is not None:
                yield _llama_server(stack, server, props, cache, layout, options, timeout, api_key)
                return
        yield _openai_style(stack, target, cache, layout, options, timeout, api_key)


@contextmanager
def _engine(cache: str, layout: str) -> Iterator[Live]:
    """The bundled engine with memory as the cache spec says, and a tiny model with random weights: it reads, and says nothing."""
    from agentctx.backends.engine import tiny_engine

    kind, options = read_spec(cache)
    if kind.name not in ("paged", "radix"):
        raise UsageError(f"the bundled engine has caches paged and radix, not {cache!r}")
    block = int(options["block" if kind.name == "paged" else "page"] or 1)
    blocks = None if options["capacity"] is None else int(options["capacity"])
    if blocks is not None and kind.name == "radix":
        blocks //= block
    renderer = load_renderer(layout)
    vocabulary = _vocabulary(renderer.tokenizer)
    with tiny_engine(vocabulary, block_size=block, radix=kind.name == "radix", num_blocks=blocks) as backend:
        yield Live(ENGINE, backend, renderer, parse_cache(cache), context=backend.engine.max_context)


def _vocabulary(tokenizer: Tokenizer) -> int:
    """How many ids a tokenizer may give."""
    if isinstance(tokenizer, TiktokenTokenizer):
        return tokenizer.encoding.n_vocab
    if isinstance(tokenizer, ModelTokenizer):
        return len(tokenizer.lengths)
    raise UsageError(
        f"{tokenizer.name} does not say how many tokens it has; choose another layout for the engine"
    )


def _llama_props(server: LlamaServer, api_key: str | None) -> Mapping[str, Any] | None:
    """``/props``, if this is a llama-server. Raises when nobody answers at all, and when a key is wanted and there is none."""
    try:
        props = server.props()
    except (ConnectionFailed, TimedOut):
        raise
    except Refused as error:
        if error.status in NO_ACCESS and api_key is None:
            raise
        return None
    except BackendError:
        return None
    return props if "total_slots" in props else None


def _llama_server(
    stack: ExitStack,
    server: LlamaServer,
    props: Mapping[str, Any],
    cache: str | None,
    layout: str | None,
    options: Options,
    timeout: float,
    api_key: str | None,
) -> Live:
    slots = need(props, "total_slots", int, "llama-server /props")
    context = _context(server, props)
    spec = cache or f"llama-server:slots={slots},ctx={context * slots}" + ("" if slots == 1 else ",unified=0")
    if cache is None and slots == 4:
        spec = f"llama-server:ctx={context}"  # -np not given: four slots that share their cells
    renderer = load_renderer(layout) if layout is not None else _server_renderer(server, props)
    notes = (
        []
        if cache is not None
        else [f"cache model {spec}, from /props; its other switches are the server's defaults"]
    )
    backend = stack.enter_context(
        HttpBackend(LlamaCompletion(), server.base_url, headers=authorization(api_key), timeout=timeout)
    )
    name = f"llama-server {server.address}"
    return Live(name, backend, renderer, parse_cache(spec), context, options, slots, tuple(notes))


def _context(server: LlamaServer, props: Mapping[str, Any]) -> int:
    """Tokens of one slot: ``/props`` and ``/slots`` both tell it."""
    settings = props.get("default_generation_settings")
    found = settings.get("n_ctx") if isinstance(settings, Mapping) else None
    if not isinstance(found, int):
        rows = server.slots()
        found = rows[0].get("n_ctx") if rows and isinstance(rows[0], Mapping) else None
    if not isinstance(found, int):
        raise UsageError(
            f"{server.address} does not say how long its context is; start it with --slots or --props"
        )
    return found


def _server_renderer(server: LlamaServer, props: Mapping[str, Any]) -> Renderer:
    """The server's own template, and its tokenizer asked over HTTP."""
    template = str(props.get("chat_template") or "")
    names = {*token_like(template), str(props.get("bos_token") or ""), str(props.get("eos_token") or "")}
    special = {}
    for text in sorted(names - {""}):
        ids = server.tokenize(text)
        if len(ids) == 1:
            special[text] = ids[0]
    tokenizer = RemoteTokenizer(
        server.tokenize_pieces, server.detokenize, name=server.address, special_tokens=special
    )
    source = props_source(props, tokenizer=tokenizer)
    return renderer_of(source, name=server.address, now=datetime.now())


def _openai_style(
    stack: ExitStack,
    target: str,
    cache: str | None,
    layout: str | None,
    options: Options,
    timeout: float,
    api_key: str | None,
) -> Live:
    """A server that is sent messages. The model is the first that it lists."""
    base = openai_base(target)
    adapter = OpenAIChat(first_model(base, api_key))
    backend = stack.enter_context(HttpBackend(adapter, base, headers=authorization(api_key), timeout=timeout))
    notes = [f"{given}: not given, so {taken} is assumed" for given, taken, known in (
        ("--cache", DEFAULT_CACHE, cache), ("--layout", DEFAULT_LAYOUT, layout),
    ) if known is None]  # fmt: skip
    return Live(
        shown(base),
        backend,
        load_renderer(layout or DEFAULT_LAYOUT),
        parse_cache(cache or DEFAULT_CACHE),
        options=options,
        notes=tuple(notes),
    )
