"""Histories on disk and in checkpoints: replaying a journal, one-document snapshots, forks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from agentctx.errors import HistoryError, InputError
from agentctx.history.journal import Journal
from agentctx.history.records import State, message_of, restored, snapshot, splice_of
from agentctx.history.zones import MessageLog
from agentctx.messages import Params, Tool, canonical_json

if TYPE_CHECKING:
    from agentctx.history.history import History

__all__ = ["check_same_head", "checkpoint", "forked", "replayed", "resumed", "snapshot"]


def replayed(journal: Journal, history_of: Callable[[State], History]) -> State | None:
    """The state that a journal's records lead to, ``None`` for an empty file.

    Records are taken as steps of a History without a file, so that a resumed history can't differ from one that
    was never interrupted. Raises ``InputError`` naming the line of a record that can't be taken.
    """
    history: History | None = None
    file = str(journal.path)
    for line, record in journal.read():
        if history is None:
            if record.get("do") != "open":
                raise InputError("the first record must open the history", file=file, line=line)
            history = history_of(restored(record.get("state", {}), file=file, line=line))
            continue
        try:
            _take(history, record)
        except (KeyError, TypeError, ValueError, HistoryError, ValidationError) as error:
            raise InputError(f"this step can't be taken: {error}", file=file, line=line) from error
    return None if history is None else history._s


def _take(history: History, record: dict[str, Any]) -> None:
    match record["do"]:
        case "append":
            history.append(message_of(record["message"]))
        case "call":
            history._s.log.replace_newest(message_of(record["message"]))
        case "drafts":
            history._redraft([message_of(item) for item in record["messages"]])
        case "note":
            history.note(record["text"], key=record["key"])
        case "tools":
            history.declare(Tool.model_validate(tool) for tool in record["tools"])
        case "add_tool":
            history.add_tool(Tool.model_validate(record["tool"]), record["how"])
        case "params":
            history.params = Params.model_validate(record["params"])
        case "seal":
            history.seal()
        case "request":
            history.request()
        case "compact":
            splices = [splice_of(item) for item in record["splices"]]
            history.compact(record["how"], splices, stand_in=record["stand_in"])
        case unknown:
            raise ValueError(f"unknown step {unknown!r}; was the file written by a newer version?")


def check_same_head(found: State, given: State, path: str) -> None:
    """Raise ``HistoryError`` when the caller gave a system prompt, pinned context or tools other than the file's."""
    for zone, theirs, ours in (
        ("system", found.log.log[: found.has_system], given.log.log[: given.has_system]),
        (
            "pinned",
            found.log.log[found.has_system : found.log.head],
            given.log.log[given.has_system : given.log.head],
        ),
    ):
        if ours and theirs != ours:
            raise HistoryError(
                f"{path} holds another {zone} zone than the one given",
                item=zone,
                remedy="leave it out to go on with the file's, or begin a new file; volatile text belongs in a note",
            )
    known = {tool.meaning for tool in found.tools} | {
        event.tool.meaning for event in found.events if hasattr(event, "tool")
    }
    strange = [tool.name for tool in given.tools if tool.meaning not in known]
    if strange:
        raise HistoryError(
            f"{path} holds other tools than those given",
            item=f"tools ({strange[0]})",
            remedy="open the file with its own tools, then use add_tool",
        )


def checkpoint(state: State) -> bytes:
    """The state as one JSON document, with the hash of its body."""
    body = canonical_json(snapshot(state))
    digest = hashlib.sha256(body.encode()).hexdigest()
    return f'{{"sha256":"{digest}","history":{body}}}'.encode()


def resumed(data: bytes) -> State:
    """The state of a checkpoint. Raises ``InputError`` when it is no checkpoint or was changed."""
    try:
        document = json.loads(data)
        body, digest = document["history"], document["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"not a checkpoint: {error}") from error
    if hashlib.sha256(canonical_json(body).encode()).hexdigest() != digest:
        raise InputError("the checkpoint's hash does not hold", field="sha256", remedy="take another copy")
    return restored(body)


def forked(state: State) -> State:
    """A copy of what was sent (at least the system and pinned zones): messages, tools and events."""
    log = state.log
    length = max(log.sealed, log.head)
    visible = len(log.visible) - (len(log.log) - length)
    messages = MessageLog.restored(
        log.log[:length], list(log.visible[:visible]), log.origins[:visible], dict(log.fates), log.head
    )
    messages.sealed = log.sealed
    return replace(state, log=messages, notes={}, turn_ends=list(state.turn_ends), events=list(state.events))
