"""llama-server's ``/completion``: a prompt that was already rendered, as one message.

A prompt of text becomes the content; one of token ids, or of several pieces, stays in the shape, for it has no text.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from agentctx.errors import InputError
from agentctx.interchange import groups
from agentctx.interchange.parameters import read_params, write_params
from agentctx.interchange.parts import PartForm
from agentctx.interchange.wire import Misfit, hint_of, ref
from agentctx.messages import MediaPart, Message, Request

API = "llama.completion"


def _no_media(part: MediaPart) -> dict[str, Any]:
    raise InputError("a prompt of text holds no media", field=f"media {part.sha256[:12]}")


_FORM = PartForm(API, "text", {}, _no_media)


def read(body: Mapping[str, Any]) -> Request:
    """A request body as a Request with one message; :func:`write` gives an equal body."""
    if "prompt" not in body:
        raise InputError("a completion needs a prompt", field="prompt")
    prompt = body["prompt"]
    if isinstance(prompt, str):
        message = Message(role="user", content=prompt)
    else:
        message = groups.kept(API, [Message(role="user")], [prompt], [True])[0]
    return Request(messages=(message,), params=read_params(API, body, {"prompt": prompt}))


def write(request: Request) -> dict[str, Any]:
    """The request body. Raises ``InputError`` for a request of more than one message: render it first."""
    if len(request.messages) != 1 or request.tools:
        raise InputError("a completion takes one rendered prompt", field="messages", remedy="render it first")
    message = request.messages[0]
    prompt: Any = message.text_with_notes
    if shape := hint_of(message, API).get("shape"):
        with suppress(Misfit):
            prompt = groups.filled(API, lambda _: _FORM, [message], shape, ref)[0]
    return write_params(API, {"prompt": prompt}, request.params)
