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
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from agentctx.errors import RenderError
from agentctx.messages import MediaPart, Message, Request, Tool
from agentctx.rendering.layout import Block, Piece, Run, Special, encode_block
from agentctx.rendering.prompt import Prompt, Span, TokenIds, Zone
from agentctx.rendering.spans import zone_of
from agentctx.rendering.tokenizer import Tokenizer, embedded_tokenizer

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
    places: tuple[tuple[int, int, int], ...]


class ChatMLRenderer:
    """Renders requests in the built-in layout. Instances hold no conversation and may be shared."""

    def __init__(self, tokenizer: Tokenizer | None = None, name: str = "chatml") -> None:
        self.tokenizer = tokenizer or embedded_tokenizer()
        self.name = name
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
        if kept is not None and previous is not None and isinstance(previous.state, _State):
            places = list(previous.state.places[: kept + 1])
            token, char, spans_end = places[-1]
            ids, texts = [previous.token_ids[:token]], [previous.text[:char]]
            spans = list(previous.spans[:spans_end])
        else:
            kept = 0
            head = self._tools(request)
            token, char = len(head.token_ids), len(head.text)
            ids, texts, spans = [head.token_ids], [head.text], self._tool_spans(head)
            places = [(token, char, len(spans))]
        newest = len(request.messages) - 1
        for index in range(kept, newest + 1):
            block = encode_block(message_runs(request.messages[index]), self.tokenizer)
            zone = zone_of(request, index)
            spans.extend(block.spans(zone, index, token, char, "tail" if index == newest else zone))
            ids.append(block.token_ids)
            texts.append(block.text)
            token, char = token + len(block.token_ids), char + len(block.text)
            places.append((token, char, len(spans)))
        spans.extend(self._opening.spans("template", None, token, char, "template"))
        return Prompt(
            token_ids=np.concatenate([*ids, self._opening.token_ids]),
            text="".join([*texts, self._opening.text]),
            spans=tuple(spans),
            request=request,
            exact=self.tokenizer.exact,
            state=_State(self, tuple(places)),
        )

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

    def _tool_spans(self, head: Block) -> list[Span]:
        """Spans of the tools block; each ``tool_name`` begins the next tool."""
        spans: list[Span] = []
        item = -1
        for name, start, end, char_start, char_end in head.marks:
            item += name == "tool_name"
            zone: Zone = "template" if name == "template" else "tools"
            owner = None if zone == "template" else item
            spans.append(Span(start, end, char_start, char_end, zone, owner, name))
        return spans

    def _kept(self, request: Request, previous: Prompt | None) -> int | None:
        """Leading messages whose blocks and spans can be taken from ``previous``; ``None`` when not even the tools can."""
        if previous is None or not isinstance(previous.state, _State) or previous.state.renderer is not self:
            return None
        old, new = previous.request, request
        if old.tools != new.tools or old.pinned != new.pinned:
            return None
        limit = min(len(old.messages), len(new.messages))
        kept = 0
        while kept < limit and (
            old.messages[kept] is new.messages[kept] or old.messages[kept] == new.messages[kept]
        ):
            kept += 1
        # The notes of the newest message are the tail; once another message follows they are log.
        changes_zone = (kept == len(old.messages)) != (kept == len(new.messages))
        if kept and changes_zone and new.messages[kept - 1].notes:
            kept -= 1
        return kept
