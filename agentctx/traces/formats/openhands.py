"""OpenHands histories: actions and observations, in ``output.jsonl`` (one solved issue a line) or as a bare list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from agentctx.interchange.times import seconds
from agentctx.messages import Message, ToolCall, canonical_json
from agentctx.traces.entry import Entry
from agentctx.traces.node import Node, rest_json
from agentctx.traces.parts import content
from agentctx.traces.shape import Session
from agentctx.traces.source import stem
from agentctx.usage import Usage, usage_from_openai

FORMAT = "openhands"

# Events that steer the program; the model neither makes nor reads them.
_SILENT = (
    "change_agent_state",
    "agent_state_changed",
    "null",
    "recall",
    "condensation",
    "condensation_request",
)


def recognizes(record: dict[str, Any]) -> bool:
    """Whether a record is one instance of an OpenHands output file."""
    return isinstance(record.get("history"), list) and "instruction" in record


def recognizes_events(document: Any) -> bool:
    """Whether a document is the bare list of a history's events."""
    return (
        isinstance(document, list)
        and bool(document)
        and all(
            isinstance(event, dict) and "source" in event and ("action" in event or "observation" in event)
            for event in document[:20]
        )
    )


class _History:
    """Turns actions into calls and observations into their results."""

    def __init__(self, instruction: str = "") -> None:
        self.instruction = instruction
        self.entries: list[Entry] = []
        self._open: list[str] = []
        self._call_of: dict[str, str] = {}  # id of an action → id of its call
        self._silent: set[str] = set()

    def add(self, event: Node) -> None:
        """Take one event, or (in older files) an action with its observation in a list of two."""
        if isinstance(event.value, list):
            for item in event.items():
                self.add(item)
            return
        value = event.obj()
        at = seconds(value.get("timestamp"))
        kind = value.get("observation", value.get("action"))
        if not isinstance(kind, str) or kind in _SILENT:
            self._silent.add(str(value.get("id")))
        elif "observation" in value:
            self._observation(event, at)
        elif kind in ("message", "system"):
            self._message(event, at)
        else:
            self._action(event, kind, at)

    def _message(self, event: Node, at: float | None) -> None:
        value = event.obj()
        args = event["args"] if isinstance(value.get("args"), dict) else event
        text = content(args["content"])
        if value["action"] == "system":
            self.entries.append(Entry(Message(role="system", content=text), at=at, line=event.line))
            return
        # The oldest versions name no source. The instruction, which opens the history, is the user's.
        source = value.get("source") or ("user" if text == self.instruction else "agent")
        if source == "user":
            self.entries.append(Entry(Message(role="user", content=text), at=at, line=event.line))
            return
        call, usage = _model_call(event, f"event {len(self.entries)}")
        self.entries.append(Entry(Message(role="assistant", content=text), call, at, usage, event.line))

    def _action(self, event: Node, kind: str, at: float | None) -> None:
        value = event.obj()
        args = value.get("args")
        given: dict[str, Any] = args if isinstance(args, dict) else rest(value, "action")
        thought = given.get("thought")
        made = event["tool_call_metadata"] if isinstance(value.get("tool_call_metadata"), dict) else None
        own_id = str(value["id"]) if value.get("id") is not None else f"action-{len(self.entries)}"
        call_id = (made["tool_call_id"].maybe_text() if made else None) or own_id
        self._open.append(call_id)
        self._call_of[own_id] = call_id
        message = Message(
            role="assistant",
            content=thought if isinstance(thought, str) else "",
            tool_calls=(
                ToolCall(
                    id=call_id,
                    name=(made["function_name"].maybe_text() if made else None) or kind,
                    arguments=canonical_json(rest(given, "thought")),
                ),
            ),
        )
        name, usage = _model_call(event, f"event {len(self.entries)}")
        self.entries.append(Entry(message, name, at, usage, event.line))

    def _observation(self, event: Node, at: float | None) -> None:
        value = event.obj()
        cause = value.get("cause")
        if cause is not None and str(cause) in self._silent:
            return  # answers the program, not the model
        if cause is not None:
            call_id: str | None = self._call_of.get(str(cause), str(cause))
        else:  # the oldest versions name no cause: an observation follows its action
            call_id = self._open.pop() if self._open else None
        message = Message(
            role="tool",
            tool_call_id=call_id,
            content=content(event["content"]),
            extra_json=rest_json(value, "content", "cause", "timestamp", "tool_call_metadata"),
        )
        self.entries.append(Entry(message, at=at, line=event.line))


def rest(record: dict[str, Any], *taken: str) -> dict[str, Any]:
    """The fields of ``record`` that are not ``taken``."""
    return {key: value for key, value in record.items() if key not in taken}


def _model_call(event: Node, name: str) -> tuple[str, Usage | None]:
    """Which reply an event belongs to, and the reply's usage: newer versions keep the provider's whole response."""
    made = event["tool_call_metadata"].value
    response = made.get("model_response") if isinstance(made, dict) else None
    if not isinstance(response, dict):
        return name, None
    usage = response.get("usage")
    reply_id = response.get("id")
    return (
        f"reply {reply_id}" if isinstance(reply_id, str) else name,
        usage_from_openai(usage) if isinstance(usage, dict) else None,
    )


def read(records: Iterable[Node], file: str) -> Iterator[Session]:
    """One session per instance (line)."""
    for number, record in enumerate(records):
        instruction = record["instruction"].maybe_text() or ""
        history = _History(instruction)
        for event in record["history"].items():
            history.add(event)
        entries = history.entries
        if instruction and not any(entry.message.text == instruction for entry in entries[:3]):
            entries.insert(0, Entry(Message(role="user", content=instruction), line=record.line))
        name = record.obj().get("instance_id")
        session_id = str(name) if name is not None else f"{stem(file)}-{number + 1}"
        yield Session(session_id, file, FORMAT, entries=tuple(entries))


def read_events(document: Node) -> Iterator[Session]:
    """The session of a bare list of events."""
    history = _History()
    for event in document.items():
        history.add(event)
    yield Session(stem(document.file), document.file, FORMAT, entries=tuple(history.entries))
