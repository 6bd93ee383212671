"""How a history is written down: values as JSON, and the whole state as one document.

Fields at their defaults are left out, so that a file stays readable for a version that knows more fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import ValidationError

from agentctx.errors import HistoryError, InputError
from agentctx.history.events import Compaction, Event, Splice, ToolAdded
from agentctx.history.zones import MessageLog
from agentctx.messages import Message, Params, Tool

FORMAT = 1
ToolOrder = Literal["canonical", "given"]
Record = dict[str, Any]


@dataclass(slots=True)
class State:
    """Everything that a History knows.

    ``sent_visible``: how many visible messages the last request carried. ``turn_ends``: length of the log at each
    turn. ``notes``: pending notes by key.
    """

    log: MessageLog
    tools: tuple[Tool, ...] = ()
    tool_order: ToolOrder = "canonical"
    has_system: bool = False
    params: Params = field(default_factory=Params)
    notes: dict[str, str] = field(default_factory=dict)
    sent_visible: int = 0
    sent_tools: bool = False
    turn_ends: list[int] = field(default_factory=list)
    epoch: int = 0
    events: list[Event] = field(default_factory=list)


def encode(value: object) -> Any:
    """A value of a record as JSON data: messages, tools, params and splices as objects, others as they are."""
    if isinstance(value, Message | Tool | Params):
        return value.model_dump(mode="json", exclude_defaults=True)
    if isinstance(value, Splice):
        return {"start": value.start, "end": value.end, "messages": [encode(m) for m in value.messages]}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    return value


def message_of(data: Any) -> Message:
    """A message from its JSON data."""
    return Message.model_validate(data)


def splice_of(data: Any) -> Splice:
    """A splice from its JSON data."""
    return Splice(data["start"], data["end"], tuple(message_of(item) for item in data["messages"]))


def snapshot(state: State) -> Record:
    """The whole state as JSON data."""
    log = state.log
    return {
        "format": FORMAT,
        "tools": encode(state.tools),
        "tool_order": state.tool_order,
        "has_system": state.has_system,
        "head": log.head,
        "params": encode(state.params),
        "log": encode(log.log),
        "visible": [
            origin
            if origin >= 0 and message is log.log[origin]
            else {"origin": origin, "message": encode(message)}
            for message, origin in zip(log.visible, log.origins, strict=True)
        ],
        "fates": sorted(log.fates.items()),
        "sealed": log.sealed,
        "notes": state.notes,
        "sent_visible": state.sent_visible,
        "sent_tools": state.sent_tools,
        "turn_ends": state.turn_ends,
        "epoch": state.epoch,
        "events": [_encode_event(event) for event in state.events],
    }


def restored(data: Mapping[str, Any], *, file: str | None = None, line: int | None = None) -> State:
    """The state of a snapshot. Raises ``InputError`` for one that can't be one."""
    if data.get("format") != FORMAT:
        raise InputError(
            f"format {data.get('format')!r} of this history is unknown",
            file=file,
            line=line,
            field="format",
            remedy=f"this version of agentctx reads format {FORMAT}",
        )
    try:
        log = [message_of(item) for item in data["log"]]
        visible = [
            log[item] if isinstance(item, int) else message_of(item["message"]) for item in data["visible"]
        ]
        origins = [item if isinstance(item, int) else item["origin"] for item in data["visible"]]
        messages = MessageLog.restored(log, visible, origins, dict(data["fates"]), data["head"])
        messages.sealed = data["sealed"]
        return State(
            log=messages,
            tools=tuple(Tool.model_validate(tool) for tool in data["tools"]),
            tool_order=data["tool_order"],
            has_system=data["has_system"],
            params=Params.model_validate(data["params"]),
            notes=dict(data["notes"]),
            sent_visible=data["sent_visible"],
            sent_tools=data["sent_tools"],
            turn_ends=list(data["turn_ends"]),
            epoch=data["epoch"],
            events=[_event_of(event) for event in data["events"]],
        )
    except (KeyError, TypeError, ValueError, IndexError, HistoryError, ValidationError) as error:
        raise InputError(f"the history can't be restored: {error}", file=file, line=line) from error


def _encode_event(event: Event) -> Record:
    if isinstance(event, ToolAdded):
        return {"tool": encode(event.tool), "how": event.how, "at": event.at, "epoch": event.epoch}
    return {
        "how": event.how,
        "splices": encode(event.splices),
        "at": event.at,
        "epoch": event.epoch,
        "rewrites_at": event.rewrites_at,
        "stand_in": event.stand_in,
    }


def _event_of(data: Mapping[str, Any]) -> Event:
    if "tool" in data:
        return ToolAdded(Tool.model_validate(data["tool"]), data["how"], data["at"], data["epoch"])
    return Compaction(
        how=data["how"],
        splices=tuple(splice_of(item) for item in data["splices"]),
        at=data["at"],
        epoch=data["epoch"],
        rewrites_at=data["rewrites_at"],
        stand_in=data["stand_in"],
    )
