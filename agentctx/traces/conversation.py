"""From recorded entries to a conversation that an API would take.

Recorders write what happened, in the order in which it happened: one reply in several pieces, results of
parallel tools between them, calls that were interrupted and never answered, ids used twice. A chat API, and so
a History, wants one assistant message per model call, every call answered directly behind it, unique ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agentctx.messages import Message, Part, TextPart, ToolCall
from agentctx.traces.entry import Entry
from agentctx.usage import Usage

NO_RESULT = "[no result was recorded]"
"""Content of the result that is put in for a call that the recording never answers."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """A legal conversation. ``generated``, ``usage``, ``at`` and ``lines`` are per message of ``messages``.

    ``repairs`` says, one line each, what had to be changed to make it legal; empty for a clean recording.
    """

    system: Message | None
    messages: tuple[Message, ...]
    generated: tuple[bool, ...]
    usage: tuple[Usage | None, ...]
    at: tuple[float | None, ...]
    lines: tuple[int | None, ...]
    repairs: tuple[str, ...]


@dataclass(slots=True)
class _Item:
    message: Message
    call: str | None
    usage: Usage | None
    at: float | None
    line: int | None


def _parts(message: Message) -> tuple[Part, ...]:
    if isinstance(message.content, str):
        return (TextPart(text=message.content),) if message.content else ()
    return message.content


def joined(first: Message, second: Message) -> Message:
    """Two pieces of one reply as one message: parts, thoughts and calls in the order of the pieces."""
    content = first.content if not _parts(second) else second.content if not _parts(first) else None
    thoughts = [text for text in (first.reasoning, second.reasoning) if text]
    return first.model_copy(
        update={
            "content": (*_parts(first), *_parts(second)) if content is None else content,
            "reasoning": "\n".join(thoughts) if thoughts else first.reasoning,
            "tool_calls": (*first.tool_calls, *second.tool_calls),
            "extra_json": first.extra_json or second.extra_json,
        }
    )


def _merge_pieces(entries: Iterable[Entry]) -> list[_Item]:
    """One item per message, the pieces of one model call joined at the place of the first."""
    items: list[_Item] = []
    by_call: dict[str, _Item] = {}
    for entry in entries:
        known = by_call.get(entry.call) if entry.call is not None else None
        if known is None:
            item = _Item(entry.message, entry.call, entry.usage, entry.at, entry.line)
            items.append(item)
            if entry.call is not None:
                by_call[entry.call] = item
        else:
            known.message = joined(known.message, entry.message)
            known.usage = entry.usage or known.usage
            known.at = entry.at or known.at
    return items


def _is_empty(message: Message) -> bool:
    return not (message.content or message.reasoning or message.tool_calls or message.notes)


class _Legal:
    """Puts results behind their calls and gives every call its own id."""

    def __init__(self, items: Sequence[_Item]) -> None:
        self.items = items
        self.repairs: list[str] = []
        self.out: list[_Item] = []
        self._used: set[str] = set()

    def run(self) -> None:
        results = self._results_by_call()
        for position, item in enumerate(self.items):
            message = item.message
            if message.role == "tool":
                continue  # stands behind its call
            if message.role == "assistant" and item.call is None and _is_empty(message):
                self.repairs.append(f"entry {position}: an empty reply was left out")
                continue
            if not message.tool_calls:
                self.out.append(item)
                continue
            self._place_batch(position, item, results)

    def _results_by_call(self) -> dict[tuple[int, int], _Item]:
        """Which result answers which call, by (item, call) position: a result answers the newest open call of its id."""
        open_calls: dict[str, list[tuple[int, int]]] = {}
        answers: dict[tuple[int, int], _Item] = {}
        for position, item in enumerate(self.items):
            for index, call in enumerate(item.message.tool_calls):
                open_calls.setdefault(call.id, []).append((position, index))
            if item.message.role == "tool":
                waiting = open_calls.get(item.message.tool_call_id or "")
                if waiting:
                    answers[waiting.pop()] = item
                else:
                    self.repairs.append(
                        f"entry {position}: a second result of call {item.message.tool_call_id} was left out"
                    )
        return answers

    def _place_batch(self, position: int, item: _Item, results: dict[tuple[int, int], _Item]) -> None:
        calls: list[ToolCall] = []
        for call in item.message.tool_calls:
            unique = self._unique(call.id)
            if unique != call.id:
                self.repairs.append(f"entry {position}: call id {call.id!r} was used before, now {unique!r}")
            calls.append(call if unique == call.id else call.model_copy(update={"id": unique}))
        message = item.message.model_copy(update={"tool_calls": tuple(calls)})
        self.out.append(_Item(message, item.call, item.usage, item.at, item.line))
        last = position == len(self.items) - 1
        for index, call in enumerate(calls):
            answer = results.get((position, index))
            if answer is not None:
                renamed = answer.message.model_copy(update={"tool_call_id": call.id})
                self.out.append(_Item(renamed, None, answer.usage, answer.at, answer.line))
            elif not last:
                self.repairs.append(f"entry {position}: call {call.id} ({call.name}) was never answered")
                self.out.append(
                    _Item(
                        Message(role="tool", tool_call_id=call.id, content=NO_RESULT), None, None, None, None
                    )
                )

    def _unique(self, call_id: str) -> str:
        unique, count = call_id or "call", 1
        while unique in self._used or not unique:
            count += 1
            unique = f"{call_id or 'call'}~{count}"
        self._used.add(unique)
        return unique


def legal_conversation(entries: Sequence[Entry]) -> Conversation:
    """The conversation that ``entries`` record, in the form that a chat API takes. Adds no text but ``NO_RESULT``."""
    legal = _Legal(_merge_pieces(entries))
    legal.run()
    items = legal.out
    system = items.pop(0).message if items and items[0].message.role in ("system", "developer") else None
    return Conversation(
        system=system,
        messages=tuple(item.message for item in items),
        generated=tuple(item.call is not None for item in items),
        usage=tuple(item.usage for item in items),
        at=tuple(item.at for item in items),
        lines=tuple(item.line for item in items),
        repairs=tuple(legal.repairs),
    )
