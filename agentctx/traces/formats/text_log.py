"""Request logs that hold text only: {timestamp, input, output, session_id}, one request a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from agentctx.interchange.times import seconds
from agentctx.messages import Message, Request
from agentctx.traces.entry import Entry
from agentctx.traces.node import Node
from agentctx.traces.parts import content
from agentctx.traces.shape import LoggedRequest, Session
from agentctx.usage import Usage

FORMAT = "text-log"


def recognizes(record: dict[str, Any]) -> bool:
    """Whether a record is a line of such a log."""
    return {"timestamp", "input", "output", "session_id"} <= record.keys()


def _text(node: Node) -> str:
    value = content(node)
    return value if isinstance(value, str) else "\n".join(getattr(part, "text", "") for part in value)


@dataclass(frozen=True, slots=True)
class TextCall:
    """One request of which only text is known: everything the model read, and what it answered."""

    text: str
    reply: str | None
    at: float | None
    line: int
    usage: Usage | None = None


class _Chain:
    """A conversation of the log: requests whose text starts with the text before."""

    def __init__(self) -> None:
        self.text = ""
        self.reply = ""
        self.entries: list[Entry] = []
        self.requests: list[LoggedRequest] = []

    def add(self, call: TextCall) -> None:
        # What follows the text before is the reply, where the log's prompts hold replies, and then what is new.
        added = call.text[len(self.text) :].removeprefix(self.reply)
        if added or not self.entries:
            self.entries.append(Entry(Message(role="user", content=added), at=call.at, line=call.line))
        answer = None if call.reply is None else Message(role="assistant", content=call.reply)
        if answer is not None:
            self.entries.append(Entry(answer, f"line {call.line}", call.at, call.usage, call.line))
        request = Request(messages=(Message(role="user", content=call.text),))
        self.requests.append(LoggedRequest(request, answer, call.at, call.usage, call.line))
        self.text, self.reply = call.text, call.reply or ""


def text_sessions(calls: Iterable[TextCall], name: str, file: str, form: str) -> Iterator[Session]:
    """One session per conversation: a call continues the conversation whose last text is its longest beginning."""
    chains: list[_Chain] = []
    for call in calls:
        best: _Chain | None = None
        for chain in chains:
            longer = best is None or len(chain.text) > len(best.text)
            if chain.text and longer and call.text.startswith(chain.text):
                best = chain
        if best is None:
            best = _Chain()
            chains.append(best)
        best.add(call)
    for number, chain in enumerate(chains):
        numbered = name if len(chains) == 1 else f"{name}/{number + 1}"
        yield Session(numbered, file, form, entries=tuple(chain.entries), requests=tuple(chain.requests))


def read(records: Iterable[Node], file: str) -> Iterator[Session]:
    """One session per conversation found in each ``session_id``; requests in the order of their time.

    The log holds the text of the user's side; what the model and the tools wrote between is in the replies only
    as far as they were logged.
    """
    by_session: dict[str, list[TextCall]] = {}
    for record in records:
        call = TextCall(
            _text(record["input"]), _text(record["output"]), seconds(record["timestamp"].value), record.line
        )
        by_session.setdefault(str(record.obj().get("session_id")), []).append(call)
    for session_id, calls in by_session.items():
        yield from text_sessions(
            sorted(calls, key=lambda call: (call.at or 0.0, call.line)), session_id, file, FORMAT
        )
