"""Anthropic Messages: what was read from the cache, and what was written to it, split by lifetime.

Source: the Messages API reference and its streaming page.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agentctx.backends.adapter import Call, need
from agentctx.backends.affinity import NO_AFFINITY, Affinity
from agentctx.backends.backend import BadResponse, Completion, Options, StreamBroken
from agentctx.backends.streamed_fields import StreamedFields, said
from agentctx.errors import UsageError
from agentctx.interchange import anthropic
from agentctx.interchange.cache_control import Life, with_markers
from agentctx.interchange.calls import object_of
from agentctx.interchange.wire import without
from agentctx.messages import JSON_DECODER, Message, Request
from agentctx.rendering.prompt import Prompt
from agentctx.usage import Usage, usage_from_anthropic

_API = "Anthropic Messages"
_DEFAULT_MAX_TOKENS = 4096  # the API requires one
_EMPTY = ({"type": "text", "text": ""}, {"type": "text", "text": "", "citations": None})


def _completion(body: Mapping[str, Any]) -> Completion:
    # The API may give an empty text, and refuses to be sent it.
    blocks = [block for block in need(body, "content", list, _API) if block not in _EMPTY]
    messages = anthropic.read_item({"role": "assistant", "content": blocks}, "response") if blocks else []
    usage = body.get("usage")
    finish = body.get("stop_reason")
    return Completion(
        message=messages[0] if messages else Message(role="assistant"),
        usage=usage_from_anthropic(usage) if isinstance(usage, Mapping) else Usage(),
        finish_reason=finish if isinstance(finish, str) else None,
        model=body.get("model") if isinstance(body.get("model"), str) else None,
    )


_LIVES: dict[str | None, Life | None] = {None: None, "5m": "5m", "1h": "1h"}


def _life(name: str | None) -> Life | None:
    if name not in _LIVES:
        raise UsageError(f"cache_life {name!r}: this API keeps entries for 5m or 1h")
    return _LIVES[name]


class _Parser:
    """Builds the content blocks from their deltas. Usage starts in ``message_start`` and is updated at the end."""

    def __init__(self) -> None:
        self._body: dict[str, Any] = {}
        self._blocks: dict[int, StreamedFields] = {}
        self._inputs: dict[int, list[str]] = {}
        self._text: list[str] = []
        self._stopped = False

    def feed(self, event: str, data: Mapping[str, Any]) -> str:
        kind = data.get("type") or event
        if kind == "error":
            error = data.get("error") or {}
            raise StreamBroken(
                f"the server ended the reply with {error.get('type')}: {error.get('message')}",
                partial="".join(self._text),
            )
        if kind == "message_start":
            self._body = dict(need(data, "message", dict, _API))
        elif kind == "content_block_start":
            fields = self._blocks[need(data, "index", int, _API)] = StreamedFields()
            fields.add(need(data, "content_block", dict, _API))
        elif kind == "content_block_delta":
            return self._delta(need(data, "index", int, _API), need(data, "delta", dict, _API))
        elif kind == "message_delta":
            self._body.update(data.get("delta") or {})
            # A null is not said: what the start said stands.
            self._body["usage"] = {**(self._body.get("usage") or {}), **said(data.get("usage") or {})}
        elif kind == "message_stop":
            self._stopped = True
        return ""

    def _delta(self, index: int, delta: Mapping[str, Any]) -> str:
        if index not in self._blocks:
            raise BadResponse(f"the {_API} stream has a delta for block {index}, which never started")
        block = self._blocks[index]
        kind = delta.get("type")
        if kind == "text_delta":
            text = need(delta, "text", str, _API)
            self._text.append(text)
            block.add({"text": text})
            return str(text)
        if kind == "input_json_delta":
            self._inputs.setdefault(index, []).append(delta["partial_json"])
        elif kind == "thinking_delta":
            block.add({"thinking": delta["thinking"]})
        elif kind == "citations_delta":
            block.add({"citations": [delta["citation"]]})
        else:
            block.add(without(delta, "type"))
        return ""

    def finish(self) -> Completion:
        if not self._stopped:
            text = "".join(self._text)
            raise StreamBroken(
                f"the stream ended after {len(text)} characters, before the reply did", partial=text
            )
        blocks: list[dict[str, Any]] = []
        said_by_calls: list[str] = []
        for index in sorted(self._blocks):
            block, text = self._blocks[index].whole(), "".join(self._inputs.get(index, ()))
            if text:
                block["input"] = object_of(text)
            blocks.append(block)
            said_by_calls += [text] if block.get("type") == "tool_use" else []
        completion = _completion({**self._body, "content": blocks})
        return replace(completion, message=_with_broken_arguments(completion.message, said_by_calls))


def _with_broken_arguments(message: Message, texts: list[str]) -> Message:
    """The message with the arguments that are no JSON, cut off at the length limit for one, as the model wrote them."""
    calls = tuple(
        call.model_copy(update={"arguments": text}) if text and not _is_json(text) else call
        for call, text in zip(message.tool_calls, texts, strict=True)
    )
    return message if calls == message.tool_calls else message.model_copy(update={"tool_calls": calls})


def _is_json(text: str) -> bool:
    try:
        JSON_DECODER.decode(text)
    except ValueError:
        return False
    return True


def _sent_before(request: Request) -> int | None:
    """How many messages the request before had, where the reply to it can't tell because it said nothing."""
    replies = [at for at, message in enumerate(request.messages) if message.role == "assistant"]
    if not replies or not anthropic.says_nothing(request.messages[replies[-1]]):
        return None
    before = request.model_copy(update={"messages": request.messages[: replies[-1]]})
    return len(anthropic.write(before)["messages"])


@dataclass(frozen=True, slots=True)
class AnthropicMessages:
    """Adapter for ``POST /v1/messages``. ``model`` is sent when the request names none.

    ``markers``: put the cache markers where ``interchange.cache_control`` says, in the place of any that the request has; without
    markers this API caches nothing. ``affinity`` is for gateways that speak this API.
    """

    model: str | None = None
    markers: bool = True
    affinity: Affinity = NO_AFFINITY
    version: str = "2023-06-01"
    path: str = "/v1/messages"

    @property
    def name(self) -> str:
        return "anthropic"

    @property
    def takes_tokens(self) -> bool:
        return False

    def call(self, prompt: Prompt, options: Options, *, stream: bool) -> Call:
        if options.seed is not None:
            raise UsageError(f"{_API} takes no seed; leave it out of the Options")
        body = anthropic.write(prompt.request)
        if self.markers:
            body = with_markers(body, ttl=_life(options.cache_life), sent=_sent_before(prompt.request))
        if self.model is not None:
            body.setdefault("model", self.model)
        if options.max_tokens is not None:
            body["max_tokens"] = options.max_tokens
        body.setdefault("max_tokens", _DEFAULT_MAX_TOKENS)
        if options.temperature is not None:
            body["temperature"] = options.temperature
        if options.stop:
            body["stop_sequences"] = list(options.stop)
        if stream:
            body["stream"] = True
        fields, headers = self.affinity.fields(options.conversation)
        headers["anthropic-version"] = self.version
        return Call(self.path, {**body, **options.extra, **fields}, headers)

    def completion(self, body: Mapping[str, Any]) -> Completion:
        return _completion(body)

    def parser(self) -> _Parser:
        return _Parser()
