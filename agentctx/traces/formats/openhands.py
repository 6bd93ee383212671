"""OpenHands ``output.jsonl``: one solved issue a line, its history as actions and observations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from agentctx.messages import Message, ToolCall, canonical_json
from agentctx.traces.entry import Entry
from agentctx.traces.node import Node, rest_json
from agentctx.traces.parts import content
from agentctx.traces.shape import Session
from agentctx.traces.source import stem
from agentctx.traces.times import seconds

FORMAT = "openhands"

# Actions that steer the program; the model neither makes nor reads them.
_SILENT = {"change_agent_state", "null", "recall", "condensation", "condensation_request"}


def recognizes(record: dict[str, Any]) -> bool:
    """Whether a record is one instance of an OpenHands output file."""
    return isinstance(record.get("history"), list) and "instruction" in record


class _History:
    """Turns actions into calls and observations into their results."""

    def __init__(self, instruction: str) -> None:
        self.instruction = instruction
        self.entries: list[Entry] = []
        self._open: list[str] = []

    def add(self, event: Node) -> None:
        value = event.obj()
        at = seconds(value.get("timestamp"))
        if "observation" in value:
            self._observation(event, at)
        elif value.get("action") in ("message", "system"):
            self._message(event, at)
        elif isinstance(value.get("action"), str) and value["action"] not in _SILENT:
            self._action(event, at)

    def _message(self, event: Node, at: float | None) -> None:
        value = event.obj()
        args = event["args"] if isinstance(value.get("args"), dict) else event
        text = content(args["content"])
        if value["action"] == "system":
            self.entries.append(Entry(Message(role="system", content=text), at=at, line=event.line))
            return
        # The oldest versions name no source. The instruction, which opens the history, is the user's.
        source = value.get("source") or ("user" if text == self.instruction else "agent")
        role, call = ("user", None) if source == "user" else ("assistant", f"event {len(self.entries)}")
        message = Message(role="user" if role == "user" else "assistant", content=text)
        self.entries.append(Entry(message, call, at, line=event.line))

    def _action(self, event: Node, at: float | None) -> None:
        value = event.obj()
        args = value.get("args")
        given: dict[str, Any] = (
            args if isinstance(args, dict) else {k: v for k, v in value.items() if k != "action"}
        )
        thought = given.get("thought")
        call_id = str(value["id"]) if value.get("id") is not None else f"action-{len(self.entries)}"
        self._open.append(call_id)
        message = Message(
            role="assistant",
            content=thought if isinstance(thought, str) else "",
            tool_calls=(
                ToolCall(
                    id=call_id,
                    name=value["action"],
                    arguments=canonical_json({k: v for k, v in given.items() if k != "thought"}),
                ),
            ),
        )
        self.entries.append(Entry(message, f"event {len(self.entries)}", at, line=event.line))

    def _observation(self, event: Node, at: float | None) -> None:
        value = event.obj()
        cause = value.get("cause")
        if cause is None:  # the oldest versions name no cause: an observation follows its action
            call_id = self._open.pop() if self._open else None
        else:
            call_id = str(cause)
        message = Message(
            role="tool",
            tool_call_id=call_id,
            content=content(event["content"]),
            extra_json=rest_json(value, "content", "cause", "timestamp"),
        )
        self.entries.append(Entry(message, at=at, line=event.line))


def read(records: Iterable[Node], file: str) -> Iterator[Session]:
    """One session per instance (line)."""
    for number, record in enumerate(records):
        instruction = record["instruction"].maybe_text() or ""
        history = _History(instruction)
        for item in record["history"].items():
            # Older files pair an action with its observation in a list of two.
            for event in item.items() if isinstance(item.value, list) else (item,):
                history.add(event)
        entries = history.entries
        if instruction and not any(entry.message.text == instruction for entry in entries[:3]):
            entries.insert(0, Entry(Message(role="user", content=instruction), line=record.line))
        name = record.obj().get("instance_id")
        yield Session(
            str(name) if name is not None else f"{stem(file)}-{number + 1}",
            file,
            FORMAT,
            entries=tuple(entries),
        )
