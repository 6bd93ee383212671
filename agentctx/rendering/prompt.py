"""Prompt: the token ids that a server reads, and where each of them came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt

from agentctx.messages import Message, Request

if TYPE_CHECKING:
    from agentctx.rendering.tokenizer import Tokenizer

Zone = Literal["tools", "system", "pinned", "log", "tail", "template"]
TokenIds = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Span:
    """A run of tokens that came from one field of one item.

    ``start``/``end`` count tokens, ``char_start``/``char_end`` characters of ``Prompt.text``; both half-open.
    ``item`` indexes ``Request.tools`` in zone ``tools`` and ``Request.messages`` elsewhere, and is ``None`` for
    text that the template wrote. ``field`` is ``content``, ``note``, ``reasoning``, ``tool_name``,
    ``tool_calls[i].name``, ``tool_calls[i].arguments``, ``tool_calls[i].id``, ``tool_call_id``, ``name``, ``schema``,
    ``description`` or ``template``. A token that reaches over two spans belongs to the first, so a span may be without
    tokens.
    """

    start: int
    end: int
    char_start: int
    char_end: int
    zone: Zone
    item: int | None
    field: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """A rendered request.

    ``token_ids``: int32, shape [tokens]. ``spans`` cover the tokens in order without gap or overlap.
    ``exact`` is False when the template or the tokenizer is a stand-in: then counts are ``estimated``. ``starts``: int32, shape
    [tokens], the character of ``text`` at which each token begins.
    """

    token_ids: TokenIds
    text: str
    spans: tuple[Span, ...]
    request: Request
    exact: bool = True
    starts: npt.NDArray[np.int32] | None = field(default=None, repr=False, compare=False)
    state: object = field(default=None, repr=False, compare=False)  # what the renderer needs to extend it

    def __len__(self) -> int:
        return len(self.token_ids)


class Renderer(Protocol):
    """Request in, Prompt out. Pure: equal requests give equal prompts, whatever ``previous`` is."""

    @property
    def name(self) -> str: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    def count(self, text: str) -> int:
        """Tokens of a plain text."""
        ...

    def render(self, request: Request, previous: Prompt | None = None) -> Prompt:
        """Render the request with the generation prompt at its end.

        ``previous`` is the conversation's last prompt: the renderer may reuse its work, and the result must
        equal rendering without it.
        """
        ...

    def reply_ids(self, prompt: Prompt, reply: Message) -> TokenIds:
        """The tokens that a model would have generated behind ``prompt`` to give ``reply``, end token included.

        They are what stands behind ``prompt`` in the next prompt when the template renders replies as they
        were generated.
        """
        ...


def common_prefix_length(left: TokenIds, right: TokenIds) -> int:
    """Length of the longest common prefix of two int32 arrays, in tokens."""
    limit = min(len(left), len(right))
    a, b = left[:limit], right[:limit]
    start, step = 0, 4096
    # Chunks that double keep an early difference cheap and a long equal prefix at memory speed.
    while start < limit:
        end = min(limit, start + step)
        chunk = a[start:end] != b[start:end]
        if chunk.any():
            return start + int(chunk.argmax())
        start, step = end, step * 2
    return limit
