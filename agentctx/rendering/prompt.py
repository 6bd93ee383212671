"""Prompt: the token ids that a server reads, and where each of them came from."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt

from agentctx.messages import Message, Request
from agentctx.rendering.written import Written

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
class Place:
    """Where a token of a prompt came from. ``char`` counts from the start of the field's span to where the token begins, 0 in a prompt without
    ``starts``; ``span`` is the place of the span in ``Prompt.spans``."""

    token: int
    span: int
    zone: Zone
    item: int | None
    field: str
    char: int

    @property
    def path(self) -> str:
        """The item as a path into the request: ``tools[0]``, ``messages[3]``, or ``template``."""
        if self.item is None:
            return "template"
        return f"tools[{self.item}]" if self.zone == "tools" else f"messages[{self.item}]"

    def __str__(self) -> str:
        return f"{self.zone} {self.path} {self.field} char {self.char}"


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

    def locate(self, token: int) -> Place:
        """Where a token came from; its text says so in words. A token over two fields belongs to the first.

        Raises ``IndexError`` for a token that the prompt doesn't have.
        """
        if not 0 <= token < len(self.token_ids):
            raise IndexError(f"token {token} of a prompt of {len(self.token_ids)} tokens")
        index = bisect_right(self.spans, token, key=attrgetter("end"))
        span = self.spans[index]
        char = 0 if self.starts is None else max(0, int(self.starts[token]) - span.char_start)
        return Place(token, index, span.zone, span.item, span.field, char)


class GrowingPrompt(Prompt):
    """A prompt that shares its text with those before it: ``text`` is joined when it is first asked for."""

    __slots__ = ("_written",)
    _written: Written

    @property
    def text(self) -> str:
        return str(self._written)

    @text.setter
    def text(self, value: str | Written) -> None:  # only ``__init__`` gets here: the class is frozen
        object.__setattr__(self, "_written", Written.of(value))


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
