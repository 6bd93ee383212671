"""Codex CLI rollouts: JSONL of events; a reply's reasoning, text and calls are items of their own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from agentctx.interchange.times import seconds
from agentctx.messages import Message, ToolCall
from agentctx.traces.entry import Entry
from agentctx.traces.node import Node, rest_json
from agentctx.traces.parts import content, role_of
from agentctx.traces.shape import Session
from agentctx.traces.source import stem
from agentctx.usage import Usage, usage_from_openai

FORMAT = "codex"

_TYPES = ("session_meta", "response_item", "event_msg", "turn_context", "compacted")
# What the provider runs itself (web search) has no result in the rollout and is no call of the client's.
_CALLS = ("function_call", "custom_tool_call", "local_shell_call", "tool_search_call")


def recognizes(record: dict[str, Any]) -> bool:
    """Whether a record is a line of a Codex rollout; old versions open with a bare head and bare items."""
    if "payload" not in record:
        return {"id", "timestamp", "instructions"} <= record.keys() or record.get("record_type") == "state"
    return record.get("type") in _TYPES and isinstance(record["payload"], dict) and "timestamp" in record


def _unwrapped(record: Node) -> tuple[str, Node]:
    """Kind and payload of a line, whichever version wrote it."""
    if "payload" in record:
        return record["type"].maybe_text() or "", record["payload"]
    return ("response_item" if "type" in record else "session_meta"), record


def item_message(item: Node) -> Message | None:
    """One Responses-style item as a message; ``None`` for an item that is neither message, call nor result."""
    kind = item["type"].maybe_text() or ("message" if "role" in item else "")
    if kind == "message":
        extra = rest_json(item.obj(), "type", "role", "content")
        return Message(role=role_of(item["role"]), content=content(item["content"]), extra_json=extra)
    if kind == "reasoning":
        return Message(
            role="assistant", reasoning=_thoughts(item), extra_json=rest_json(item.obj(), "type", "summary")
        )
    if kind in _CALLS:
        return Message(role="assistant", tool_calls=(_call(item, kind),))
    if kind.endswith("_output"):
        return Message(
            role="tool",
            tool_call_id=item["call_id"].maybe_text(),
            content=content(item["output"]),
            extra_json=rest_json(item.obj(), "type", "call_id", "output"),
        )
    return None


def _thoughts(item: Node) -> str:
    for key in ("summary", "content"):
        value = content(item[key])
        text = value if isinstance(value, str) else "\n".join(getattr(part, "text", "") for part in value)
        if text:
            return text
    return ""


def _call(item: Node, kind: str) -> ToolCall:
    value = item.obj()
    key = next((key for key in ("arguments", "input", "action") if value.get(key) is not None), "arguments")
    arguments = value.get(key)
    return ToolCall(
        id=str(value.get("call_id") or value.get("id") or ""),
        name=item["name"].maybe_text() or kind.removesuffix("_call"),
        arguments="" if arguments is None else arguments if isinstance(arguments, str) else item[key].json(),
        extra_json=rest_json(value, "call_id", "name", key),
    )


class _Calls:
    """Which model call an item belongs to, and its usage, told by the events between the items.

    A ``token_count`` event with new totals marks one reply. Older versions write it before the reply's items,
    newer ones behind them.
    """

    def __init__(self) -> None:
        self.number = 0
        self.fresh = True  # the next item of the assistant opens a new call
        self._totals: Any = None
        self.waiting: Usage | None = None

    def over(self) -> None:
        self.fresh = True

    def name(self) -> str:
        if self.fresh:
            self.number += 1
            self.fresh = False
        return f"call {self.number}"

    def counted(self, info: Any) -> Usage | None:
        """The usage of an event that counts tokens; ``None`` for one that repeats the totals."""
        if not isinstance(info, dict) or not isinstance(info.get("last_token_usage"), dict):
            return None
        if info.get("total_token_usage") == self._totals:
            return None
        self._totals = info.get("total_token_usage")
        return usage_from_openai(info["last_token_usage"])


def read(records: Iterable[Node], file: str) -> Iterator[Session]:
    """One session per file; every item is an entry, and the items of one model call carry its name."""
    entries: list[Entry] = []
    calls = _Calls()
    session_id, model, system = "", None, None
    for record in records:
        kind, payload = _unwrapped(record)
        match kind:
            case "session_meta":
                session_id = session_id or str(payload.obj().get("id") or "")
                system = system or _instructions(payload)
            case "turn_context":
                calls.over()
                found = payload.obj().get("model")
                model = model or (found if isinstance(found, str) else None)
            case "event_msg" if payload.obj().get("type") == "token_count":
                _count(entries, calls, payload.obj().get("info"))
            case "response_item":
                _item(entries, calls, payload, seconds(record["timestamp"].value))
                if payload is record and "output" in record:
                    calls.over()  # old versions write no events: a result is all that ends a reply
    if system is not None:
        entries.insert(0, Entry(Message(role="system", content=system), line=1))
    yield Session(session_id or stem(file), file, FORMAT, entries=tuple(entries), model=model)


def _instructions(payload: Node) -> str | None:
    base = payload.obj().get("base_instructions")
    text = base.get("text") if isinstance(base, dict) else payload.obj().get("instructions")
    return text if isinstance(text, str) and text else None


def _count(entries: list[Entry], calls: _Calls, info: Any) -> None:
    usage = calls.counted(info)
    if usage is None:
        return
    newest = next((i for i in range(len(entries) - 1, -1, -1) if entries[i].call is not None), None)
    behind = newest is not None and not calls.fresh and entries[newest].call == f"call {calls.number}"
    counted = behind and any(
        entry.usage is not None for entry in entries if entry.call == f"call {calls.number}"
    )
    if newest is not None and behind and not counted:
        entries[newest] = replace(entries[newest], usage=usage)
    else:
        calls.waiting = usage
    calls.over()


def _item(entries: list[Entry], calls: _Calls, payload: Node, at: float | None) -> None:
    message = item_message(payload)
    if message is None:
        return
    if message.role != "assistant":
        if message.role != "tool":
            calls.over()
        entries.append(Entry(message, at=at, line=payload.line))
        return
    usage, calls.waiting = calls.waiting, None
    entries.append(Entry(message, calls.name(), at, usage, payload.line))
