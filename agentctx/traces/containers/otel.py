"""OpenTelemetry spans of model calls, by the GenAI conventions and their forerunners.

Messages stand in a span's attributes in one of three ways: as JSON (``gen_ai.input.messages``), flattened with an
index (``gen_ai.prompt.0.role``; OpenInference: ``llm.input_messages.0.message.role``), or in span events. All give a
body in the shape of OpenAI chat completions: a span doesn't keep the provider's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentctx.interchange.times import seconds
from agentctx.traces.containers import cut_values
from agentctx.traces.containers.draft import Draft, Json
from agentctx.traces.containers.otel_messages import (
    chat_messages,
    event_messages,
    indexed_messages,
    indices,
    instructions,
    parsed,
    tool_definitions,
)

_MODEL = ("gen_ai.request.model", "llm.request.model", "llm.model_name", "gen_ai.response.model")
_SESSION = ("gen_ai.conversation.id", "session.id", "langfuse.session.id")
_PARAMETERS = {
    "gen_ai.request.temperature": "temperature",
    "gen_ai.request.top_p": "top_p",
    "gen_ai.request.max_tokens": "max_tokens",
    "gen_ai.request.seed": "seed",
    "gen_ai.request.frequency_penalty": "frequency_penalty",
    "gen_ai.request.presence_penalty": "presence_penalty",
    "gen_ai.request.stop_sequences": "stop",
    "gen_ai.request.reasoning.effort": "reasoning_effort",
}
_INPUT_TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")
_OUTPUT_TOKENS = (
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
    "llm.token_count.completion",
)
_CACHED_TOKENS = (
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_read_input_tokens",
    "gen_ai.usage.details.cache_read_tokens",
    "gen_ai.usage.details.cached_tokens",
    "llm.token_count.prompt_details.cache_read",
)
_WRITTEN_TOKENS = (
    "gen_ai.usage.cache_creation.input_tokens",
    "gen_ai.usage.cache_creation_input_tokens",
    "llm.token_count.prompt_details.cache_write",
)


_AS_JSON = ("gen_ai.input.messages", "gen_ai.prompt")
_PROMPTS = ("gen_ai.prompt.", "llm.input_messages.", "llm.prompts.")
_COMPLETIONS = ("gen_ai.completion.", "llm.output_messages.", "llm.completions.")


def spans(value: Any) -> list[tuple[Json, Json]] | None:
    """The spans in a value, each with what stands around it (resource, scope); ``None`` when it holds none.

    Takes OTLP's JSON (one export, or one span of it) and the SDK's own JSON of a span.
    """
    if not isinstance(value, dict):
        return None
    groups = value.get("resourceSpans", value.get("resource_spans", value.get("batches")))
    if isinstance(groups, list):
        return list(_exported(groups))
    traced = {"traceId", "spanId"} <= value.keys() or (
        isinstance(value.get("context"), dict) and {"trace_id", "span_id"} <= value["context"].keys()
    )
    return [(value, {})] if traced and "attributes" in value else None


def _exported(groups: list[Any]) -> Iterator[tuple[Json, Json]]:
    for group in groups:
        if not isinstance(group, dict):
            continue
        scopes = group.get("scopeSpans", group.get("scope_spans", group.get("instrumentationLibrarySpans")))
        for scope in scopes if isinstance(scopes, list) else ():
            found = scope.get("spans") if isinstance(scope, dict) else None
            around = {"resource": group.get("resource"), "scope": scope.get("scope")} if found else {}
            for span in found if isinstance(found, list) else ():
                if isinstance(span, dict):
                    yield span, around


def model_call(span: Json, around: Json) -> Draft | None:
    """The model call that a span describes; ``None`` for a span without messages. The whole span is kept beside it."""
    attributes, cut = cut_values.opened(attribute_values(span.get("attributes")))
    events, cut_event = _events(span)
    messages = _messages(attributes, events, "input")
    cut = cut or cut_event
    if not messages and not cut:
        # Of a model's call the messages may be what was dropped.
        cut = cut_values.dropped(span) if _first(attributes, _MODEL) is not None else ""
        if not cut:
            return None
    body: Json = {"model": _first(attributes, _MODEL), "messages": messages}
    tools = tool_definitions(attributes)
    if tools:
        body["tools"] = tools
    for name, key in _PARAMETERS.items():
        if name in attributes:
            body[key] = attributes[name]
    called = parsed(attributes.get("llm.invocation_parameters"))
    if isinstance(called, dict):
        body = {**{key: item for key, item in called.items() if key not in ("messages", "tools")}, **body}
    session = _first(attributes, _SESSION)
    address = attributes.get("server.address")
    return Draft(
        api="openai.chat",
        request=body,
        response=_response(attributes, events),
        container="otel",
        at=seconds(span.get("startTimeUnixNano", span.get("start_time_unix_nano", span.get("start_time")))),
        endpoint_hint=str(address) if address is not None else None,
        session_hint=str(session) if session is not None else None,
        extra={"span": span, **around},
        cut=cut or _incomplete(span, attributes, messages),
        loose=not any(isinstance(each.get(name), str) for each in _given(span) for name in _AS_JSON),
    )


def _incomplete(span: Json, attributes: Json, messages: list[Json]) -> str:
    """What shows that messages, or the ends of their texts, are missing."""
    numbers = (cut_values.gap(indices(attributes, prefix), prefix) for prefix in (*_PROMPTS, *_COMPLETIONS))
    return (
        cut_values.dropped(span)
        or cut_values.dropped(span, "events")
        or ("the model's name is empty" if _first(attributes, _MODEL) == "" else "")
        or next(filter(None, numbers), "")
        or cut_values.beside(attributes, messages)
    )


def _messages(attributes: Json, events: list[Json], side: str) -> list[Json]:
    """The messages of one side (``input`` or ``output``) in whichever of the ways the span holds them."""
    found = parsed(attributes.get(f"gen_ai.{side}.messages"))
    if isinstance(found, list):
        head = instructions(attributes) if side == "input" else []
        return head + chat_messages(found)
    if side == "input" and isinstance(listed := parsed(attributes.get("gen_ai.prompt")), list):
        return chat_messages(listed)
    for prefix in _PROMPTS if side == "input" else _COMPLETIONS:
        if messages := indexed_messages(attributes, prefix):
            return messages
    return event_messages(events, side)


def _response(attributes: Json, events: list[Json]) -> Json | None:
    messages = _messages(attributes, events, "output")
    prompt, output = _first(attributes, _INPUT_TOKENS), _first(attributes, _OUTPUT_TOKENS)
    cached, written = _first(attributes, _CACHED_TOKENS), _first(attributes, _WRITTEN_TOKENS)
    body: Json = {}
    if messages:
        body["choices"] = [
            {"index": index, "message": message, "finish_reason": message.pop("finish_reason", None)}
            for index, message in enumerate(messages)
        ]
    usage = {"prompt_tokens": prompt, "completion_tokens": output}
    details = {"cached_tokens": cached, "cache_write_tokens": written}
    known = {key: value for key, value in details.items() if value is not None}
    if any(value is not None for value in usage.values()) or known:
        body["usage"] = {key: value for key, value in usage.items() if value is not None}
        if known:
            body["usage"]["prompt_tokens_details"] = known
    if "gen_ai.response.id" in attributes:
        body["id"] = attributes["gen_ai.response.id"]
    return body or None


def _given(span: Json) -> Iterator[Json]:
    """Attributes of the span and of its events, as they were logged."""
    events = span.get("events")
    for holder in (span, *(events if isinstance(events, list) else ())):
        if isinstance(holder, dict):
            yield attribute_values(holder.get("attributes"))


def _events(span: Json) -> tuple[list[Json], str]:
    """The events that are about messages, and what is wrong with the first that isn't whole."""
    events, problem = span.get("events"), ""
    found = []
    for event in events if isinstance(events, list) else ():
        name = event.get("name") if isinstance(event, dict) else None
        if isinstance(name, str) and name.startswith("gen_ai."):
            attributes, cut = cut_values.opened(
                attribute_values(event.get("attributes")), more=cut_values.OF_EVENTS
            )
            problem = problem or cut or cut_values.dropped(event)
            found.append({"name": name, "attributes": attributes})
    return found, problem


def _first(attributes: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((attributes[name] for name in names if attributes.get(name) is not None), None)


def attribute_values(attributes: Any) -> Json:
    """Attributes as a plain mapping: the SDK's object as it is, OTLP's list of keys and typed values unpacked."""
    if isinstance(attributes, dict):
        return attributes
    found: Json = {}
    for item in attributes if isinstance(attributes, list) else ():
        if isinstance(item, dict) and isinstance(item.get("key"), str):
            found[item["key"]] = _any_value(item.get("value"))
    return found


def _any_value(value: Any) -> Any:
    """OTLP's AnyValue. Integers come as text, because JSON's numbers don't hold 64 bits everywhere."""
    if not isinstance(value, dict) or not value:
        return None
    kind, held = next(iter(value.items()))
    match kind:
        case "intValue" | "int_value":
            try:
                return int(held)
            except (TypeError, ValueError):
                return None
        case "arrayValue" | "array_value":
            values = held.get("values") if isinstance(held, dict) else None
            return [_any_value(item) for item in values] if isinstance(values, list) else []
        case "kvlistValue" | "kvlist_value":
            return attribute_values(held.get("values") if isinstance(held, dict) else None)
        case _:
            return held
