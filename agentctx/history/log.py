"""History: the append-only log of a conversation, and the request that it becomes.

Two lists of messages are kept. The *log* holds every message as it was appended and never shrinks. The
*visible* messages are what the model reads now: the log, until a compaction puts something shorter in the
place of a part of it. What a request has carried can't be edited or removed afterwards; only a compaction
changes what is visible, and it opens a new epoch and is recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Literal, overload

from agentctx.errors import HistoryError
from agentctx.history.events import Compaction, Event, How, Splice, ToolAdded
from agentctx.history.legality import CallLedger, check_sequence, ledger_of, name_item
from agentctx.messages import (
    Content,
    Message,
    Params,
    Part,
    Request,
    Tool,
    ToolCall,
    canonical_json,
    canonical_tool_order,
)

ToolOrder = Literal["canonical", "given"]


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
        self.params = params or Params()
        self._tool_order: ToolOrder = tool_order
        self._tools: tuple[Tool, ...] = self._arranged(tools)
        self._log: list[Message] = []
        self._visible: list[Message] = []
        self._origins: list[
            int
        ] = []  # index in the log of each visible message, -1 for one that stands for others
        self._fates: dict[int, How] = {}
        self._events: list[Event] = []
        self._ledger = CallLedger()
        self._notes: dict[str, str] = {}
        self._sealed = 0  # messages of the log that can't change any more
        self._sent_visible = 0  # visible messages that the last request carried
        self._sent_tools = False
        self._turn_ends: list[int] = []
        self._epoch = 0
        self._frozen: tuple[Message, ...] | None = None
        if system is not None:
            self._push(_as_message("system", system))
        self._has_system = system is not None
        for item in pinned:
            self._push(_as_message("user", item))
        self._head = len(self._log)

    # -- reading ---------------------------------------------------------------------------------------

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools zone, in the order in which the model reads it."""
        return self._tools

    @property
    def system(self) -> Message | None:
        """The system message."""
        return self._log[0] if self._has_system else None

    @property
    def pinned(self) -> tuple[Message, ...]:
        """The pinned context."""
        return tuple(self._log[self._has_system : self._head])

    @property
    def messages(self) -> tuple[Message, ...]:
        """The whole log, compacted or not: system message, pinned messages, then everything that was appended."""
        return tuple(self._log)

    @property
    def visible(self) -> tuple[Message, ...]:
        """The messages that the next request carries, as things stand (pending notes not yet in them)."""
        if self._frozen is None:
            self._frozen = tuple(self._visible)
        return self._frozen

    @property
    def origins(self) -> Sequence[int]:
        """For each visible message its index in the log, -1 for one that stands for others, such as a summary."""
        return tuple(self._origins)

    @property
    def fates(self) -> Mapping[int, How]:
        """What became of the log's messages that are not visible as they were appended, by index in the log."""
        return MappingProxyType(self._fates)

    @property
    def head(self) -> int:
        """How many messages stand in the system and pinned zones. No compaction touches them."""
        return self._head

    @property
    def sealed(self) -> int:
        """How many messages of the log can't change any more."""
        return self._sealed

    @property
    def epoch(self) -> int:
        """Number of the current epoch, from 0. Within one, every request extends the one before it."""
        return self._epoch

    @property
    def events(self) -> tuple[Event, ...]:
        """Compactions and tools added later, oldest first."""
        return tuple(self._events)

    @property
    def turns(self) -> int:
        """Requests built so far, repeats of an unchanged one not counted."""
        return len(self._turn_ends)

    def turn_end(self, turn: int) -> int:
        """Length of the log when turn ``turn`` (from 1) was built."""
        return self._turn_ends[turn - 1]

    @property
    def open_calls(self) -> tuple[str, ...]:
        """Ids of tool calls that have no result yet."""
        return self._ledger.open_calls

    @property
    def pending_notes(self) -> tuple[str, ...]:
        """Notes that wait for the next request."""
        return tuple(self._notes.values())

    def __len__(self) -> int:
        return len(self._log)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> list[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | list[Message]:
        return self._log[index]

    def __iter__(self) -> Iterator[Message]:
        return iter(self._log)

    def __repr__(self) -> str:
        return f"History({len(self._log)} messages, {self._sealed} sealed, epoch {self._epoch}, {len(self._tools)} tools)"

    # -- appending -------------------------------------------------------------------------------------

    def append(self, message: Message) -> None:
        """Append a message. A tool result is put right behind its call, in the order of the calls.

        Raises ``HistoryError`` when no chat API would accept the message here.
        """
        index = self._ledger.place(len(self._log), message)
        self._insert(index, message)

    def extend(self, messages: Iterable[Message]) -> None:
        """Append messages one by one. Those before an illegal one stay."""
        for message in messages:
            self.append(message)

    def user(self, content: str | Iterable[Part]) -> None:
        """Append a user message: a text, or parts (text, images, files)."""
        self.append(Message(role="user", content=_as_content(content)))

    def assistant(
        self,
        content: str | Iterable[Part] = "",
        *,
        reasoning: str | None = None,
        tool_calls: Iterable[ToolCall] = (),
    ) -> None:
        """Append what the model answered."""
        self.append(
            Message(
                role="assistant",
                content=_as_content(content),
                reasoning=reasoning,
                tool_calls=tuple(tool_calls),
            )
        )

    def tool_call(
        self, name: str, arguments: str | Mapping[str, object] = "{}", *, id: str | None = None
    ) -> str:
        """Record one call of the model and return its id. Calls made in a row are parallel: they share a message.

        ``arguments`` as a string is kept byte for byte. Without ``id`` the call is numbered.
        """
        if id is None:
            id = self._next_call_id()
        call = ToolCall(
            id=id, name=name, arguments=arguments if isinstance(arguments, str) else canonical_json(arguments)
        )
        last = len(self._log) - 1
        if last >= self._sealed and self._log[last].role == "assistant" and self._ledger.can_extend(last):
            if self._ledger.knows(id):
                raise HistoryError(
                    f"the tool call id {id} was used before", item=name_item(last, self._log[last])
                )
            self._put(
                last, self._log[last].model_copy(update={"tool_calls": (*self._log[last].tool_calls, call)})
            )
            self._ledger.extend_batch(id)
        else:
            self.append(Message(role="assistant", tool_calls=(call,)))
        return id

    def tool_result(self, id: str, content: str | Iterable[Part], *, name: str | None = None) -> None:
        """Answer the call ``id``."""
        self.append(Message(role="tool", content=_as_content(content), tool_call_id=id, name=name))

    def note(self, text: str, *, key: str | None = None) -> None:
        """Put volatile text (time, cwd, budget) at the tail: the end of the newest message of the next request.

        It is frozen with that message. A ``key`` lets a later note replace a pending one. When the newest
        message was sent already or is the model's own, the note waits for the next message.
        """
        self._notes[key if key is not None else f"\0{len(self._notes)}"] = text

    # -- changing drafts -------------------------------------------------------------------------------

    def __setitem__(self, index: int, message: Message) -> None:
        at = self._draft_index(index, "can't be edited")
        self._redraft([*self._log[self._sealed : at], message, *self._log[at + 1 :]])

    def __delitem__(self, index: int) -> None:
        at = self._draft_index(index, "can't be removed")
        self._redraft([*self._log[self._sealed : at], *self._log[at + 1 :]])

    # -- tools -----------------------------------------------------------------------------------------

    def declare(self, tools: Iterable[Tool]) -> None:
        """Declare the set of tools. An equal set changes nothing, whatever its order and its schemas' key order.

        Before the first request the set is replaced. After it, a different set raises ``HistoryError``; tools
        that a message announced may be in it or not.
        """
        given = self._arranged(tools)
        meanings = {tool.meaning for tool in given}
        own = {tool.meaning for tool in self._tools}
        if (
            own
            <= meanings
            <= own | {event.tool.meaning for event in self._events if isinstance(event, ToolAdded)}
        ):
            return
        if self._sent_tools:
            odd = next((tool.name for tool in given if tool.meaning not in own), None) or next(
                tool.name for tool in self._tools if tool.meaning not in meanings
            )
            raise HistoryError(
                "the tools were sent and can't change",
                item=f"tools ({odd})",
                remedy="use add_tool for a tool that arrives later",
            )
        self._tools = given

    def add_tool(self, tool: Tool, how: Literal["message", "epoch"]) -> None:
        """Add a tool after the first request.

        ``message`` appends a user message that names the tool and gives its schema: the prompt only grows.
        ``epoch`` puts the tool into the tools zone, which rewrites the whole prompt and opens a new epoch.
        A tool that is there already changes nothing; another of the same name raises ``HistoryError``.
        """
        known = [*self._tools, *(event.tool for event in self._events if isinstance(event, ToolAdded))]
        if any(tool.meaning == other.meaning for other in known):
            return
        if any(tool.name == other.name for other in known):
            raise HistoryError("another tool has this name", item=f"tools ({tool.name})")
        if not self._sent_tools:
            self._tools = self._arranged((*self._tools, tool))
            return
        if how == "message":
            self.user(_announcement(tool))
        else:
            self._tools = self._arranged((*self._tools, tool))
            self._epoch += 1
            self._sent_visible = 0
        self._events.append(ToolAdded(tool, how, len(self._log), self._epoch))

    # -- turns -----------------------------------------------------------------------------------------

    def seal(self) -> None:
        """Freeze every draft, with the pending notes in the newest message. ``request`` does this first.

        Raises ``HistoryError`` while a tool call has no result.
        """
        if missing := self._ledger.open_calls:
            newest = len(self._log) - 1
            raise HistoryError(
                f"tool call {missing[0]} has no result yet",
                item=name_item(newest, self._log[newest]),
                remedy="append a result for every call; results of one batch are sent together",
            )
        newest = len(self._log) - 1
        if self._notes and newest >= max(self._sealed, self._head) and self._log[newest].role != "assistant":
            message = self._log[newest]
            self._put(newest, message.model_copy(update={"notes": (*message.notes, *self._notes.values())}))
            self._notes = {}
        self._sealed = len(self._log)

    def request(self, params: Params | None = None) -> Request:
        """The request of this turn: everything visible. From here on it counts as sent."""
        self.seal()
        if not self._visible:
            raise HistoryError("there is no message to send", remedy="append a user message first")
        if not self._turn_ends or self._turn_ends[-1] != self._sealed:
            self._turn_ends.append(self._sealed)
        self._sent_visible = len(self._visible)
        self._sent_tools = True
        # Every part was validated when it entered; validating the whole list again each turn would make a
        # turn cost what is already there.
        return Request.model_construct(
            tools=self._tools,
            messages=self.visible,
            pinned=self._head - self._has_system,
            params=params or self.params,
        )

    def compact(self, how: How, splices: Iterable[Splice], *, stand_in: bool = False) -> Compaction:
        """Put shorter messages in the place of visible ones; the one way to change what was sent.

        The drafts are sealed first. The compaction is recorded; if it touches anything that was sent it opens
        a new epoch. Raises ``HistoryError`` and changes nothing when a splice leaves the log, overlaps another
        one, reaches into the system or pinned zone, or leaves an illegal sequence.
        """
        self.seal()
        ordered = tuple(sorted(splices, key=lambda splice: splice.start))
        self._check_splices(ordered)
        visible, origins = self._spliced(ordered)
        if not all(self._answers_same(splice) for splice in ordered):
            check_sequence(visible)
        for splice in ordered:
            for position in range(splice.start, splice.end):
                origin = self._origins[position]
                if origin >= 0:
                    self._fates[origin] = how
        first = ordered[0].start
        rewrites_at = first if first < self._sent_visible else None
        if rewrites_at is not None:
            self._epoch += 1
            self._sent_visible = min(self._sent_visible, first)
        self._visible, self._origins, self._frozen = visible, origins, None
        event = Compaction(how, ordered, len(self._log), self._epoch, rewrites_at, stand_in)
        self._events.append(event)
        return event

    # -- inside ----------------------------------------------------------------------------------------

    def _arranged(self, tools: Iterable[Tool]) -> tuple[Tool, ...]:
        given = tuple(tools)
        names = [tool.name for tool in given]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise HistoryError("two tools have this name", item=f"tools ({twice})")
        return given if self._tool_order == "given" else canonical_tool_order(given)

    def _next_call_id(self) -> str:
        number = len(self._log)
        while self._ledger.knows(f"call_{number}"):
            number += 1
        return f"call_{number}"

    def _push(self, message: Message) -> None:
        self._insert(len(self._log), message)

    def _insert(self, index: int, message: Message) -> None:
        shift = len(self._visible) - len(self._log)
        if index < len(self._log):  # a late result goes in front of drafts that came meanwhile
            self._origins.append(len(self._log))
        else:
            self._origins.append(index)
        self._log.insert(index, message)
        self._visible.insert(index + shift, message)
        self._frozen = None
        self._ledger.admit(index, message)

    def _put(self, index: int, message: Message) -> None:
        self._visible[index + len(self._visible) - len(self._log)] = message
        self._log[index] = message
        self._frozen = None

    def _draft_index(self, index: int, problem: str) -> int:
        at = range(len(self._log))[index]
        if at < self._sealed:
            raise HistoryError(
                f"it was sent and {problem}",
                item=name_item(at, self._log[at]),
                remedy="append a new message, or compact",
            )
        if at < self._head:
            raise HistoryError(
                f"it {problem}", item=name_item(at, self._log[at]), remedy="build a new History"
            )
        return at

    def _redraft(self, drafts: list[Message]) -> None:
        ledger = ledger_of([*self._log[: self._sealed], *drafts])
        shift = len(self._visible) - len(self._log)
        self._log[self._sealed :] = drafts
        self._visible[self._sealed + shift :] = drafts
        self._origins[self._sealed + shift :] = range(self._sealed, len(self._log))
        self._ledger, self._frozen = ledger, None

    def _check_splices(self, splices: tuple[Splice, ...]) -> None:
        if not splices:
            raise HistoryError("a compaction without a splice changes nothing", remedy="don't record it")
        end = self._head
        for splice in splices:
            if splice.start < end or splice.end < splice.start or splice.end > len(self._visible):
                raise HistoryError(
                    f"the splice [{splice.start}, {splice.end}) is out of place",
                    item=f"visible messages {end} to {len(self._visible)}",
                    remedy="splices must be inside the log zone, in order, without overlap",
                )
            end = splice.end

    def _spliced(self, splices: tuple[Splice, ...]) -> tuple[list[Message], list[int]]:
        visible: list[Message] = []
        origins: list[int] = []
        at = 0
        for splice in splices:
            visible += self._visible[at : splice.start]
            origins += self._origins[at : splice.start]
            visible += splice.messages
            in_place = len(splice.messages) == splice.end - splice.start and all(
                new.role == old.role
                for new, old in zip(splice.messages, self._visible[splice.start : splice.end], strict=True)
            )
            origins += self._origins[splice.start : splice.end] if in_place else [-1] * len(splice.messages)
            at = splice.end
        return visible + self._visible[at:], origins + self._origins[at:]

    def _answers_same(self, splice: Splice) -> bool:
        """Whether a splice only rewrites the text of messages, so that no call or result comes or goes."""
        if len(splice.messages) != splice.end - splice.start:
            return False
        old = self._visible[splice.start : splice.end]
        return all(
            a.role == b.role and a.tool_call_id == b.tool_call_id and a.tool_calls == b.tool_calls
            for a, b in zip(old, splice.messages, strict=True)
        )


def _as_content(content: str | Iterable[Part]) -> Content:
    return content if isinstance(content, str) else tuple(content)


def _as_message(role: Literal["system", "user"], item: str | Message) -> Message:
    return item if isinstance(item, Message) else Message(role=role, content=item)


def _announcement(tool: Tool) -> str:
    schema = canonical_json({"name": tool.name, "description": tool.description})[:-1]
    return f'A new tool is available from here on:\n{schema},"parameters":{tool.parameters_json}}}'
