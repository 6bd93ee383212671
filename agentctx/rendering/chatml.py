"""The built-in layout: ChatML-style, append-only by construction, every field's tokens known exactly.

::

    <|im_start|>tools<|im_sep|>{"name": …, "description": …, "parameters": …}<|im_sep|>{…}<|im_end|>
    <|im_start|>system<|im_sep|>…<|im_end|>
    <|im_start|>user<|im_sep|>…<note>…<|im_end|>
    <|im_start|>assistant<|im_sep|><think>…</think>…<tool_call>{"name": …, "arguments": …}</tool_call><|im_end|>
    <|im_start|>tool<|im_sep|>…<|im_end|>
    <|im_start|>assistant<|im_sep|>

(one line each here; in the text nothing stands between ``<|im_end|>`` and ``<|im_start|>``). A field's text is encoded as plain text:
a tool result that spells ``<|im_end|>`` doesn't end its message. Between two fields stands a special token, so what a model
wrote behind the generation prompt stays as it is in every later prompt, token for token.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from agentctx.common_ends import common_start
from agentctx.errors import RenderError
from agentctx.messages import MediaPart, Message, Request, Tool
from agentctx.rendering.growing import Grown
from agentctx.rendering.layout import Block, Piece, Run, Special, encode_block
from agentctx.rendering.prompt import Prompt, Span, TokenIds, Zone
from agentctx.rendering.spans import rezoned, zone_of
from agentctx.rendering.tokenizer import CharStarts, Tokenizer, embedded_tokenizer

START, SEP, END = Special("<|im_start|>"), Special("<|im_sep|>"), Special("<|im_end|>")
NOTE = Special("<note>")
THINK, END_THINK = Special("<think>"), Special("</think>")
CALL, END_CALL = Special("<tool_call>"), Special("</tool_call>")
SPECIALS = tuple(s.text for s in (START, SEP, END, NOTE, THINK, END_THINK, CALL, END_CALL))


def tool_runs(tool: Tool) -> Iterator[Run]:
    """One tool definition, behind its separator."""
    yield SEP
    name, description = (
        json.dumps(tool.name, ensure_ascii=False),
        json.dumps(tool.description, ensure_ascii=False),
    )
    yield [
        Piece('{"name": "'),
        Piece(name[1:-1], "tool_name"),
        Piece('", "description": "'),
        Piece(description[1:-1], "description"),
        Piece('", "parameters": '),
        Piece(tool.parameters_json, "schema"),
        Piece("}"),
    ]


def body_runs(message: Message) -> Iterator[Run]:
    """What stands between a message's header and its end token: for a reply, what the model generates."""
    if message.reasoning is not None:
        yield from (THINK, [Piece(message.reasoning, "reasoning")], END_THINK)
    if isinstance(message.content, str):
        yield [Piece(message.content, "content")]
    else:
        texts = [f"[{p.type} {p.sha256}]" if isinstance(p, MediaPart) else p.text for p in message.content]
        yield [Piece("\n".join(texts), "content")]
    for note in message.notes:
        yield from (NOTE, [Piece(note, "note")])
    for index, call in enumerate(message.tool_calls):
        field = f"tool_calls[{index}]"
        yield CALL
        yield [
            Piece('{"name": "'),
            Piece(json.dumps(call.name, ensure_ascii=False)[1:-1], f"{field}.name"),
            Piece('", "arguments": '),
            Piece(call.arguments, f"{field}.arguments"),
            Piece("}"),
        ]
        yield END_CALL


def message_runs(message: Message) -> Iterator[Run]:
    """A whole message."""
    yield from (START, [Piece(message.role)], SEP)
    yield from body_runs(message)
    yield END


@dataclass(frozen=True, slots=True)
class _State:
    """Where each message's block begins (token, char, index of its first span); one more entry for the end."""

    renderer: ChatMLRenderer
    tokens: Grown
    places: tuple[tuple[int, int, int], ...]


class _Output:
    """A prompt being put together. ``places``: token, character and span count before each message, and at the end."""

    def __init__(self) -> None:
        self.ids: list[TokenIds] = []
        self.starts: list[CharStarts] = []
        self.texts: list[str] = []
        self.spans: list[Span] = []
        self.places: list[tuple[int, int, int]] = []
        self.token = self.char = 0
        self._before: Grown | None = None
        self._kept = 0

    def place(self) -> tuple[int, int, int]:
        return (self.token, self.char, len(self.spans))

    def take(
        self, previous: Prompt, tokens: Grown, places: tuple[tuple[int, int, int], ...], request: Request
    ) -> None:
        """Begin with what stands before the last of the places, in the zones of ``request``."""
        self.places = list(places)
        self.token, self.char, count = places[-1]
        self._before, self._kept = tokens, self.token
        self.texts.append(previous.text[: self.char])
        last = places[-2][2] if len(places) > 1 else 0  # only the last message taken can change its zone
        self.spans = list(previous.spans[:last])
        self.spans += rezoned(previous.spans[last:count], previous.request, request)

    def tokens(self) -> Grown:
        """All tokens, those that were taken over first."""
        ids, starts = np.concatenate(self.ids), np.concatenate(self.starts)
        return (
            Grown.of(ids, starts) if self._before is None else self._before.extended(self._kept, ids, starts)
        )

    def add(self, block: Block, spans: Iterable[Span]) -> None:
        self.spans.extend(spans)
        self.ids.append(block.token_ids)
        self.starts.append(block.starts + np.int32(self.char))
        self.texts.append(block.text)
        self.token += len(block.token_ids)
        self.char += len(block.text)


class ChatMLRenderer:
    """Renders requests in the built-in layout. Instances hold no conversation and may be shared.

    ``first``: what stands first, the tools or the system message.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None = None,
        name: str = "chatml",
        first: Literal["tools", "system"] = "tools",
    ) -> None:
        self.tokenizer = tokenizer or embedded_tokenizer()
        self.name = name
        self.first = first
        lacking = [text for text in SPECIALS if text not in self.tokenizer.special_tokens]
        if lacking:
            raise RenderError(
                f"tokenizer {self.tokenizer.name} lacks the special tokens {', '.join(lacking)}"
            )
        self._opening = encode_block((START, [Piece("assistant")], SEP), self.tokenizer)

    def count(self, text: str) -> int:
        """Tokens of a plain text."""
        return self.tokenizer.count(text)

    def render(self, request: Request, previous: Prompt | None = None) -> Prompt:
        """Render with the generation prompt at the end; costs time in what was added since ``previous``."""
        kept = self._kept(request, previous)
        out = _Output()
        if kept is not None and previous is not None and isinstance(previous.state, _State):
            out.take(previous, previous.state.tokens, previous.state.places[: kept + 1], request)
        else:
            kept = self._lead(request)
            if kept:
                self._add_message(out, request, 0)
            tools = self._tools(request)
            out.add(tools, self._tool_spans(tools, out.token, out.char))
            out.places = [(0, 0, 0)] * kept + [out.place()]
        for index in range(kept, len(request.messages)):
            self._add_message(out, request, index)
        opening = self._opening
        out.add(opening, opening.spans("template", None, out.token, out.char, "template"))
        tokens = out.tokens()
        return Prompt(
            token_ids=tokens.ids,
            text="".join(out.texts),
            spans=tuple(out.spans),
            request=request,
            exact=self.tokenizer.exact,
            starts=tokens.starts,
            state=_State(self, tokens, tuple(out.places)),
        )

    def _add_message(self, out: _Output, request: Request, index: int) -> None:
        block = encode_block(message_runs(request.messages[index]), self.tokenizer)
        zone = zone_of(request, index)
        note_zone: Zone = "tail" if index == len(request.messages) - 1 else zone
        out.add(block, block.spans(zone, index, out.token, out.char, note_zone))
        out.places.append(out.place())

    def _lead(self, request: Request) -> int:
        """Number of messages before the tools."""
        return int(self.first == "system" and bool(request.messages) and request.messages[0].role == "system")

    def reply_ids(self, prompt: Prompt, reply: Message) -> TokenIds:
        """Tokens of the reply as generated, ``<|im_end|>`` included."""
        return encode_block((*body_runs(reply), END), self.tokenizer).token_ids

    def _tools(self, request: Request) -> Block:
        if not request.tools:
            return encode_block((), self.tokenizer)
        runs: list[Run] = [START, [Piece("tools")]]
        for tool in request.tools:
            runs.extend(tool_runs(tool))
        return encode_block((*runs, END), self.tokenizer)

    def _tool_spans(self, head: Block, token: int, char: int) -> list[Span]:
        """Spans of the tools block, which begins at the given place; each ``tool_name`` begins the next tool."""
        spans: list[Span] = []
        item = -1
        for name, start, end, char_start, char_end in head.marks:
            item += name == "tool_name"
            zone: Zone = "template" if name == "template" else "tools"
            owner = None if zone == "template" else item
            spans.append(
                Span(token + start, token + end, char + char_start, char + char_end, zone, owner, name)
            )
        return spans

    def _kept(self, request: Request, previous: Prompt | None) -> int | None:
        """Leading messages whose blocks and spans can be taken from ``previous``; ``None`` when not even the tools can."""
        if previous is None or not isinstance(previous.state, _State) or previous.state.renderer is not self:
            return None
        old, new = previous.request, request
        if old.tools != new.tools or old.pinned != new.pinned:
            return None
        kept = common_start(old.messages, new.messages)
        return kept if kept >= max(self._lead(old), self._lead(new)) else None
