"""The messages of a history in two lists: everything that was appended, and what the model reads of it.

``MessageLog`` keeps them legal and in step. It knows drafts, sealed messages and splices; tools, notes and turns
are the History's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentctx.errors import HistoryError
from agentctx.history.events import How, Splice
from agentctx.history.legality import CallLedger, check_sequence, ledger_of, name_item
from agentctx.messages import Message


class MessageLog:
    """The log, and the visible messages that stand for it.

    ``head`` messages at the front (system and pinned) are never spliced. The first ``sealed`` messages can't
    change; those behind are drafts, and they are the last of both lists. ``origins[i]`` is the place in the log of
    visible message ``i``, or -1 when it stands for others. ``fates`` says what became of log messages that are
    not visible as they were appended.
    """

    def __init__(self, head: Iterable[Message] = ()) -> None:
        self.log: list[Message] = []
        self.origins: list[int] = []
        self.fates: dict[int, How] = {}
        self.sealed = 0
        self.head = 0
        self._visible: list[Message] = []
        self._snapshot: tuple[Message, ...] | None = ()
        self._ledger = CallLedger()
        for message in head:
            self.insert(self.place(message), message)
        self.head = len(self.log)

    @classmethod
    def restored(
        cls, log: list[Message], visible: list[Message], origins: list[int], fates: dict[int, How], head: int
    ) -> MessageLog:
        """A log as it was saved. The caller sets ``sealed``."""
        self = cls()
        self.log, self._visible, self.origins, self.fates, self.head = log, visible, origins, fates, head
        self._ledger, self._snapshot = ledger_of(log), None
        return self

    @property
    def visible(self) -> tuple[Message, ...]:
        """What the model reads now."""
        if self._snapshot is None:
            self._snapshot = tuple(self._visible)
        return self._snapshot

    @property
    def open_calls(self) -> tuple[str, ...]:
        """Ids of calls without a result."""
        return self._ledger.open_calls

    def knows_call(self, call_id: str) -> bool:
        """Whether a call of this id was ever made."""
        return self._ledger.knows(call_id)

    def name(self, index: int) -> str:
        """A message of the log, named for a person."""
        return name_item(index, self.log[index])

    def place(self, message: Message) -> int:
        """Where an arriving message belongs. Raises ``HistoryError`` when it is illegal."""
        return self._ledger.place(len(self.log), message)

    def insert(self, index: int, message: Message) -> None:
        """Insert a message where ``place`` said. Only drafts can stand behind it."""
        at = index + len(self._visible) - len(self.log)
        self.origins.append(len(self.log))  # drafts have ascending origins, so one more at the end is right
        self.log.insert(index, message)
        self._visible.insert(at, message)
        self._snapshot = None
        self._ledger.admit(index, message)

    def newest_takes_calls(self) -> bool:
        """Whether another parallel call may still join the newest message."""
        newest = len(self.log) - 1
        return (
            newest >= self.sealed and self.log[newest].role == "assistant" and self._ledger.can_extend(newest)
        )

    def replace_newest(self, message: Message) -> None:
        """Put a changed form of the newest message, a draft, in its place; its calls may have grown at the end."""
        for call in message.tool_calls[len(self.log[-1].tool_calls) :]:
            self._ledger.extend_batch(call.id)
        self.log[-1] = self._visible[-1] = message
        self._snapshot = None

    def draft_index(self, index: int, problem: str) -> int:
        """The index, made positive, if a draft stands there. Raises ``HistoryError`` with ``problem`` otherwise."""
        at = range(len(self.log))[index]
        if at < self.sealed:
            remedy = "append a new message, or compact"
            raise HistoryError(f"it was sent and {problem}", item=self.name(at), remedy=remedy)
        if at < self.head:
            raise HistoryError(f"it {problem}", item=self.name(at), remedy="build a new History")
        return at

    def redraft(self, drafts: Sequence[Message]) -> CallLedger:
        """The ledger if ``drafts`` took the place of all drafts. Raises ``HistoryError`` when they are illegal."""
        return ledger_of([*self.log[: self.sealed], *drafts])

    def set_drafts(self, drafts: Sequence[Message], ledger: CallLedger) -> None:
        """Put ``drafts`` in the place of all drafts."""
        at = self.sealed + len(self._visible) - len(self.log)
        self.log[self.sealed :] = drafts
        self._visible[at:] = drafts
        self.origins[at:] = range(self.sealed, len(self.log))
        self._ledger, self._snapshot = ledger, None

    def check_complete(self) -> None:
        """Raise ``HistoryError`` while a call has no result."""
        if missing := self.open_calls:
            raise HistoryError(
                f"tool call {missing[0]} has no result yet",
                item=self.name(len(self.log) - 1),
                remedy="append a result for every call; results of one batch are sent together",
            )

    def check_splices(self, splices: Sequence[Splice]) -> None:
        """Raise ``HistoryError`` for splices out of place or in front of an illegal sequence."""
        if not splices:
            raise HistoryError("a compaction without a splice changes nothing", remedy="don't record it")
        end = self.head
        for splice in splices:
            if splice.start < end or splice.end < splice.start or splice.end > len(self._visible):
                raise HistoryError(
                    f"the splice [{splice.start}, {splice.end}) is out of place",
                    item=f"visible messages {end} to {len(self._visible)}",
                    remedy="splices must be inside the log zone, in order, without overlap",
                )
            end = splice.end
        if not all(self._keeps_pairs(splice) for splice in splices):
            check_sequence(self._spliced(splices)[0])

    def splice(self, how: How, splices: Sequence[Splice]) -> None:
        """Apply splices that ``check_splices`` allowed."""
        visible, origins = self._spliced(splices)
        for splice in splices:
            for position in range(splice.start, splice.end):
                if (origin := self.origins[position]) >= 0:
                    self.fates[origin] = how
        self._visible, self.origins, self._snapshot = visible, origins, None

    def _spliced(self, splices: Sequence[Splice]) -> tuple[list[Message], list[int]]:
        visible: list[Message] = []
        origins: list[int] = []
        at = 0
        for splice in splices:
            visible += self._visible[at : splice.start]
            origins += self.origins[at : splice.start]
            visible += splice.messages
            old = self._visible[splice.start : splice.end]
            in_place = [message.role for message in old] == [message.role for message in splice.messages]
            origins += self.origins[splice.start : splice.end] if in_place else [-1] * len(splice.messages)
            at = splice.end
        return visible + self._visible[at:], origins + self.origins[at:]

    def _keeps_pairs(self, splice: Splice) -> bool:
        """Whether a splice only rewrites texts, so that no call or result comes or goes."""
        old = self._visible[splice.start : splice.end]
        return len(old) == len(splice.messages) and all(
            a.role == b.role and a.tool_call_id == b.tool_call_id and a.tool_calls == b.tool_calls
            for a, b in zip(old, splice.messages, strict=True)
        )
