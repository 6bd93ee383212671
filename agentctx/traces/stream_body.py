"""A streamed response put together again: from the events that a log holds to the body that an unstreamed call gives."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from agentctx.traces.source import parse_text

Json = dict[str, Any]


def event_data(text: str) -> list[Json]:
    """The JSON objects of a stream of server-sent events, in order; other lines and the closing mark are left out."""
    found = []
    for line in text.splitlines():
        if not line.startswith("data:"):
            continue
        try:
            value = parse_text(line[5:])
        except ValueError:
            continue  # ``[DONE]``, and an event that the log cut off
        if isinstance(value, dict):
            found.append(value)
    return found


def assemble(events: Iterable[Any]) -> Json | None:
    """The response body that a stream's events add up to; ``None`` when they are of no known API.

    A stream that was cut off gives what had arrived, without a reason for its end.
    """
    objects = [event for event in events if isinstance(event, dict)]
    if any(event.get("type") == "message_start" for event in objects):
        return _anthropic(objects)
    if any(str(event.get("type", "")).startswith("response.") for event in objects):
        return _responses(objects)
    if any(isinstance(event.get("choices"), list) for event in objects):
        return _chat(objects)
    if objects and all("content" in event and "stop" in event for event in objects):
        return _llama(objects)
    return None


def assemble_text(text: str) -> Json | None:
    """``assemble`` the server-sent events of a text."""
    return assemble(event_data(text)) if "data:" in text else None


def _anthropic(events: list[Json]) -> Json:
    body: Json = {}
    blocks: dict[int, Json] = {}
    arguments: dict[int, str] = {}
    for event in events:
        index = event.get("index")
        match event.get("type"):
            case "message_start" if isinstance(event.get("message"), dict):
                body = dict(event["message"])
            case "content_block_start" if isinstance(index, int) and isinstance(
                event.get("content_block"), dict
            ):
                blocks[index] = dict(event["content_block"])
            case "content_block_delta" if isinstance(index, int) and isinstance(event.get("delta"), dict):
                _anthropic_delta(blocks.setdefault(index, {}), arguments, index, event["delta"])
            case "message_delta":
                _merge(body, event.get("delta"))
                usage = event.get("usage")
                if isinstance(usage, dict):
                    before = body.get("usage")
                    body["usage"] = {**(before if isinstance(before, dict) else {}), **usage}
    for index, text in arguments.items():
        try:
            blocks[index]["input"] = parse_text(text) if text else {}
        except ValueError:
            blocks[index]["input"] = text  # cut off in the middle: all that is known
    body["content"] = [blocks[index] for index in sorted(blocks)]
    return body


def _anthropic_delta(block: Json, arguments: dict[int, str], index: int, delta: Json) -> None:
    match delta.get("type"):
        case "input_json_delta":
            arguments[index] = arguments.get(index, "") + _text(delta.get("partial_json"))
        case "citations_delta":
            block["citations"] = [*_list(block.get("citations")), delta.get("citation")]
        case _:
            for key, value in delta.items():
                if key != "type":
                    block[key] = _text(block.get(key)) + value if isinstance(value, str) else value


def _responses(events: list[Json]) -> Json:
    body: Json = {}
    items: dict[int, Any] = {}
    for event in events:
        if isinstance(event.get("response"), dict):
            body = dict(event["response"])
        if event.get("type") == "response.output_item.done" and isinstance(event.get("output_index"), int):
            items[event["output_index"]] = event.get("item")
    if not body.get("output"):
        body["output"] = [items[index] for index in sorted(items)]
    return body


def _chat(events: list[Json]) -> Json:
    body: Json = {}
    choices: dict[int, Json] = {}
    for event in events:
        for key, value in event.items():
            if key != "choices" and (value is not None or key not in body):
                body[key] = value
        for chunk in _list(event.get("choices")):
            if isinstance(chunk, dict):
                index = chunk.get("index")
                _chat_chunk(choices.setdefault(index if isinstance(index, int) else 0, {}), chunk)
    if body.get("object") == "chat.completion.chunk":
        body["object"] = "chat.completion"
    body["choices"] = [choices[index] for index in sorted(choices)]
    return body


def _chat_chunk(choice: Json, chunk: Json) -> None:
    message = choice.setdefault("message", {"role": "assistant", "content": None})
    for key, value in chunk.items():
        if key != "delta" and (value is not None or key not in choice):
            choice[key] = value
    delta = chunk.get("delta")
    for key, value in delta.items() if isinstance(delta, dict) else ():
        if key == "tool_calls":
            calls = message.setdefault("tool_calls", [])
            for part in _list(value):
                if isinstance(part, dict):
                    _tool_call_delta(calls, part)
        elif isinstance(value, str) and key != "role":
            message[key] = _text(message.get(key)) + value
        elif value is not None:
            message[key] = value


def _tool_call_delta(calls: list[Json], part: Json) -> None:
    index = part.get("index")
    call = next((one for one in calls if one.get("index") == index), None) if index is not None else None
    if call is None:
        calls.append(deepcopy(part))
        return
    for key, value in part.items():
        if key == "function" and isinstance(value, dict):
            function = call.setdefault("function", {})
            for name, text in value.items():
                function[name] = _text(function.get(name)) + text if isinstance(text, str) else text
        elif value is not None and key != "index":
            call[key] = value


def _llama(events: list[Json]) -> Json:
    body = dict(events[-1])
    body["content"] = "".join(_text(event.get("content")) for event in events)
    tokens = [token for event in events for token in _list(event.get("tokens"))]
    if tokens:
        body["tokens"] = tokens
    return body


def _merge(into: Json, more: Any) -> None:
    if isinstance(more, Mapping):
        into.update(more)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
