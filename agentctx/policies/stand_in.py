"""A stand-in for a summary where no model is at hand: sentences taken from the text, cut to a given length."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from agentctx.messages import Message
from agentctx.policies.policy import CountTokens

_FILLERS = (" …", " .", " -", " a", "\n", " the")


class ExtractiveStandIn:
    """Deterministic summary of exactly ``tokens`` tokens, made of the first lines of the messages.

    It says nothing about how well a model would summarize; it has a summary's length and place, which is what the
    accounting needs. Where the tokenizer can't hit the length exactly the text is the longest below it.
    """

    is_stand_in = True

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def __call__(self, messages: Sequence[Message], count: CountTokens) -> str:
        words = list(itertools.islice(_words(messages), self.tokens * 2 + 16))
        low, high = 0, len(words)
        while low < high:  # the most words that fit
            middle = (low + high + 1) // 2
            if count(" ".join(words[:middle])) <= self.tokens:
                low = middle
            else:
                high = middle - 1
        return self._filled(" ".join(words[:low]), count)

    def _filled(self, text: str, count: CountTokens) -> str:
        missing = self.tokens - count(text)
        while missing > 0:
            for filler in _FILLERS:
                longer = text + filler * missing
                if count(longer) == self.tokens:
                    return longer
            # No filler is one token here: add a little and try to finish behind it.
            step = next((f for f in _FILLERS if count(text) < count(text + f) <= self.tokens), None)
            if step is None:
                break
            text += step
            missing = self.tokens - count(text)
        return text


def _words(messages: Sequence[Message]) -> Iterator[str]:
    """Words of the first line of every message, then of every second line, and so on."""
    columns = [_lines(message) for message in messages]
    for row in itertools.count():
        left = False
        for lines in columns:
            if row < len(lines):
                left = True
                yield from lines[row].split()
        if not left:
            return


def _lines(message: Message) -> list[str]:
    lines = [f"{call.name}: {call.arguments}" for call in message.tool_calls]
    return lines + [line for line in message.text.splitlines() if line.strip()]
