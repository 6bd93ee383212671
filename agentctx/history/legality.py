"""What every chat API demands of tool calls, checked as messages arrive.

A call's id is unique in the conversation, every call is answered before the next assistant message, and the
results of one assistant message stand directly behind it in the order of its calls. A result may arrive in
any order: parallel tools finish when they finish, and a prompt that depended on it would differ from run to run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentctx.errors import HistoryError
from agentctx.messages import Message


def name_item(index: int, message: Message) -> str:
    """A message named for a person: ``messages[3] (tool result call_7)``."""
    match message.role:
        case "tool":
            what = f"tool result {message.tool_call_id}"
        case "assistant" if message.tool_calls:
            what = "assistant, calls " + ", ".join(call.id for call in message.tool_calls)
        case role:
            what = role
    return f"messages[{index}] ({what})"


class CallLedger:
    """Which tool calls are open, and where the next result belongs.

    One batch is open at a time: the calls of the newest assistant message.
    """

    __slots__ = ("_answered", "_at", "_batch", "_seen")

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._batch: tuple[str, ...] = ()
        self._answered: set[str] = set()
        self._at = 0

    @property
    def open_calls(self) -> tuple[str, ...]:
        """Ids of the calls that have no result yet, in the order of the calls."""
        if len(self._answered) == len(self._batch):
            return ()
        return tuple(call for call in self._batch if call not in self._answered)

    def knows(self, call_id: str) -> bool:
        """Whether a call of this id was ever made."""
        return call_id in self._seen

    def place(self, index: int, message: Message) -> int:
        """Check a message that arrives at ``index``, the end of the log, and return the index where it belongs.

        Changes nothing. Raises ``HistoryError`` for a result that answers no open call, an id used twice, and
        an assistant message while calls are open.
        """
        if message.role == "tool":
            return self._place_result(index, message)
        if message.tool_call_id is not None:
            raise HistoryError("only a tool result may have a tool_call_id", item=name_item(index, message))
        if message.role == "assistant":
            self._check_assistant(index, message)
        elif message.tool_calls:
            raise HistoryError("only an assistant message may call tools", item=name_item(index, message))
        return index

    def admit(self, index: int, message: Message) -> None:
        """Take note of a message that ``place`` allowed and that now stands at ``index``."""
        if message.role == "tool":
            self._answered.add(message.tool_call_id or "")
        elif message.role == "assistant":
            self._open(index, message)

    def _open(self, index: int, message: Message) -> None:
        self._batch = tuple(call.id for call in message.tool_calls)
        self._answered.clear()
        self._at = index
        self._seen.update(self._batch)

    def extend_batch(self, call_id: str) -> None:
        """One more call joins the newest assistant message."""
        self._batch += (call_id,)
        self._seen.add(call_id)

    def can_extend(self, index: int) -> bool:
        """Whether the message at ``index`` is an assistant message to which another call may still be added."""
        return self._at == index and not self._answered

    def _place_result(self, index: int, message: Message) -> int:
        item = name_item(index, message)
        call_id = message.tool_call_id
        if not call_id:
            raise HistoryError(
                "a tool result must name the call that it answers", item=item, remedy="set tool_call_id"
            )
        if call_id not in self._batch:
            problem = (
                "this call was answered long ago" if call_id in self._seen else "no tool call has this id"
            )
            raise HistoryError(
                problem, item=item, remedy="append a result for each call once, right after the call"
            )
        if call_id in self._answered:
            raise HistoryError(
                "this call already has a result", item=item, remedy="results are never rewritten"
            )
        before = self._batch[: self._batch.index(call_id)]
        return self._at + 1 + sum(1 for earlier in before if earlier in self._answered)

    def _check_assistant(self, index: int, message: Message) -> None:
        item = name_item(index, message)
        if missing := self.open_calls:
            raise HistoryError(
                f"tool call {missing[0]} has no result yet",
                item=item,
                remedy="append its result before the next reply",
            )
        ids = [call.id for call in message.tool_calls]
        for position, call_id in enumerate(ids):
            if not call_id:
                raise HistoryError(f"tool_calls[{position}] has an empty id", item=item)
            if call_id in self._seen or call_id in ids[:position]:
                raise HistoryError(
                    f"the tool call id {call_id} was used before",
                    item=item,
                    remedy="give each call its own id",
                )


def check_sequence(messages: Sequence[Message], *, open_at_end: bool = False) -> None:
    """Check that a message list is legal where it stands: nothing may be moved.

    Raises ``HistoryError`` naming the first message that breaks a rule. With ``open_at_end`` the newest calls may
    still wait for their results.
    """
    ledger = CallLedger()
    for index, message in enumerate(messages):
        if message.role not in ("tool", "assistant") and (missing := ledger.open_calls):
            raise HistoryError(
                f"tool call {missing[0]} must be answered before this message", item=name_item(index, message)
            )
        if ledger.place(index, message) != index:
            raise HistoryError(
                "results must stand in the order of their calls", item=name_item(index, message)
            )
        ledger.admit(index, message)
    if not open_at_end and (missing := ledger.open_calls):
        raise HistoryError(
            f"tool call {missing[0]} has no result", item=name_item(len(messages) - 1, messages[-1])
        )


def ledger_of(messages: Iterable[Message]) -> CallLedger:
    """The ledger after ``messages``, each placed where it stands. Raises ``HistoryError`` as ``place`` does."""
    ledger = CallLedger()
    for index, message in enumerate(messages):
        if ledger.place(index, message) != index:
            raise HistoryError(
                "results must stand in the order of their calls", item=name_item(index, message)
            )
        ledger.admit(index, message)
    return ledger
