"""OpenAI Responses: items in, items out. History stays with the client (``store`` is left to the caller)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentctx.backends.adapter import Call, count_or_none, need
from agentctx.backends.affinity import OPENAI, Affinity
from agentctx.backends.backend import Completion, Options, StreamBroken
from agentctx.errors import UsageError
from agentctx.interchange import openai_responses
from agentctx.rendering.prompt import Prompt
from agentctx.usage import Usage, usage_from_response

_API = "Responses"


def _completion(body: Mapping[str, Any]) -> Completion:
    return Completion(
        message=openai_responses.read_reply(need(body, "output", list, _API)),
        usage=usage_from_response(body) or Usage(),
        finish_reason=_finish_reason(body),
        model=body.get("model") if isinstance(body.get("model"), str) else None,
    )


def _finish_reason(body: Mapping[str, Any]) -> str | None:
    """The status, or why the reply is incomplete: ``max_output_tokens`` where it was cut off."""
    status, details = body.get("status"), body.get("incomplete_details")
    reason = details.get("reason") if status == "incomplete" and isinstance(details, Mapping) else None
    found = reason or status
    return found if isinstance(found, str) else None


class _Parser:
    """Passes text on as it comes; the last event carries the whole response.

    Some servers leave its output out there: then it is what the events before it gave.
    """

    def __init__(self) -> None:
        self._text: list[str] = []
        self._items: dict[int, dict[str, Any]] = {}
        self._body: Mapping[str, Any] | None = None

    def feed(self, event: str, data: Mapping[str, Any]) -> str:
        kind = data.get("type") or event
        if kind == "response.output_text.delta":
            text = need(data, "delta", str, _API)
            self._text.append(text)
            return str(text)
        if kind == "response.output_item.done":
            index = count_or_none(data.get("output_index"))  # llama-server gives none
            self._items[len(self._items) if index is None else index] = need(data, "item", dict, _API)
        elif kind in ("response.completed", "response.incomplete"):
            self._body = need(data, "response", dict, _API)
        elif kind in ("error", "response.failed"):
            error = data.get("error") or (data.get("response") or {}).get("error") or data
            raise StreamBroken(
                f"the server ended the reply with an error: {error.get('message')}",
                partial="".join(self._text),
            )
        return ""

    def finish(self) -> Completion:
        text = "".join(self._text)
        if self._body is None:
            raise StreamBroken(
                f"the stream ended after {len(text)} characters, before the reply did", partial=text
            )
        output = self._body.get("output") or [self._items[index] for index in sorted(self._items)]
        if not output and text:
            output = [{"role": "assistant", "content": text}]
        return _completion({**self._body, "output": output})


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
        if options.stop or options.seed is not None:
            raise UsageError(
                f"the {_API} API takes no stop texts and no seed; leave them out of the Options, or give them as its "
                "extra fields to a server that knows them"
            )
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
