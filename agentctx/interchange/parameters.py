"""What a request body holds besides tools and messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentctx.interchange.wire import check_reserved, hint_of, ordered, packed, same, unknown_of
from agentctx.messages import Params, canonical_json

_LENGTH_LIMIT = {"openai.responses": "max_output_tokens", "llama.completion": "n_predict"}
_TEMPLATE_KWARGS = "chat_template_kwargs"


def read_params(api: str, body: Mapping[str, Any], own: Mapping[str, Any]) -> Params:
    """The parameters of a body. ``own`` is what tools and messages give; all else is a parameter or kept unknown."""
    check_reserved(body)
    known: dict[str, Any] = {}
    rest = {key: value for key, value in body.items() if key not in own}
    limit = _LENGTH_LIMIT.get(api, "max_tokens")
    if isinstance(rest.get("model"), str):
        known["model"] = rest.pop("model")
    if isinstance(rest.get("temperature"), int | float) and not isinstance(rest["temperature"], bool):
        known["temperature"] = rest.pop("temperature")
    if isinstance(rest.get(limit), int) and not isinstance(rest[limit], bool):
        known["max_tokens"] = rest.pop(limit)
    for key, field in (("tool_choice", "tool_choice_json"), (_TEMPLATE_KWARGS, "template_kwargs_json")):
        if rest.get(key) is not None:
            known[field] = canonical_json(rest.pop(key))
    params = Params(**known, extra_json=packed(api, rest) if rest else None)
    if same(write_params(api, own, params), body):
        return params
    hint: dict[str, Any] = {"keys": list(body)}
    if params.temperature is not None:
        hint["temperature"] = body["temperature"]  # 0 and 0.0 are different bytes
    return params.model_copy(update={"extra_json": packed(api, rest, **hint)})


def write_params(api: str, own: Mapping[str, Any], params: Params) -> dict[str, Any]:
    """The whole body: model, then what tools and messages give, then the other parameters."""
    hint = hint_of(params, api)
    body: dict[str, Any] = {} if params.model is None else {"model": params.model}
    body |= own
    if params.temperature is not None:
        kept = hint.get("temperature")
        body["temperature"] = kept if kept == params.temperature else params.temperature
    if params.max_tokens is not None:
        body[_LENGTH_LIMIT.get(api, "max_tokens")] = params.max_tokens
    if params.tool_choice_json is not None:
        body["tool_choice"] = json.loads(params.tool_choice_json)
    if params.template_kwargs_json is not None and api != "anthropic.messages":
        body[_TEMPLATE_KWARGS] = json.loads(params.template_kwargs_json)
    return ordered(body | unknown_of(params, api), hint.get("keys"))
