"""Which API a request body is written for, told by its content and by what the log says of the endpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, cast, get_args

Api = Literal["openai.chat", "openai.responses", "anthropic.messages", "llama.completion", "text"]
"""``text``: only the text of prompt and answer was logged (``request["input"]``), no body of an API."""
APIS: tuple[Api, ...] = get_args(Api)

_NAMES: dict[str, Api] = {
    **{name: name for name in APIS},
    "chat.completions": "openai.chat",
    "openai": "openai.chat",
    "chat": "openai.chat",
    "responses": "openai.responses",
    "anthropic": "anthropic.messages",
    "messages": "anthropic.messages",
    "completion": "llama.completion",
}

_ENDPOINTS: tuple[tuple[str, Api], ...] = (
    ("/chat/completions", "openai.chat"),
    ("/responses", "openai.responses"),
    ("/v1/messages", "anthropic.messages"),
    ("/completion", "llama.completion"),
)

_ANTHROPIC_BLOCKS = {
    "tool_use",
    "tool_result",
    "thinking",
    "redacted_thinking",
    "document",
    "server_tool_use",
}
_OPENAI_TOOLS = (None, "function", "custom")
_OPENAI_PARTS = {"image_url", "input_audio", "refusal"}


def named_api(name: object) -> Api | None:
    """The API that a log's own ``api`` field names, or ``None`` when it is another name."""
    return _NAMES.get(name.strip().lower()) if isinstance(name, str) else None


def endpoint_api(url: str | None) -> Api | None:
    """The API behind a URL, or ``None`` when the URL says nothing."""
    if not url:
        return None
    path = url.split("?", 1)[0]
    return next((api for part, api in _ENDPOINTS if part in path), None)


def _dicts(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, dict))


def _tools_api(body: Mapping[str, Any]) -> Api | None:
    for tool in _dicts(body.get("tools")):
        if "function" in tool:
            return "openai.chat"
        # Anthropic's own tools have a type and a name and no schema.
        if "input_schema" in tool or ("name" in tool and tool.get("type") not in _OPENAI_TOOLS):
            return "anthropic.messages"
    return None


def _messages_api(body: Mapping[str, Any], response: Mapping[str, Any] | None) -> Api:
    """Tell the two APIs that have ``messages`` apart by the first sign that only one of them knows."""
    if (by_tools := _tools_api(body)) is not None:
        return by_tools
    if "system" in body or "anthropic_version" in body or "thinking" in body:
        return "anthropic.messages"
    for message in _dicts(body["messages"]):
        if message.get("role") in ("system", "developer", "tool", "function") or "tool_calls" in message:
            return "openai.chat"
        kinds = {kind for part in _dicts(message.get("content")) if isinstance(kind := part.get("type"), str)}
        if kinds & _ANTHROPIC_BLOCKS:
            return "anthropic.messages"
        if kinds & _OPENAI_PARTS:
            return "openai.chat"
        if any("cache_control" in part for part in _dicts(message.get("content"))):
            return "anthropic.messages"
    if response is not None:
        if "choices" in response:
            return "openai.chat"
        if isinstance(response.get("content"), list):
            return "anthropic.messages"
    model = body.get("model")
    if isinstance(model, str) and model.startswith("claude") and "max_tokens" in body:
        return "anthropic.messages"
    return "openai.chat"


def body_api(body: Any, response: Any = None, url: str | None = None, name: object = None) -> Api | None:
    """The API of a request body, or ``None`` when it is no request to a model.

    ``name`` is what the log calls the API, ``url`` where the request went; both are believed only where the
    body has the fields of that API.
    """
    if not isinstance(body, dict):
        return None
    known = named_api(name) or endpoint_api(url)
    reply = cast("Mapping[str, Any] | None", response if isinstance(response, dict) else None)
    if isinstance(body.get("messages"), list):
        if known in ("openai.chat", "anthropic.messages"):
            return known
        return _messages_api(body, reply)
    if isinstance(body.get("input"), (str, list)) and "prompt" not in body:
        if known in ("openai.responses", "text"):
            return known
        # Embedding requests have an input too; what only the Responses API has tells them apart.
        signs = (
            "instructions",
            "previous_response_id",
            "tools",
            "max_output_tokens",
            "reasoning",
            "store",
            "text",
        )
        items = body["input"] if isinstance(body["input"], list) else []
        if any(sign in body for sign in signs) or any(
            "role" in item or "type" in item for item in _dicts(items)
        ):
            return "openai.responses"
        if reply is not None and ("output" in reply or reply.get("object") == "response"):
            return "openai.responses"
        return None
    if "prompt" in body and _is_prompt(body["prompt"]):
        return "llama.completion"
    if "previous_response_id" in body and "model" in body:
        return "openai.responses"
    return None


def _is_prompt(value: Any) -> bool:
    if isinstance(value, (str, list)):
        return True
    return isinstance(value, dict) and ("prompt_string" in value or "prompt_tokens" in value)
