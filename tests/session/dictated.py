"""A backend that answers what it is told, in the tokens that it is told, and counts as a server with one slot would."""

from __future__ import annotations

from collections.abc import Generator

import numpy as np

from agentctx.backends.backend import BackendError, Completion, Delta, Options
from agentctx.caches.registry import parse_cache
from agentctx.messages import Message
from agentctx.rendering.prompt import Prompt, Renderer
from agentctx.usage import Usage

Reply = tuple[str, list[int]] | BackendError


class Dictated:
    """``replies``: text and token ids of each answer, or the error in which the turn ends."""

    name = "dictated"

    def __init__(self, renderer: Renderer, *, takes_tokens: bool) -> None:
        self.takes_tokens = takes_tokens
        self.replies: list[Reply] = []
        self.renderer = renderer
        self._cache = parse_cache("slot")

    def complete(self, prompt: Prompt, options: Options) -> Completion:
        reply = self.replies.pop(0)
        if isinstance(reply, BackendError):
            raise reply
        text, tokens = reply
        ids = np.array(tokens, np.int32)
        served = self._cache.commit(prompt.token_ids, ids)
        usage = Usage(prompt=len(prompt), cached=served.cached, output=len(ids))
        return Completion(Message(role="assistant", content=text), usage, ids if self.takes_tokens else None)

    def stream(self, prompt: Prompt, options: Options) -> Generator[Delta, None, None]:
        yield Delta(completion=self.complete(prompt, options))


def written(renderer: Renderer, text: str, end: str) -> tuple[str, list[int]]:
    """A reply as a model writes it: the tokenizer's ids and the end token."""
    ids = renderer.tokenizer.encode_ordinary(text)
    return text, [*map(int, ids), renderer.tokenizer.special_tokens[end]]
