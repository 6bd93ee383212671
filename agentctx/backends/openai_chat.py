"""OpenAI-style chat completions: OpenAI, vLLM, SGLang, llama-server and the many servers that follow them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentctx.backends.adapter import Call, need
from agentctx.backends.affinity import OPENAI, Affinity
from agentctx.backends.backend import BadResponse, Completion, Options, StreamBroken
from agentctx.interchange import openai_chat
from agentctx.rendering.prompt import Prompt
from agentctx.usage import Usage, usage_from_response

_API = "chat completions"


def _completion(message: Mapping[str, Any], body: Mapping[str, Any], finish: Any) -> Completion:
    return Completion(
        message=openai_chat.read_message({"role": "assistant", **message}, "choices.0.message"),
        usage=usage_from_response(body) or Usage(),
        finish_reason=finish if isinstance(finish, str) else None,
        model=body.get("model") if isinstance(body.get("model"), str) else None,
    )


class _Parser:
    """Joins the deltas of choice 0: text, reasoning, tool calls by their index; usage comes in a chunk of its own."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._reasoning: dict[str, list[str]] = {}
        self._calls: dict[int, dict[str, Any]] = {}
        self._finish: str | None = None
        self._body: dict[str, Any] = {}

    def feed(self, event: str, data: Mapping[str, Any]) -> str:
        if isinstance(data.get("error"), Mapping):
            raise StreamBroken(
                f"the server ended the reply with an error: {data['error'].get('message')}",
                partial="".join(self._text),
            )
        for key in ("model", "usage", "timings"):
            if data.get(key):
                self._body[key] = data[key]
        choices = data.get("choices")
        if not isinstance(choices, list):
            raise BadResponse(f"a stream event of {_API} has no choices")
        if not choices:
            return ""
        choice = need(data, "choices.0", dict, _API)
        self._finish = choice.get("finish_reason") or self._finish
        delta = choice.get("delta") or {}
        for key in ("reasoning_content", "reasoning"):
            if isinstance(delta.get(key), str):
                self._reasoning.setdefault(key, []).append(delta[key])
        for piece in delta.get("tool_calls") or ():
            self._take_call(piece)
        text = delta.get("content") or ""
        self._text.append(text)
        return str(text)

    def _take_call(self, piece: Mapping[str, Any]) -> None:
        index = piece.get("index", len(self._calls))
        call = self._calls.setdefault(
            index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        )
        call["id"] = piece.get("id") or call["id"]
        function = piece.get("function") or {}
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""

    def finish(self) -> Completion:
        text = "".join(self._text)
        if self._finish is None:
            raise StreamBroken(
                f"the stream ended after {len(text)} characters, before the reply did", partial=text
            )
        message: dict[str, Any] = {"content": text or (None if self._calls else "")}
        for key, pieces in self._reasoning.items():
            message[key] = "".join(pieces)
        if self._calls:
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
        return _completion(message, self._body, self._finish)


@dataclass(frozen=True, slots=True)
class OpenAIChat:
    """Adapter for ``POST /chat/completions`` (base URL with ``/v1``).

    ``model`` is sent when the request names none. ``affinity`` says which fields keep a conversation on its replica.
    """

    model: str | None = None
    affinity: Affinity = OPENAI
    path: str = "/chat/completions"

    @property
    def name(self) -> str:
        return "openai-chat"

    @property
    def takes_tokens(self) -> bool:
        return False

    def call(self, prompt: Prompt, options: Options, *, stream: bool) -> Call:
        body = openai_chat.write(prompt.request)
        if self.model is not None:
            body.setdefault("model", self.model)
        if options.max_tokens is not None:
            body["max_completion_tokens"] = options.max_tokens
        if options.cache_life is not None:
            body["prompt_cache_retention"] = options.cache_life
        if options.temperature is not None:
            body["temperature"] = options.temperature
        if options.seed is not None:
            body["seed"] = options.seed
        if options.stop:
            body["stop"] = list(options.stop)
        if options.slot is not None:
            body["id_slot"] = options.slot  # llama-server's extension
        if not options.cache_prompt:
            body["cache_prompt"] = False
        if stream:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True}
        body.update(options.extra)
        fields, headers = self.affinity.fields(options.conversation)
        return Call(self.path, {**body, **fields}, headers)

    def completion(self, body: Mapping[str, Any]) -> Completion:
        message = need(body, "choices.0.message", dict, _API)
        return _completion(message, body, body["choices"][0].get("finish_reason"))

    def parser(self) -> _Parser:
        return _Parser()
