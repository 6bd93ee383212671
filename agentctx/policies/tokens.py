"""Token counts of messages, each text counted once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentctx.messages import Message, Tool
from agentctx.policies.policy import CountTokens

if TYPE_CHECKING:
    from agentctx.history import History


class TokenCounts:
    """Tokens of a conversation's messages: texts, reasoning, names and arguments of calls.

    What a template wraps around them is not counted, nor are images and files: a policy decides on what the
    conversation holds, and the exact prompt is measured where it is rendered.
    """

    def __init__(self, count: CountTokens) -> None:
        self._count = count
        # Keyed by identity, with the message kept alive: hashing a message would read all of its text again.
        self._known: dict[int, tuple[Message, int]] = {}
        self._tools: tuple[Sequence[Tool], int] = ((), 0)
        self._sums: list[int] = [0]
        self._events = 0

    def text(self, text: str) -> int:
        """Tokens of a text, not remembered."""
        return self._count(text)

    def message(self, message: Message) -> int:
        """Tokens of a message."""
        known = self._known.get(id(message))
        if known is not None:
            return known[1]
        texts = [message.text_with_notes, message.reasoning or ""]
        for call in message.tool_calls:
            texts += (call.name, call.arguments)
        tokens = sum(self._count(text) for text in texts if text)
        self._known[id(message)] = (message, tokens)
        return tokens

    def tools(self, tools: Sequence[Tool]) -> int:
        """Tokens of the tools zone: names, descriptions and schemas."""
        if self._tools[0] is not tools:
            texts = [text for tool in tools for text in (tool.name, tool.description, tool.parameters_json)]
            self._tools = (tools, sum(self._count(text) for text in texts if text))
        return self._tools[1]

    def sums(self, history: History) -> list[int]:
        """Running totals of the visible messages of a sealed history: ``sums[i]`` is what stands before message ``i``.

        Only messages that came since the last call are counted, unless the history was compacted.
        """
        if self._events != len(history.events):
            self._events = len(history.events)
            del self._sums[1:]
        for message in history.visible[len(self._sums) - 1 :]:
            self._sums.append(self._sums[-1] + self.message(message))
        return self._sums

    def prompt(self, history: History) -> int:
        """Tokens that the next request holds: tools and visible messages."""
        return self.tools(history.tools) + self.sums(history)[-1]
