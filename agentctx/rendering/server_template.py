"""What a llama-server makes of a conversation before its template sees it, and prompts in the server's own words.

llama.cpp fills in what a template lacks: it puts a system message into the next message, joins parts, parses arguments, moves reasoning.
Where its text differs from the template's own, the change is recognised by making it here: one is named only when it gives the server's
text, character for character. Prediction then uses the text of the server. Source: llama.cpp, ``common/chat.cpp``.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from agentctx.common_ends import common_end, common_start
from agentctx.errors import RenderError
from agentctx.messages import Message, Request
from agentctx.rendering.growing import Grown
from agentctx.rendering.incremental import Encoded, encode_further
from agentctx.rendering.prompt import Prompt, TokenIds
from agentctx.rendering.spans import Run, Source, map_spans
from agentctx.rendering.template_renderer import TemplateRenderer
from agentctx.rendering.written import Written
from agentctx.surrogates import replace_surrogates

ApplyTemplate = Callable[[Request], str]
"""A request to the server's text for it (``/apply-template``). Whoever passes it does the network."""
Messages = list[dict[str, Any]]
_LONGEST_OPENING = 100
Change = Callable[[Messages, Request], Messages]


class ServerChange(StrEnum):
    """What the server changed; the value says it in words."""

    SYSTEM_MERGED = "the template takes no system message: its text goes before that of the next message"
    PARTS_JOINED = "the template takes no list of parts: they are joined with line ends"
    EMPTY_CONTENT = "a call without text gets an empty text, where the template looks for none"
    WHITE_SPACE = "white space around texts is removed"
    REASONING_AS_PART = "reasoning goes in as a part of the content"
    RESULTS_IN_CALLS = "results of tools go into the message that called them"
    NO_THINKING = "the server finds no thinking in the template, and tells it enable_thinking=false"
    NULLS_EMPTY = (
        "a null in a call's arguments is written as None by Jinja, and as nothing by the server's engine"
    )
    REPLY_OPENED = "the template opens no reply at the end, and the server does"
    NO_ESCAPES = "the template escapes HTML, and the server's template engine does not"
    REFUSED = "the template refuses the conversation here, and renders it in the server's engine"
    UNKNOWN = "the server's text differs for no known reason"


def recognise(own: TemplateRenderer, request: Request, text: str) -> tuple[ServerChange, ...]:
    """The changes that turn the template's own text of the request into the server's ``text``; none when they are equal."""

    def rendered(make: Change | None = None, **keywords: Any) -> str | None:
        try:
            return own.render_changed(
                request, lambda messages: make(messages, request) if make else messages, keywords
            )
        except RenderError:
            return None

    ours = rendered()
    tried: dict[tuple[ServerChange, ...], str | None] = {(): ours}
    tried |= {(change,): rendered(make) for change, make in _CHANGES.items() if ours != text}
    tried[(ServerChange.NO_THINKING,)] = rendered(enable_thinking=False)
    tried[(ServerChange.NO_ESCAPES,)] = None if ours is None else html.unescape(ours)
    for named, made in tried.items():
        if made == text:
            return named
    for named, made in tried.items():
        if made is not None and text.startswith(made) and len(text) - len(made) <= _LONGEST_OPENING:
            return (*named, ServerChange.REPLY_OPENED)
    return (ServerChange.REFUSED if ours is None else ServerChange.UNKNOWN,)


def _system_merged(messages: Messages, request: Request) -> Messages:
    if len(messages) < 2 or messages[0]["role"] != "system":
        return messages
    merged = f"{_joined(messages[0]['content'])}\n{_joined(messages[1]['content'])}"
    return [{**messages[1], "content": merged}, *messages[2:]]


def _parts_joined(messages: Messages, request: Request) -> Messages:
    return [
        {**message, "content": _joined(message["content"])}
        if isinstance(message["content"], list)
        else message
        for message in messages
    ]


def _empty_content(messages: Messages, request: Request) -> Messages:
    return [{**message, "content": ""} if message["content"] is None else message for message in messages]


def _trimmed(messages: Messages, request: Request) -> Messages:
    def trim(value: Any) -> Any:
        return value.strip() if isinstance(value, str) else value

    texts = ("content", "reasoning_content", "reasoning", "thinking")
    return [{key: trim(value) if key in texts else value for key, value in m.items()} for m in messages]


def _reasoning_as_part(messages: Messages, request: Request) -> Messages:
    made = []
    for message, source in zip(messages, request.messages, strict=True):
        if source.reasoning:
            text = _joined(message["content"])
            parts = [{"type": "thinking", "thinking": source.reasoning}]
            message = {**message, "content": [*parts, {"type": "text", "text": text}] if text else parts}
        made.append(message)
    return made


def _results_in_calls(messages: Messages, request: Request) -> Messages:
    """Gemma 4: one message for a call, its results and the answer behind them."""
    made: Messages = []
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        if not message.get("tool_calls"):
            made.append(message)
            continue
        results: list[dict[str, Any]] = []
        while at < len(messages) and messages[at]["role"] == "tool":
            calls, number = message["tool_calls"], len(results)
            name = (
                calls[number]["function"]["name"]
                if number < len(calls)
                else messages[at].get("tool_call_id", "")
            )
            results.append({"name": name, "response": _parsed(messages[at]["content"])})
            at += 1
        joined = {key: value for key, value in message.items() if key not in ("content", "name")}
        if results:
            joined["tool_responses"] = results
        if at < len(messages) and messages[at]["role"] == "assistant":
            answer = messages[at]
            if answer["content"] and not answer.get("tool_calls"):
                joined["content"] = answer["content"]
                at += 1
        made.append(joined)
    return made


class _Nothing:
    """A value of no type that a template writes as nothing."""

    def __str__(self) -> str:
        return ""

    def __bool__(self) -> bool:
        return False


def _nulls_empty(messages: Messages, request: Request) -> Messages:
    def emptied(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: emptied(item) for key, item in value.items()}
        if isinstance(value, list):
            return [emptied(item) for item in value]
        return _Nothing() if value is None else value

    return [
        {**message, "tool_calls": emptied(message["tool_calls"])} if message.get("tool_calls") else message
        for message in messages
    ]


def _parsed(text: Any) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text


def _joined(content: Any) -> str:
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if part.get("type") == "text")
    return content or ""


_CHANGES: Mapping[ServerChange, Change] = {
    ServerChange.PARTS_JOINED: _parts_joined,
    ServerChange.SYSTEM_MERGED: _system_merged,
    ServerChange.EMPTY_CONTENT: _empty_content,
    ServerChange.REASONING_AS_PART: _reasoning_as_part,
    ServerChange.RESULTS_IN_CALLS: _results_in_calls,
    ServerChange.NULLS_EMPTY: _nulls_empty,
    ServerChange.WHITE_SPACE: _trimmed,
}


@dataclass(frozen=True, slots=True)
class _State:
    renderer: ServerTemplateRenderer
    own: Prompt | None
    encoded: Encoded


class ServerTemplateRenderer:
    """A template as a llama-server applies it: its own text where the two differ.

    Each prompt costs the call that ``apply`` makes. ``changes_of`` tells what the server changed.
    """

    def __init__(self, own: TemplateRenderer, apply: ApplyTemplate) -> None:
        self.own = own
        self.tokenizer = own.tokenizer
        self.name = own.name
        self._apply = apply

    def count(self, text: str) -> int:
        """Tokens of a plain text."""
        return self.tokenizer.count(text)

    def changes_of(self, prompt: Prompt) -> tuple[ServerChange, ...]:
        """What the server changed in this prompt; nothing when its text is the template's own. Renders once for each known change."""
        state = prompt.state
        if not isinstance(state, _State) or (state.own is not None and state.own.text == prompt.text):
            return ()
        return recognise(state.renderer.own, prompt.request, prompt.text)

    def render(self, request: Request, previous: Prompt | None = None) -> Prompt:
        """Render with the generation prompt at the end. Raises what ``apply`` raises when the server refuses the request."""
        before = previous.state if previous is not None and isinstance(previous.state, _State) else None
        if before is not None and before.renderer is not self:
            before = None
        text = self.own.with_beginning(self._apply(request))
        try:
            own = self.own.render(request, before.own if before else None)
        except RenderError:
            own = None
        if own is not None and own.text == text:
            assert own.starts is not None
            return replace(
                own, state=_State(self, own, Encoded(Written(text), Grown.of(own.token_ids, own.starts)))
            )
        encoded, _ = encode_further(self.tokenizer, text, before.encoded if before else None)
        runs = list(attributed(request, text, own))
        spans, _ = map_spans(request, runs, 0, len(text), encoded.starts)
        return Prompt(
            token_ids=encoded.ids,
            text=text,
            spans=spans,
            request=request,
            exact=self.tokenizer.exact,
            starts=encoded.starts,
            state=_State(self, own, encoded),
        )

    def reply_ids(self, prompt: Prompt, reply: Message) -> TokenIds:
        """Tokens of the reply as generated, end token included, as the template's own rendering has it."""
        own = prompt.state.own if isinstance(prompt.state, _State) else prompt
        if own is None:
            return self.tokenizer.encode(reply.text)
        return self.own.reply_ids(own, reply)


def attributed(request: Request, text: str, own: Prompt | None) -> Iterator[Run]:
    """Where in the server's text the request's texts stand.

    As far as it begins and ends like the template's own text, their places are known; between, they are searched for in order.
    """
    before, behind = _kept_runs(text, own) if own is not None else ([], [])
    known = {source for _, _, source in (*before, *behind)}
    unknown = [(source, value) for source, value in _sources(request) if source not in known]
    start, end = before[-1][1] if before else 0, behind[0][0] if behind else len(text)
    yield from before
    yield from _found(unknown, text, start, end)
    yield from behind


def _kept_runs(text: str, own: Prompt) -> tuple[list[Run], list[Run]]:
    """Runs of the template's own text that stand in what both texts begin with, and in what both end with."""
    head = common_start(own.text, text)
    rest = len(own.text) - head, len(text) - head
    tail = common_end(own.text, text, min(rest))
    moved = len(text) - len(own.text)
    before: list[Run] = []
    behind: list[Run] = []
    for span in own.spans:
        if span.item is None:
            continue
        source: Source = ("tool" if span.zone == "tools" else "message", span.item, span.field)
        if span.char_end <= head:
            before.append((span.char_start, span.char_end, source))
        elif span.char_start >= len(own.text) - tail:
            behind.append((span.char_start + moved, span.char_end + moved, source))
    return before, behind


def _sources(request: Request) -> list[tuple[Source, str]]:
    """The texts of a request in the order in which templates write them."""
    found: list[tuple[Source, str]] = []
    for index, tool in enumerate(request.tools):
        found += [
            (("tool", index, "tool_name"), tool.name),
            (("tool", index, "description"), tool.description),
        ]
    for index, message in enumerate(request.messages):
        if message.reasoning:
            found.append((("message", index, "reasoning"), message.reasoning))
        found.append((("message", index, "content"), message.text))
        found += [(("message", index, "note"), note) for note in message.notes]
        for number, call in enumerate(message.tool_calls):
            found.append((("message", index, f"tool_calls[{number}].name"), call.name))
            found.append((("message", index, f"tool_calls[{number}].arguments"), call.arguments))
    return [(source, replace_surrogates(value)) for source, value in found if value]


def _found(sources: Sequence[tuple[Source, str]], text: str, at: int, end: int) -> Iterator[Run]:
    for source, value in sources:
        place = text.find(value, at, end)
        if place < 0 and (bare := value.strip()):
            value, place = bare, text.find(bare, at, end)
        if place >= 0:
            at = place + len(value)
            yield place, at, source
