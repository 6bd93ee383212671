"""Under any sequence of public calls, prompts of one epoch extend each other, and disk and memory agree.

Checked on the messages themselves and on five renderings of them (see ``renderings.py``).
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentctx.errors import HistoryError
from agentctx.history import History, Splice
from agentctx.messages import Message, Params, Request, Tool, ToolCall, canonical_json

from .renderings import Renderings

# Surrogates too, which no UTF-8 can hold: they are made safe where they enter.
characters = st.characters(codec="utf-8")
texts = st.text(characters, max_size=12) | st.text(characters | st.characters(categories=["Cs"]), max_size=3)
# What a model said does not begin with white space here: that the template's line break and the reply's first one become
# one token is the tokenizer's doing (diagnosis calls it retokenised) and not the history's.
said = texts.filter(lambda text: not text[:1].isspace())
names = st.sampled_from(["read", "edit", "grep", "run"])
schemas = st.dictionaries(st.sampled_from(["path", "text", "n"]), st.just({"type": "string"}), max_size=3)
tools = st.lists(
    st.builds(lambda name, text, schema: Tool.of(name, text, {"properties": schema}), names, texts, schemas),
    max_size=4,
    unique_by=lambda tool: tool.name,
)
arguments = st.dictionaries(texts, texts, max_size=2).map(canonical_json) | texts


class HistoryMachine(RuleBasedStateMachine):
    """Drives a History kept in a file. ``calls`` holds ids that may or may not be open."""

    calls = Bundle("calls")

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.path = Path(self.directory.name) / "history.jsonl"
        self.last: Request | None = None
        self.last_epoch = 0
        self.sent: list[bytes] = []
        self.renderings = Renderings()

    def teardown(self) -> None:
        self.history.close()
        self.directory.cleanup()

    @initialize(system=texts | st.none(), tools=tools, pinned=st.lists(texts, max_size=2))
    def start(self, system: str | None, tools: list[Tool], pinned: list[str]) -> None:
        self.history = History.open(self.path, system, tools, pinned)

    @rule(text=texts)
    def user(self, text: str) -> None:
        self.history.user(text)

    @rule(text=said, reasoning=said | st.none())
    def assistant(self, text: str, reasoning: str | None) -> None:
        with contextlib.suppress(HistoryError):
            self.history.assistant(text, reasoning=reasoning)

    @rule(target=calls, name=names, arguments=arguments, id=st.none() | texts)
    def tool_call(self, name: str, arguments: str, id: str | None) -> str:
        try:
            return self.history.tool_call(name, arguments, id=id)
        except HistoryError:
            return "refused"

    @rule(target=calls, ids=st.lists(texts, min_size=1, max_size=3))
    def parallel_calls(self, ids: list[str]) -> str:
        calls = [ToolCall(id=id, name="read", arguments="{}") for id in ids]
        with contextlib.suppress(HistoryError):
            self.history.assistant(tool_calls=calls)
        return ids[-1]

    @rule(id=calls, text=texts)
    def tool_result(self, id: str, text: str) -> None:
        with contextlib.suppress(HistoryError):
            self.history.tool_result(id, text)

    @rule(text=texts)
    def answer_all(self, text: str) -> None:
        for id in reversed(self.history.open_calls):
            self.history.tool_result(id, text)

    @rule(text=texts, key=st.none() | texts)
    def note(self, text: str, key: str | None) -> None:
        self.history.note(text, key=key)

    @rule(data=st.binary(max_size=8))
    def attach(self, data: bytes) -> None:
        self.history.attach(data, media_type="image/png")

    @rule(index=st.integers(-12, 12), text=texts)
    def edit(self, index: int, text: str) -> None:
        with contextlib.suppress(HistoryError, IndexError):
            self.history[index] = Message(role="user", content=text)

    @rule(index=st.integers(-12, 12))
    def delete(self, index: int) -> None:
        with contextlib.suppress(HistoryError, IndexError):
            del self.history[index]

    @rule(tools=tools)
    def declare(self, tools: list[Tool]) -> None:
        with contextlib.suppress(HistoryError):
            self.history.declare(tools)

    @rule(tools=tools, how=st.sampled_from(["message", "epoch"]))
    def add_tool(self, tools: list[Tool], how: str) -> None:
        for tool in tools[:1]:
            with contextlib.suppress(HistoryError):
                self.history.add_tool(tool, how)  # type: ignore[arg-type]

    @rule(start=st.integers(0, 8), length=st.integers(0, 6), text=st.none() | texts)
    def compact(self, start: int, length: int, text: str | None) -> None:
        messages = () if text is None else (Message(role="user", content=text),)
        with contextlib.suppress(HistoryError):
            self.history.compact("summarized", [Splice(start, start + length, messages)])

    @rule(model=texts)
    def change_params(self, model: str) -> None:
        self.history.params = Params(model=model)

    @rule()
    def seal(self) -> None:
        with contextlib.suppress(HistoryError):
            self.history.seal()

    @rule()
    def request(self) -> None:
        try:
            request = self.history.request()
        except HistoryError:
            return
        assert [message.digest for message in self.history[: len(self.sent)]] == self.sent
        if self.last is not None and self.history.epoch == self.last_epoch:
            assert request.tools == self.last.tools
            assert request.messages[: len(self.last.messages)] == self.last.messages
            assert request.pinned == self.last.pinned
        self.renderings.check(request, self.history.epoch)
        self.last, self.last_epoch = request, self.history.epoch
        self.sent = [message.digest for message in self.history]

    @rule()
    def fork(self) -> None:
        child = self.history.fork()
        before = self.history.checkpoint()
        child.user("sub-task")
        if self.last is not None and self.history.epoch == self.last_epoch:
            request = child.request()
            assert request.messages[: len(self.last.messages)] == self.last.messages
        assert self.history.checkpoint() == before

    @rule(by_file=st.booleans())
    def resume(self, by_file: bool) -> None:
        before = self.history.checkpoint()
        if by_file:
            self.history.close()
            self.history = History.open(self.path)
            assert self.history.checkpoint() == before
            again = History.resume(before)
            with contextlib.suppress(HistoryError):
                again.seal()
            if self.last is not None and (again.epoch, again.visible) == (
                self.last_epoch,
                self.last.messages,
            ):
                # Nothing was appended since the last request: it comes again, to the byte.
                assert self.renderings.same_as_last(again.request())
        else:
            again = History.resume(before)
            assert again.checkpoint() == before
            if not again.open_calls and again.visible:
                assert again.request() == History.resume(before).request()

    @precondition(lambda self: hasattr(self, "history"))
    @invariant()
    def lists_agree(self) -> None:
        history = self.history
        for message, origin in zip(history.visible, history.origins, strict=True):
            if origin >= 0 and origin not in history.fates:
                assert message is history[origin]
        absent = set(range(len(history))) - {origin for origin in history.origins if origin >= 0}
        assert absent <= set(history.fates)


TestHistoryMachine = HistoryMachine.TestCase
TestHistoryMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
