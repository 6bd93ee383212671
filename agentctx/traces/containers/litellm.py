"""LiteLLM's standard logging payload: one flat object per call, with the parameters apart from the messages."""

from __future__ import annotations

from typing import Any

from agentctx.interchange.body_api import Api, body_api
from agentctx.interchange.times import seconds
from agentctx.traces.containers import cut_values
from agentctx.traces.containers.draft import Draft, as_object, as_response, get, without

_SENT = ("additional_args", "complete_input_dict")  # the body as it went to the provider, where it was logged


def payload(value: Any) -> Draft | None:
    """One payload; ``None`` for other values and for calls that send no messages (embeddings, images)."""
    if not isinstance(value, dict) or "messages" not in value:
        return None
    if not ({"call_type", "model_parameters", "litellm_call_id"} & value.keys()):
        return None
    reply, plain = as_response(value.get("response"))
    sent = get(value, _SENT)
    taken: list[tuple[str, ...]] = [("response",)] if plain else []
    if isinstance(sent, dict) and body_api(sent, reply) is not None:
        body, api = sent, body_api(sent, reply)
        taken.append(_SENT)
    else:
        body, api = _built(value)
        taken += [("messages",), ("model_parameters",)]
    if api is None:
        return None
    session = value.get("session_id") or value.get("trace_id") or get(value, ("metadata", "session_id"))
    base = value.get("api_base")
    return Draft(
        api=api,
        request=body,
        response=reply,
        container="litellm",
        at=seconds(value.get("startTime") or value.get("start_time")),
        endpoint_hint=base if isinstance(base, str) and base else None,
        session_hint=str(session) if isinstance(session, (str, int)) else None,
        extra=without(value, *taken),
        cut=_cut(value) or cut_values.marked(body) or cut_values.marked(reply),
        loose=True,
    )


def _cut(value: dict[str, Any]) -> str:
    """Parts that stand in the payload as JSON text, and aren't whole."""
    for name in ("messages", "model_parameters", "response"):
        text = value.get(name)
        if isinstance(text, str) and text[:1] in ("{", "[") and as_response(text)[0] is None:
            return f"{name} is no whole JSON after {len(text):,} characters"
    return ""


def _built(value: dict[str, Any]) -> tuple[dict[str, Any], Api | None]:
    """The body put together from the payload's parts. ``model`` stays in the payload too."""
    parameters = as_object(value.get("model_parameters"))
    call_type = value.get("call_type")
    kind = call_type if isinstance(call_type, str) else ""
    key = "input" if "responses" in kind else "messages"
    body = {"model": value.get("model"), key: value["messages"]}
    body |= parameters or {}
    if "anthropic" in kind:
        return body, body_api(body, name="anthropic.messages")
    return body, body_api(body, name="openai.responses" if key == "input" else "openai.chat")
