"""History: the append-only log of a conversation, and the request that it becomes.

The *log* holds every message as it was appended and never shrinks. The *visible* messages are what the model reads
now: the log, until a compaction puts something shorter in the place of a part of it. What a request has carried
can't be edited or removed afterwards; only a compaction changes what is visible, it opens a new epoch, and it is
recorded.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal, overload

from agentctx.errors import HistoryError
from agentctx.history import storage
from agentctx.history.attachments import attachment
from agentctx.history.events import Compaction, Event, How, Splice, ToolAdded
from agentctx.history.journal import Journal
from agentctx.history.legality import check_sequence
from agentctx.history.records import State, ToolOrder
from agentctx.history.steps import Steps
from agentctx.history.tools_zone import announcement, arranged
from agentctx.history.zones import MessageLog
from agentctx.messages import (
    Content,
    Message,
    Params,
    Part,
    Request,
    TextPart,
    Tool,
    ToolCall,
    canonical_json,
)
from agentctx.surrogates import replace_surrogates


class History(Sequence[Message]):
    """A conversation laid out so that its prompts only grow at their end.

    The zones are, in this order: tools, system, pinned context, log, tail. ``tools`` stand in the canonical
    order (source class, server, name) however they arrive, unless ``tool_order="given"`` pins the caller's own.
    As a sequence, a History is the whole log: the system message first, then pinned messages, then the rest.

    Not safe for use from several threads at once.
    """

    def __init__(
        self,
        system: str | Message | None = None,
        tools: Iterable[Tool] = (),
        pinned: Iterable[str | Message] = (),
        *,
        params: Params | None = None,
        tool_order: ToolOrder = "canonical",
    ) -> None:
        head = [] if system is None else [_as_message("system", system)]
        head += [_as_message("user", item) for item in pinned]
        state = State(
            log=MessageLog(head),
            tools=arranged(tools, tool_order),
            tool_order=tool_order,
            has_system=system is not None,
            params=params or Params(),
        )
        self._steps = Steps(state, None, self._of)

    @classmethod
    def _of(cls, state: State, journal: Journal | None = None) -> History:
        self = cls.__new__(cls)
        self._steps = Steps(state, journal, cls._of)
        return self

    @classmethod
    def of(cls, request: Request) -> History:
        """A history that begins with a request's tools, messages and parameters, none of them sent yet.

        Tools keep the request's order. Raises ``HistoryError`` when the messages are illegal or out of order.
        """
        messages = request.messages
        has_system = bool(messages) and messages[0].role == "system"
        head = has_system + request.pinned
        self = cls(
            messages[0] if has_system else None,
            request.tools,
            messages[has_system:head],
            params=request.params,
            tool_order="given",
        )
        check_sequence(messages, open_at_end=True)
        self.extend(messages[head:])
        return self

    # -- reading ---------------------------------------------------------------------------------------

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools zone, in the order in which the model reads it."""
        return self._s.tools

    @property
    def system(self) -> Message | None:
        """The system message."""
        return self._s.log.log[0] if self._s.has_system else None

    @property
    def pinned(self) -> tuple[Message, ...]:
        """The pinned context."""
        return tuple(self._s.log.log[self._s.has_system : self._s.log.head])

    @property
    def params(self) -> Params:
        """Parameters of the next request."""
        return self._s.params

    @params.setter
    def params(self, params: Params) -> None:
        with self._steps.step("params", params=params) as state:
            state.params = params

    @property
    def messages(self) -> tuple[Message, ...]:
        """The whole log, compacted or not: system message, pinned messages, then everything appended."""
        return tuple(self._s.log.log)

    @property
    def visible(self) -> tuple[Message, ...]:
        """The messages that the next request carries, as things stand (pending notes not yet in them)."""
        return self._s.log.visible

    @property
    def origins(self) -> tuple[int, ...]:
        """For each visible message its index in the log, -1 for one that stands for others, such as a summary."""
        return tuple(self._s.log.origins)

    @property
    def fates(self) -> Mapping[int, How]:
        """What became of the log's messages that are not visible as they were appended, by index in the log."""
        return MappingProxyType(self._s.log.fates)

    @property
    def head(self) -> int:
        """How many messages stand in the system and pinned zones. No compaction touches them."""
        return self._s.log.head

    @property
    def sealed(self) -> int:
        """How many messages of the log can't change any more."""
        return self._s.log.sealed

    @property
    def sent(self) -> int:
        """How many of the visible messages the last request carried; those behind were never sent."""
        return self._s.sent_visible

    @property
    def epoch(self) -> int:
        """Number of the current epoch, from 0. Within one, every request extends the one before it."""
        return self._s.epoch

    @property
    def events(self) -> tuple[Event, ...]:
        """Compactions and tools added later, oldest first."""
        return tuple(self._s.events)

    @property
    def turns(self) -> int:
        """Requests built so far, repeats of an unchanged one not counted."""
        return len(self._s.turn_ends)

    def turn_end(self, turn: int) -> int:
        """Length of the log when turn ``turn`` (from 1) was built."""
        return self._s.turn_ends[turn - 1]

    @property
    def open_calls(self) -> tuple[str, ...]:
        """Ids of tool calls that have no result yet."""
        return self._s.log.open_calls

    @property
    def pending_notes(self) -> tuple[str, ...]:
        """Notes that wait for the next request."""
        return tuple(self._s.notes.values())

    def __len__(self) -> int:
        return len(self._s.log.log)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        return self._s.log.log[index]

    def __iter__(self) -> Iterator[Message]:
        return iter(self._s.log.log)

    def __repr__(self) -> str:
        return f"History({len(self)} messages, {self.sealed} sealed, epoch {self.epoch}, {len(self.tools)} tools)"

    # -- appending -------------------------------------------------------------------------------------

    def append(self, message: Message) -> None:
        """Append a message. A tool result is put right behind its call, in the order of the calls.

        Raises ``HistoryError`` when no chat API would accept the message here.
        """
        index = self._s.log.place(message)
        with self._steps.step("append", message=message) as state:
            state.log.insert(index, message)

    def extend(self, messages: Iterable[Message]) -> None:
        """Append messages one by one. Those before an illegal one stay."""
        for message in messages:
            self.append(message)

    def user(self, content: str | Iterable[Part]) -> None:
        """Append a user message: a text, or parts (text, images, files)."""
        self.append(Message(role="user", content=_as_content(content)))

    def attach(self, data: bytes | Path, *, media_type: str | None = None, name: str | None = None) -> Part:
        """Attach a file or image to the newest message, if that is an unsent user message, else in a new one.

        Known by the hash of its bytes; the file is read once, here. Raises ``UsageError`` when it can't be read.
        """
        part = attachment(data, media_type=media_type, name=name)
        log = self._s.log
        newest = log.log[-1] if len(log.log) > max(log.sealed, log.head) else None
        if newest is None or newest.role != "user":
            self.user((part,))
            return part
        content = newest.content
        before = content if isinstance(content, tuple) else (TextPart(text=content),) if content else ()
        self[-1] = newest.model_copy(update={"content": (*before, part)})
        return part

    def assistant(
        self,
        content: str | Iterable[Part] = "",
        *,
        reasoning: str | None = None,
        tool_calls: Iterable[ToolCall] = (),
    ) -> None:
        """Append what the model answered."""
        text = _as_content(content)
        self.append(
            Message(role="assistant", content=text, reasoning=reasoning, tool_calls=tuple(tool_calls))
        )

    def tool_call(
        self, name: str, arguments: str | Mapping[str, object] = "{}", *, id: str | None = None
    ) -> str:
        """Record one call of the model and return its id. Calls made in a row are parallel and share a message.

        ``arguments`` as a string is kept byte for byte. Without ``id`` the call is numbered.
        """
        log = self._s.log
        text = arguments if isinstance(arguments, str) else canonical_json(arguments)
        call = ToolCall(id=self._next_call_id() if id is None else id, name=name, arguments=text)
        call_id = call.id
        if not log.newest_takes_calls():
            self.append(Message(role="assistant", tool_calls=(call,)))
            return call_id
        if not call_id or log.knows_call(call_id):
            problem = (
                f"the tool call id {call_id} was used before" if call_id else "a tool call has an empty id"
            )
            raise HistoryError(problem, item=log.name(len(self) - 1))
        message = log.log[-1].model_copy(update={"tool_calls": (*log.log[-1].tool_calls, call)})
        with self._steps.step("call", message=message) as state:
            state.log.replace_newest(message)
        return call_id

    def tool_result(self, id: str, content: str | Iterable[Part], *, name: str | None = None) -> None:
        """Answer the call ``id``."""
        self.append(Message(role="tool", content=_as_content(content), tool_call_id=id, name=name))

    def note(self, text: str, *, key: str | None = None) -> None:
        """Put volatile text (time, cwd, budget) at the tail: the end of the newest message of the next request.

        It is frozen with that message. A ``key`` lets a later note replace a pending one. When the newest
        message was sent already or is the model's own, the note waits for the next message.
        """
        key = f"#{len(self._s.notes)}" if key is None else replace_surrogates(key)
        text = replace_surrogates(text)
        with self._steps.step("note", text=text, key=key) as state:
            state.notes[key] = text

    # -- changing drafts -------------------------------------------------------------------------------

    def __setitem__(self, index: int, message: Message) -> None:
        """Change a draft. Raises ``HistoryError`` naming the message when it was sent."""
        at = self._s.log.draft_index(index, "can't be edited")
        self._redraft([*self[self.sealed : at], message, *self[at + 1 :]])

    def __delitem__(self, index: int) -> None:
        """Remove a draft. Raises ``HistoryError`` naming the message when it was sent."""
        at = self._s.log.draft_index(index, "can't be removed")
        self._redraft([*self[self.sealed : at], *self[at + 1 :]])

    def _redraft(self, drafts: list[Message]) -> None:
        ledger = self._s.log.redraft(drafts)
        with self._steps.step("drafts", messages=drafts) as state:
            state.log.set_drafts(drafts, ledger)

    # -- tools -----------------------------------------------------------------------------------------

    def declare(self, tools: Iterable[Tool]) -> None:
        """Declare the set of tools. An equal set changes nothing, whatever its order and its schemas' key order.

        Before the first request the set is replaced. After it, a different set raises ``HistoryError``; tools
        that a message announced may be in it or not.
        """
        given = arranged(tools, self._s.tool_order)
        meanings = {tool.meaning for tool in given}
        own = {tool.meaning for tool in self.tools}
        announced = {event.tool.meaning for event in self._s.events if isinstance(event, ToolAdded)}
        if own <= meanings <= own | announced:
            return
        if self._s.sent_tools:
            odd = next((tool.name for tool in given if tool.meaning not in own), None) or next(
                tool.name for tool in self.tools if tool.meaning not in meanings
            )
            remedy = "use add_tool for a tool that arrives later"
            raise HistoryError("the tools were sent and can't change", item=f"tools ({odd})", remedy=remedy)
        with self._steps.step("tools", tools=given) as state:
            state.tools = given

    def add_tool(self, tool: Tool, how: Literal["message", "epoch"]) -> None:
        """Add a tool after the first request.

        ``message`` appends a user message that names the tool and gives its schema: the prompt only grows.
        ``epoch`` puts the tool into the tools zone, which rewrites the whole prompt and opens a new epoch.
        A tool that is there already changes nothing; another of the same name raises ``HistoryError``.
        """
        known = [*self.tools, *(event.tool for event in self._s.events if isinstance(event, ToolAdded))]
        if any(tool.meaning == other.meaning for other in known):
            return
        if any(tool.name == other.name for other in known):
            raise HistoryError("another tool has this name", item=f"tools ({tool.name})")
        with self._steps.step("add_tool", tool=tool, how=how) as state:
            if state.sent_tools and how == "message":
                state.log.insert(len(state.log.log), Message(role="user", content=announcement(tool)))
            else:
                state.tools = arranged((*state.tools, tool), state.tool_order)
                if not state.sent_tools:
                    return
                state.epoch += 1
                state.sent_visible = 0
            state.events.append(ToolAdded(tool, how, len(state.log.log), state.epoch))

    # -- turns -----------------------------------------------------------------------------------------

    def seal(self) -> None:
        """Freeze every draft, with the pending notes in the newest message. ``request`` does this first.

        Raises ``HistoryError`` while a tool call has no result.
        """
        log = self._s.log
        log.check_complete()
        carries = len(self) > max(log.sealed, log.head) and log.log[-1].role != "assistant"
        if log.sealed == len(self) and not (self._s.notes and carries):
            return
        with self._steps.step("seal") as state:
            if state.notes and carries:
                notes = (*log.log[-1].notes, *state.notes.values())
                log.replace_newest(log.log[-1].model_copy(update={"notes": notes}))
                state.notes = {}
            log.sealed = len(log.log)

    def request(self, params: Params | None = None) -> Request:
        """The request of this turn: everything visible. From here on it counts as sent."""
        if not self.visible:
            raise HistoryError("there is no message to send", remedy="append a user message first")
        self.seal()
        with self._steps.step("request") as state:
            log = state.log
            if not state.turn_ends or state.turn_ends[-1] != log.sealed:
                state.turn_ends.append(log.sealed)
            state.sent_visible = len(log.visible)
            state.sent_tools = True
        # Every part was validated when it entered; validating the whole list again each turn would make a
        # turn cost what is already there.
        return Request.model_construct(
            tools=self.tools,
            messages=self.visible,
            pinned=len(self.pinned),
            params=params or self.params,
        )

    def compact(self, how: How, splices: Iterable[Splice], *, stand_in: bool = False) -> Compaction:
        """Put shorter messages in the place of visible ones; the one way to change what was sent.

        The drafts are sealed first. The compaction is recorded; if it touches anything that was sent it opens
        a new epoch. Raises ``HistoryError`` and changes nothing when a splice leaves the log zone, overlaps another
        one, or leaves an illegal sequence.
        """
        ordered = tuple(sorted(splices, key=lambda splice: (splice.start, splice.end)))
        self._s.log.check_complete()
        self._s.log.check_splices(ordered)
        self.seal()
        with self._steps.step("compact", how=how, splices=ordered, stand_in=stand_in) as state:
            first = ordered[0].start
            rewrites_at = first if first < state.sent_visible else None
            if rewrites_at is not None:
                state.epoch += 1
                state.sent_visible = first
            state.log.splice(how, ordered)
            event = Compaction(how, ordered, len(state.log.log), state.epoch, rewrites_at, stand_in)
            state.events.append(event)
        return event

    # -- keeping and sharing ---------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        system: str | Message | None = None,
        tools: Iterable[Tool] = (),
        pinned: Iterable[str | Message] = (),
        *,
        params: Params | None = None,
        tool_order: ToolOrder = "canonical",
        fsync: bool = False,
    ) -> History:
        """A history that is kept in a file: a new one, or the one that the file holds, exactly as it was.

        For a file that exists, ``system``, ``tools`` and ``pinned`` may be left out; given, they must be what
        the file holds, and its order of tools stays. ``params``, if given, hold from here on. With ``fsync`` every step is on the disk before it returns.

        Raises ``HistoryError`` when another writer has the file or it holds another head, ``InputError`` naming the
        line when it is damaged. A torn last line is cut off with a ``TornLineWarning``.
        """
        fresh = cls(system, tools, pinned, params=params, tool_order=tool_order)
        journal = Journal(path, fsync=fsync)
        try:
            state = storage.replayed(journal, cls._of)
            if state is None:
                journal.write({"do": "open", "state": storage.snapshot(fresh._s)})
                state = fresh._s
            else:
                storage.check_same_head(state, fresh._s, str(path))
            self = cls._of(state, journal)
            if params is not None and params != self.params:
                self.params = params
            return self
        except BaseException:
            journal.close()
            raise

    def close(self) -> None:
        """Close the file, if there is one. The history can be read on, not written."""
        self._steps.close()

    def __enter__(self) -> History:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def checkpoint(self) -> bytes:
        """The whole state, drafts and pending notes included, as one JSON document with a hash."""
        return storage.checkpoint(self._s)

    @classmethod
    def resume(cls, checkpoint: bytes) -> History:
        """The history of a checkpoint: its next requests are those of the original. Raises ``InputError``."""
        return cls._of(storage.resumed(checkpoint))

    def fork(self) -> History:
        """A second history that has sent what this one has sent: a sub-agent that shares its prompt's prefix.

        Drafts and pending notes stay here. The two know nothing of each other from then on, and the fork is not
        kept in this history's file.
        """
        return self._of(storage.forked(self._s))

    # -- inside ----------------------------------------------------------------------------------------

    @property
    def _s(self) -> State:
        return self._steps.state

    def _next_call_id(self) -> str:
        number = len(self)
        while self._s.log.knows_call(f"call_{number}"):
            number += 1
        return f"call_{number}"


def _as_content(content: str | Iterable[Part]) -> Content:
    return content if isinstance(content, str) else tuple(content)


def _as_message(role: Literal["system", "user"], item: str | Message) -> Message:
    return item if isinstance(item, Message) else Message(role=role, content=item)
