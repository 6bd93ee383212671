"""OpenAI Responses: items in, items out. History stays with the client (``store`` is left to the caller)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentctx.backends.adapter import Call, need
from agentctx.backends.affinity import OPENAI, Affinity
from agentctx.backends.backend import BadResponse, Completion, Options, StreamBroken
from agentctx.interchange import openai_responses
from agentctx.rendering.prompt import Prompt
from agentctx.usage import Usage, usage_from_response

_API = "Responses"


def _completion(body: Mapping[str, Any]) -> Completion:
    items = need(body, "output", list, _API)
    messages = openai_responses.read_items(items, "output")
    if len(messages) != 1:
        raise BadResponse(f"the {_API} output holds {len(messages)} replies; one was expected")
    status = body.get("status")
    return Completion(
        message=messages[0],
        usage=usage_from_response(body) or Usage(),
        finish_reason=status if isinstance(status, str) else None,
        model=body.get("model") if isinstance(body.get("model"), str) else None,
    )


class _Parser:
    """Passes text on as it comes; the last event carries the whole response."""

    def __init__(self) -> None:
        self._text = ""
        self._body: Mapping[str, Any] | None = None

    def feed(self, event: str, data: Mapping[str, Any]) -> str:
        kind = data.get("type") or event
        if kind == "response.output_text.delta":
            text = need(data, "delta", str, _API)
            self._text += text
            return str(text)
        if kind in ("response.completed", "response.incomplete"):
            self._body = need(data, "response", dict, _API)
        elif kind in ("error", "response.failed"):
            error = data.get("error") or (data.get("response") or {}).get("error") or data
            raise StreamBroken(
                f"the server ended the reply with an error: {error.get('message')}", partial=self._text
            )
        return ""

    def finish(self) -> Completion:
        if self._body is None:
            raise StreamBroken(
                f"the stream ended after {len(self._text)} characters, before the reply did",
                partial=self._text,
            )
        return _completion(self._body)


@dataclass(frozen=True, slots=True)
class OpenAIResponses:
    """Adapter for ``POST /responses`` (base URL with ``/v1``). ``model`` is sent when the request names none."""

    model: str | None = None
    affinity: Affinity = OPENAI
    path: str = "/responses"

    @property
    def name(self) -> str:
        return "openai-responses"

    @property
    def takes_tokens(self) -> bool:
        return False

    def call(self, prompt: Prompt, options: Options, *, stream: bool) -> Call:
        body = openai_responses.write(prompt.request)
        if self.model is not None:
            body.setdefault("model", self.model)
        if options.max_tokens is not None:
            body["max_output_tokens"] = options.max_tokens
        if options.cache_life is not None:
            body["prompt_cache_retention"] = options.cache_life
        if options.temperature is not None:
            body["temperature"] = options.temperature
        if stream:
            body["stream"] = True
        fields, headers = self.affinity.fields(options.conversation)
        return Call(self.path, {**body, **options.extra, **fields}, headers)

    def completion(self, body: Mapping[str, Any]) -> Completion:
        return _completion(body)

    def parser(self) -> _Parser:
        return _Parser()
