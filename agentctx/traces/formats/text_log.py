"""Request logs that hold text only: {timestamp, input, output, session_id}, one request a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from agentctx.messages import Message, Request
from agentctx.traces.entry import Entry
from agentctx.traces.node import Node
from agentctx.traces.parts import content
from agentctx.traces.shape import LoggedRequest, Session
from agentctx.traces.times import seconds

FORMAT = "text-log"


def recognizes(record: dict[str, Any]) -> bool:
    """Whether a record is a line of such a log."""
    return {"timestamp", "input", "output", "session_id"} <= record.keys()


def _text(node: Node) -> str:
    value = content(node)
    return value if isinstance(value, str) else "\n".join(getattr(part, "text", "") for part in value)


class _Chain:
    """A conversation of the log: requests whose input starts with the input before."""

    def __init__(self) -> None:
        self.input = ""
        self.entries: list[Entry] = []
        self.requests: list[LoggedRequest] = []

    def add(self, text: str, reply: str, at: float | None, line: int) -> None:
        added = text[len(self.input) :]
        if added or not self.entries:
            self.entries.append(Entry(Message(role="user", content=added), at=at, line=line))
        answer = Message(role="assistant", content=reply)
        self.entries.append(Entry(answer, f"line {line}", at, line=line))
        request = Request(messages=(Message(role="user", content=text),))
        self.requests.append(LoggedRequest(request, answer, at, line=line))
        self.input = text


def _chain_for(text: str, chains: list[_Chain]) -> _Chain:
    """The conversation that this input continues: the one whose last input is its longest prefix, else a new one."""
    best: _Chain | None = None
    for chain in chains:
        longer = best is None or len(chain.input) > len(best.input)
        if chain.input and longer and text.startswith(chain.input):
            best = chain
    if best is None:
        best = _Chain()
        chains.append(best)
    return best


def read(records: Iterable[Node], file: str) -> Iterator[Session]:
    """One session per conversation found in each ``session_id``; requests in the order of their time.

    The log holds the text of the user's side; what the model and the tools wrote between is in the replies only
    as far as they were logged.
    """
    by_session: dict[str, list[tuple[float, int, str, str]]] = {}
    for record in records:
        at = seconds(record["timestamp"].value) or 0.0
        row = (at, record.line, _text(record["input"]), _text(record["output"]))
        by_session.setdefault(str(record.obj().get("session_id")), []).append(row)
    for session_id, rows in by_session.items():
        chains: list[_Chain] = []
        for at, line, text, reply in sorted(rows, key=lambda row: (row[0], row[1])):
            _chain_for(text, chains).add(text, reply, at, line)
        for number, chain in enumerate(chains):
            name = session_id if len(chains) == 1 else f"{session_id}/{number + 1}"
            yield Session(name, file, FORMAT, entries=tuple(chain.entries), requests=tuple(chain.requests))
