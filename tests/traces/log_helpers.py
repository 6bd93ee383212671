"""What the tests of logs share: bodies of each API, and ways to read and compare records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentctx.traces import LogRecord, read_records

CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
    "temperature": 0.5,
}
ANTHROPIC: dict[str, Any] = {
    "model": "claude-x",
    "max_tokens": 10,
    "system": "Be brief.",
    "messages": [{"role": "user", "content": "hi"}],
}
RESPONSES: dict[str, Any] = {
    "model": "m",
    "instructions": "Be brief.",
    "input": [{"role": "user", "content": "hi"}],
}
LLAMA: dict[str, Any] = {"prompt": "Be brief.\nhi", "n_predict": 5}
CHAT_REPLY = {
    "object": "chat.completion",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "ho"}}],
}
BODIES = {
    "openai.chat": CHAT,
    "anthropic.messages": ANTHROPIC,
    "openai.responses": RESPONSES,
    "llama.completion": LLAMA,
}


def records(path: Path, **options: Any) -> list[LogRecord]:
    return list(read_records(path, **options))


def written(path: Path, *values: Any) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def whole(record: LogRecord) -> list[Any]:
    """All that a record holds."""
    return [record.request, record.response, record.extra, {"api": record.api}]


def leaves(value: Any) -> set[tuple[str, str]]:
    """Every scalar with the name of its field; texts that hold JSON count as what they hold."""
    found: set[tuple[str, str]] = set()
    stack = [("", value)]
    while stack:
        name, item = stack.pop()
        if isinstance(item, str) and item[:1] in ("{", "[") and _is_json(item):
            item = json.loads(item)
        if isinstance(item, dict):
            stack += item.items()
        elif isinstance(item, list):
            stack += [(name, part) for part in item]
        else:
            found.add((name, json.dumps(item)))
    return found


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
