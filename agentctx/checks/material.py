"""What the battery's conversations are made of: tools and messages of a coding agent, in the form that a template takes.

Every text begins with a word that occurs nowhere else (``USRQ1``, ``RESQ2``, …), so that a reader of a failure, and the
probing of a template, can tell which text went missing or moved.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Literal

Json = dict[str, Any]
ArgumentForm = Literal["mapping", "raw"]


def tool(name: str, description: str, properties: Mapping[str, Any], required: list[str]) -> Json:
    """A tool as the chat API declares it."""
    parameters = {"type": "object", "properties": dict(properties), "required": required}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


def _text(description: str) -> Json:
    return {"type": "string", "description": description}


def _number(description: str) -> Json:
    return {"type": "integer", "description": description}


TOOLS = [
    tool(
        "read_file",
        "TDESCA Read a text file from the workspace.",
        {"path": _text("Path relative to the workspace root"), "limit": _number("Maximum number of lines")},
        ["path"],
    ),
    tool(
        "run_command",
        "TDESCB Run a shell command and return its output.",
        {"command": _text("The command line"), "timeout": _number("Seconds")},
        ["command"],
    ),
    tool(
        "search",
        "TDESCC Search the code base for a pattern.",
        {"pattern": _text("Regular expression")},
        ["pattern"],
    ),
]
ADDED_TOOL = tool(
    "write_file",
    "TDESCD Write a text file.",
    {"path": _text("Path"), "content": _text("Text")},
    ["path", "content"],
)
SYSTEM: Json = {"role": "system", "content": "SYSQ You are a careful coding agent working in /workspace."}
RESULT_TEXT = "RESQ1 def parse(lines): return lines[:-1]"


def user(number: int) -> Json:
    return {"role": "user", "content": f"USRQ{number} Please look at the failing test number {number}."}


def answer_text(number: int) -> str:
    return f"ASTQ{number} The parser drops the last line, fixed."


def thought(number: int) -> str:
    return f"RZNQ{number} The traceback points at parse(); I should open it first."


def result(number: int, name: str, text: str) -> Json:
    return {"role": "tool", "tool_call_id": f"callid{number:03d}", "name": name, "content": text}


def call(number: int, name: str, arguments: Mapping[str, Any], form: ArgumentForm) -> Json:
    """A tool call whose arguments are an object, or the string that the model wrote."""
    value = dict(arguments) if form == "mapping" else json.dumps(arguments, ensure_ascii=False)
    return {
        "id": f"callid{number:03d}",
        "type": "function",
        "function": {"name": name, "arguments": value},
    }


def answer(
    number: int,
    content: str | None = None,
    *,
    calls: list[Json] | None = None,
    reasoning: str | None = None,
    reasoning_key: str = "reasoning_content",
) -> Json:
    """An assistant message; its content is the answer of that number unless another is given."""
    made: Json = {"role": "assistant", "content": answer_text(number) if content is None else content}
    if reasoning is not None:
        made[reasoning_key] = reasoning
    if calls:
        made["tool_calls"] = calls
    return made


def in_parts(message: Json) -> Json:
    """The message with its text as a list of parts."""
    content = message.get("content")
    if not isinstance(content, str):
        return message
    return {**message, "content": [{"type": "text", "text": content}] if content else []}
