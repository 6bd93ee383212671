"""OpenAI-style chat completions: OpenAI, vLLM, SGLang, llama-server and the many servers that follow them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agentctx.backends.adapter import Call, need
from agentctx.backends.affinity import OPENAI, Affinity
from agentctx.backends.backend import BadResponse, Completion, Options, StreamBroken
from agentctx.backends.streamed_fields import StreamedFields, joined_lists, said
from agentctx.interchange import openai_chat
from agentctx.interchange.wire import without
from agentctx.rendering.prompt import Prompt
from agentctx.usage import Usage, usage_from_response

_API = "chat completions"
_LIMITS = ("max_tokens", "max_completion_tokens")
_NO_FIELDS = ("role", "index")  # of a delta: known before, and its place in the stream


def _completion(message: Mapping[str, Any], body: Mapping[str, Any], finish: Any) -> Completion:
    return Completion(
        message=openai_chat.read_message({"role": "assistant", **message}, "choices.0.message"),
        usage=usage_from_response(body) or Usage(),
        finish_reason=finish if isinstance(finish, str) else None,
        model=body.get("model") if isinstance(body.get("model"), str) else None,
    )


class _Calls:
    """Tool calls from their pieces, which say by an index or by their place which call they belong to."""

    def __init__(self) -> None:
        self._calls: list[tuple[int, StreamedFields]] = []
        self._open: dict[int, int] = {}
        self._ids: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, piece: Mapping[str, Any]) -> None:
        index, identity = piece.get("index"), piece.get("id") or ""
        if type(index) is not int:
            index = self._calls[-1][0] if self._calls else 0
        at = self._open.get(index)
        if at is None or self._is_another(piece, self._ids[at]):
            self._open[index] = at = len(self._calls)
            self._calls.append((index, StreamedFields()))
            self._ids.append(identity)
        self._ids[at] = identity or self._ids[at]
        self._calls[at][1].add(without(piece, "index"))

    @staticmethod
    def _is_another(piece: Mapping[str, Any], known: str) -> bool:
        """Some servers send each call whole and all under one index. A call begins with its name."""
        inner = piece.get("function") or piece.get("custom") or {}
        return bool(known and piece.get("id") and piece["id"] != known and inner.get("name"))

    def whole(self) -> list[dict[str, Any]]:
        return [_call(fields) for _, fields in sorted(self._calls, key=lambda call: call[0])]


def _call(fields: StreamedFields) -> dict[str, Any]:
    call = said(fields.whole())
    kind, text = ("custom", "input") if "custom" in call else ("function", "arguments")
    inner = said(call.get(kind) or {})
    call[kind] = inner if {"name", text} <= inner.keys() else {"name": "", text: "", **inner}
    return call if {"id", "type"} <= call.keys() else {"id": "", "type": kind, **call}


def _text_of(content: Any) -> str:
    """What a piece of a content adds to the text: it is a string, or a list of parts."""
    if not isinstance(content, list):
        return content or ""
    return "".join(part["text"] for part in content if part.get("type") == "text")


def _content(pieces: list[Any]) -> str | list[Any]:
    if not any(isinstance(piece, list) for piece in pieces):
        return "".join(pieces)
    return joined_lists(
        [piece if isinstance(piece, list) else [{"type": "text", "text": piece}] for piece in pieces]
    )


class _Parser:
    """Joins the deltas of choice 0, fields without a name here included; usage comes in a chunk of its own."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._content: list[Any] = []
        self._fields = StreamedFields()
        self._calls = _Calls()
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
        # Content and calls have their own rules; what they leave here is their place among the fields.
        places = {key: None for key in ("content", "tool_calls") if key in delta}
        self._fields.add(
            {key: places.get(key, value) for key, value in delta.items() if key not in _NO_FIELDS}
        )
        for piece in delta.get("tool_calls") or ():
            self._calls.add(piece)
        text = _text_of(delta.get("content"))
        if delta.get("content"):
            self._content.append(delta["content"])
        self._text.append(text)
        return text

    def finish(self) -> Completion:
        text = "".join(self._text)
        if self._finish is None:
            raise StreamBroken(
                f"the stream ended after {len(text)} characters, before the reply did", partial=text
            )
        return _completion(self._message(), self._body, self._finish)

    def _message(self) -> dict[str, Any]:
        """The message as it would have come whole. Fields that only were null are left out: some APIs refuse their own."""
        fields = self._fields.whole()
        message = {"content": None, **fields} if "content" not in fields else fields
        calls = self._calls.whole()
        nothing = None if calls or message.get("refusal") else ""
        known = {"content": _content(self._content) or nothing, "tool_calls": calls or None}
        message = {key: known.get(key, value) for key, value in message.items()}
        return {key: value for key, value in message.items() if key == "content" or value is not None}


def _limited(body: dict[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The body with more fields. The length limit has two names, and the API refuses a request with both."""
    return {**(without(body, *_LIMITS) if any(key in more for key in _LIMITS) else body), **more}


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
            body = _limited(body, {"max_completion_tokens": options.max_tokens})
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
        body = _limited(body, options.extra)
        fields, headers = self.affinity.fields(options.conversation)
        return Call(self.path, {**body, **fields}, headers)

    def completion(self, body: Mapping[str, Any]) -> Completion:
        message = need(body, "choices.0.message", dict, _API)
        return _completion(message, body, body["choices"][0].get("finish_reason"))

    def parser(self) -> _Parser:
        return _Parser()
