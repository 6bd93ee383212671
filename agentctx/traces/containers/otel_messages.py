"""Messages in spans, as chat messages: JSON with parts, flattened attributes, and events."""

from __future__ import annotations

import re
from typing import Any

from agentctx.messages import canonical_json
from agentctx.traces.containers.draft import Json
from agentctx.traces.source import parse_text


def parsed(value: Any) -> Any:
    """The value, or what its JSON text holds; the value itself when it is other text."""
    if not isinstance(value, str):
        return value
    try:
        return parse_text(value)
    except ValueError:
        return value


def chat_messages(items: list[Any]) -> list[Json]:
    """Messages of the GenAI conventions (role and parts), or already in the shape of chat completions."""
    found: list[Json] = []
    for item in items:
        if not isinstance(item, dict):
            continue
        parts = item.get("parts")
        if isinstance(parts, list):
            found += _from_parts(item, parts)
        elif "role" in item:
            found.append(dict(item))
    return found


def _from_parts(item: Json, parts: list[Any]) -> list[Json]:
    """One message; results of several tools in one message become one message each, as chat completions have it."""
    texts: list[Any] = []
    calls: list[Json] = []
    results: list[Json] = []
    message: Json = {key: value for key, value in item.items() if key != "parts"}
    for part in parts:
        if not isinstance(part, dict):
            continue
        match part.get("type"):
            case "text":
                texts.append({"type": "text", "text": str(part.get("content", part.get("text", "")))})
            case "reasoning" | "thinking":
                message["reasoning"] = message.get("reasoning", "") + str(part.get("content", ""))
            case "tool_call":
                calls.append(_call(part.get("id"), part.get("name"), part.get("arguments")))
            case "tool_call_response":
                answer = part.get("response", part.get("result", part.get("content")))
                text = answer if isinstance(answer, str) else canonical_json(answer)
                results.append({"role": "tool", "tool_call_id": part.get("id"), "content": text})
            case _:
                texts.append(part)
    if results and not texts and not calls:
        return results
    plain = len(texts) == 1 and texts[0].keys() == {"type", "text"} and texts[0]["type"] == "text"
    message["content"] = texts[0]["text"] if plain else texts or None
    if calls:
        message["tool_calls"] = calls
    return [*results, message]


def _call(call_id: Any, name: Any, arguments: Any) -> Json:
    text = (
        arguments
        if isinstance(arguments, str)
        else canonical_json(arguments if arguments is not None else {})
    )
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}


def instructions(attributes: Json) -> list[Json]:
    """The system message that the conventions keep apart from the others."""
    given = parsed(attributes.get("gen_ai.system_instructions"))
    if isinstance(given, str):
        return [{"role": "system", "content": given}]
    return _from_parts({"role": "system"}, given) if isinstance(given, list) and given else []


def indexed_messages(attributes: Json, prefix: str) -> list[Json]:
    """Messages flattened into attributes ``<prefix>0.role``, ``<prefix>0.tool_calls.0.name``, in the order of their index."""
    rows: dict[int, dict[str, Any]] = {}
    for name, value in attributes.items():
        if not name.startswith(prefix):
            continue
        index, _, rest = name[len(prefix) :].partition(".")
        if index.isdecimal() and len(index) < 7 and rest:
            rows.setdefault(int(index), {})[rest.removeprefix("message.")] = value
    return [_from_row(rows[index]) for index in sorted(rows)]


def indices(attributes: Json, prefix: str) -> list[int]:
    """The numbers of the messages that are flattened into attributes."""
    numbers = {name[len(prefix) :].partition(".")[0] for name in attributes if name.startswith(prefix)}
    return [int(number) for number in numbers if number.isdecimal() and len(number) < 7]


_CALL_FIELD = re.compile(r"tool_calls\.(\d{1,6})\.(?:tool_call\.)?(?:function\.)?(id|name|arguments)\Z")
_TEXT_FIELD = re.compile(r"contents\.(\d{1,6})\.message_content\.text\Z")
_PLAIN_FIELDS = ("tool_call_id", "finish_reason", "name", "reasoning")


def _from_row(row: dict[str, Any]) -> Json:
    message: Json = {"role": row.get("role", "user"), "content": parsed_content(row.get("content"))}
    calls: dict[int, dict[str, Any]] = {}
    texts: dict[int, Any] = {}
    for name, value in row.items():
        if match := _CALL_FIELD.match(name):
            calls.setdefault(int(match[1]), {})[match[2]] = value
        elif match := _TEXT_FIELD.match(name):
            texts[int(match[1])] = value
        elif name in _PLAIN_FIELDS:
            message[name] = value
    if texts and message["content"] is None:
        message["content"] = [{"type": "text", "text": texts[index]} for index in sorted(texts)]
    if calls:
        ordered = (calls[index] for index in sorted(calls))
        message["tool_calls"] = [
            _call(call.get("id"), call.get("name"), call.get("arguments")) for call in ordered
        ]
    return message


def parsed_content(value: Any) -> Any:
    """Content as it was: some instrumentations write a list of parts as JSON text."""
    if isinstance(value, str) and value.startswith("[{"):
        found = parsed(value)
        if isinstance(found, list) and all(isinstance(part, dict) and "type" in part for part in found):
            return found
    return value


def event_messages(events: list[Json], side: str) -> list[Json]:
    """Messages kept as span events: one with all of them as JSON, or one a message."""
    found: list[Json] = []
    for event in events:
        name, attributes = event["name"], event["attributes"]
        if name == f"gen_ai.content.{'prompt' if side == 'input' else 'completion'}":
            listed = parsed(attributes.get("gen_ai.prompt" if side == "input" else "gen_ai.completion"))
            found += chat_messages(listed) if isinstance(listed, list) else []
        elif name == "gen_ai.client.inference.operation.details":
            listed = parsed(attributes.get(f"gen_ai.{side}.messages"))
            head = instructions(attributes) if side == "input" else []
            found += head + chat_messages(listed) if isinstance(listed, list) else []
        elif side == "input" and isinstance(name, str) and re.fullmatch(r"gen_ai\.\w+\.message", name):
            found.append(_event_message(name.split(".")[1], attributes))
        elif side == "output" and name == "gen_ai.choice":
            inner = parsed(attributes.get("message"))
            fields = (
                inner
                if isinstance(inner, dict)
                else {"content": inner if inner is not None else attributes.get("content")}
            )
            found.append(_event_message("assistant", fields) | _finish(attributes))
    return found


def _event_message(role: str, attributes: Json) -> Json:
    message: Json = {"role": role, "content": attributes.get("content")}
    calls = parsed(attributes.get("tool_calls"))
    if isinstance(calls, list) and calls:
        message["tool_calls"] = calls
    if role == "tool" and attributes.get("id") is not None:
        message["tool_call_id"] = attributes["id"]
    return message


def _finish(attributes: Json) -> Json:
    reason = attributes.get("finish_reason")
    return {} if reason is None else {"finish_reason": reason}


def tool_definitions(attributes: Json) -> list[Any]:
    """Tool definitions: the conventions' JSON, or flattened by the forerunners."""
    given = parsed(attributes.get("gen_ai.tool.definitions"))
    if isinstance(given, list):
        return given
    rows: dict[int, dict[str, Any]] = {}
    for name, value in attributes.items():
        if match := re.match(r"llm\.request\.functions\.(\d{1,6})\.(name|description|parameters)\Z", name):
            rows.setdefault(int(match[1]), {})[match[2]] = (
                parsed(value) if match[2] == "parameters" else value
            )
        elif match := re.match(r"llm\.tools\.(\d{1,6})\.tool\.json_schema\Z", name):
            schema = parsed(value)
            rows[int(match[1])] = schema if isinstance(schema, dict) else {}
    found = []
    for index in sorted(rows):
        row = rows[index]
        found.append(row if "function" in row else {"type": "function", "function": row})
    return found
