"""Find a renderer by its name."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from agentctx.errors import UsageError
from agentctx.rendering.chatml import SPECIALS, ChatMLRenderer
from agentctx.rendering.prompt import Renderer
from agentctx.rendering.tokenizer import (
    TiktokenTokenizer,
    Tokenizer,
    embedded_tokenizer,
    tiktoken_tokenizer,
    with_tokens,
)

LAYOUTS = ("chatml", "anthropic", "openai")


def is_path(name: str) -> bool:
    """Whether a name can only be that of a file or folder, be it there or not."""
    path = Path(name)
    return bool(path.suffix) or len(path.parts) > 1


def load_tokenizer(name: str) -> Tokenizer:
    """A tokenizer by name: ``embedded``, one of tiktoken's encodings, a ``tokenizer.json``, a GGUF, or a checkpoint's folder.

    Raises ``UsageError`` for an unknown name and ``InputError`` for an unusable file.
    """
    if name == "embedded":
        return embedded_tokenizer()
    path = Path(name)
    if path.suffix == ".gguf":
        from agentctx.rendering.gguf_metadata import read_gguf_metadata
        from agentctx.rendering.gguf_tokenizer import gguf_tokenizer

        return gguf_tokenizer(read_gguf_metadata(path), name)
    if path.suffix == ".json" or path.is_dir():
        from agentctx.rendering.huggingface import load_tokenizer_json

        return load_tokenizer_json(path / "tokenizer.json" if path.is_dir() else path)
    return tiktoken_tokenizer(name)


def load_renderer(
    name: str,
    *,
    tokenizer: Tokenizer | str | None = None,
    template: str | None = None,
    now: datetime | None = None,
    keywords: Mapping[str, Any] | None = None,
    arguments: str | None = None,
) -> Renderer:
    """The renderer of that name.

    ``chatml``: the built-in layout with the embedded vocabulary (no file, no network). ``anthropic``, ``openai``: the order in which
    these providers read a request, in the same layout; their own text is secret, so counts are estimates. ``LAYOUT:ENCODING``: a
    layout with one of tiktoken's encodings, if tiktoken has it.

    Anything else is a path: a ``.jinja`` file, a GGUF, ``tokenizer_config.json``, ``chat_template.json``, the saved ``/props`` of a
    llama-server, or a checkpoint's folder. ``PATH@TOKENIZER`` names the tokenizer for a source that has none; without it the embedded
    vocabulary stands in and counts are estimates.

    ``template``: name of a template, where there are several. ``now``: what ``strftime_now`` tells (default: now, read once here).
    ``keywords``: variables for the template. ``arguments``: ``mapping`` or ``raw``, the form of tool-call arguments.

    Raises ``UsageError`` for a name that is none of these, ``InputError`` for an unusable file.
    """
    layout, _, encoding = name.partition(":")
    if layout in LAYOUTS:
        return _layout(layout, name, _tokenizer(tokenizer or encoding or "embedded"))
    path, beside = Path(name), None
    if not path.exists() and "@" in name:
        before, _, beside = name.rpartition("@")
        path = Path(before)
    if not path.exists():
        if str(path) in LAYOUTS:
            problem = f"{path} takes an encoding behind a colon, {path}:{beside}"
        elif is_path(str(path)):
            problem = f"there is no file or folder {str(path)!r}"
        else:
            problem = f"unknown renderer {name!r}"
        raise UsageError(
            f"{problem}; known: {', '.join(LAYOUTS)} (each with :ENCODING), or the path of a template, "
            "a GGUF, a tokenizer_config.json or a checkpoint's folder"
        )
    from agentctx.rendering.sources import read_source
    from agentctx.rendering.template_renderer import renderer_of

    chosen = tokenizer or beside
    return renderer_of(
        read_source(path),
        name=name,
        tokenizer=_tokenizer(chosen) if chosen else None,
        template=template,
        now=now or datetime.now(),
        keywords=keywords,
        arguments=arguments,
    )


def _tokenizer(given: Tokenizer | str) -> Tokenizer:
    return load_tokenizer(given) if isinstance(given, str) else given


def _layout(layout: str, name: str, tokenizer: Tokenizer) -> ChatMLRenderer:
    if isinstance(tokenizer, TiktokenTokenizer):
        tokenizer = with_tokens(tokenizer, SPECIALS)
    return ChatMLRenderer(tokenizer, name=name, first="system" if layout == "openai" else "tools")
