"""Anthropic Messages: what was read from the cache, and what was written to it, split by lifetime.

Source: the Messages API reference and its streaming page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentctx.backends.adapter import Call, need
from agentctx.backends.affinity import NO_AFFINITY, Affinity
from agentctx.backends.backend import BadResponse, Completion, Options, StreamBroken
from agentctx.errors import UsageError
from agentctx.interchange import anthropic
from agentctx.interchange.cache_control import Life, with_markers
from agentctx.messages import Message
from agentctx.rendering.prompt import Prompt
from agentctx.usage import Usage, usage_from_anthropic

_API = "Anthropic Messages"
_DEFAULT_MAX_TOKENS = 4096  # the API requires one


def _completion(body: Mapping[str, Any]) -> Completion:
    blocks = need(body, "content", list, _API)
    messages = anthropic.read_item({"role": "assistant", "content": blocks}, "response")
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
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, list[str]] = {}
        self._text = ""
        self._stopped = False

    def feed(self, event: str, data: Mapping[str, Any]) -> str:
        kind = data.get("type") or event
        if kind == "error":
            error = data.get("error") or {}
            raise StreamBroken(
                f"the server ended the reply with {error.get('type')}: {error.get('message')}",
                partial=self._text,
            )
        if kind == "message_start":
            self._body = dict(need(data, "message", dict, _API))
        elif kind == "content_block_start":
            index = need(data, "index", int, _API)
            self._blocks[index] = dict(need(data, "content_block", dict, _API))
        elif kind == "content_block_delta":
            return self._delta(need(data, "index", int, _API), need(data, "delta", dict, _API))
        elif kind == "message_delta":
            self._body.update(data.get("delta") or {})
            self._body["usage"] = {**(self._body.get("usage") or {}), **(data.get("usage") or {})}
        elif kind == "message_stop":
            self._stopped = True
        return ""

    def _delta(self, index: int, delta: Mapping[str, Any]) -> str:
        if index not in self._blocks:
            raise BadResponse(f"the {_API} stream has a delta for block {index}, which never started")
        block = self._blocks[index]
        kind = delta.get("type")
        if kind == "text_delta":
            block["text"] = block.get("text", "") + delta["text"]
            self._text += delta["text"]
            return str(delta["text"])
        if kind == "input_json_delta":
            self._inputs.setdefault(index, []).append(delta["partial_json"])
        elif kind == "thinking_delta":
            block["thinking"] = block.get("thinking", "") + delta["thinking"]
        elif kind == "signature_delta":
            block["signature"] = delta["signature"]
        elif kind == "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta["citation"]]
        return ""

    def finish(self) -> Completion:
        if not self._stopped:
            raise StreamBroken(
                f"the stream ended after {len(self._text)} characters, before the reply did",
                partial=self._text,
            )
        for index, pieces in self._inputs.items():
            text = "".join(pieces)
            try:
                self._blocks[index]["input"] = json.loads(text) if text else {}
            except ValueError:
                raise BadResponse(
                    f"the {_API} stream has a tool input that is no JSON: {text[:80]!r}"
                ) from None
        return _completion({**self._body, "content": [self._blocks[index] for index in sorted(self._blocks)]})


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
        body = anthropic.write(prompt.request)
        if self.markers:
            body = with_markers(body, ttl=_life(options.cache_life))
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
