"""Summaries: what a summarizer is asked, and a stand-in where no model is at hand."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from agentctx.history import History
from agentctx.messages import Message, Request
from agentctx.policies.policy import CountTokens

Asking = Literal["own-prefix", "fresh"]

_INSTRUCTION = (
    "The conversation is about to be shortened. Summarize everything after the task for yourself: what was asked, what "
    "was found and decided, which files matter and what was changed in them, what is still to be done. Write at most "
    "{tokens} tokens and call no tool."
)
_FRESH_SYSTEM = "You summarize the work of an agent so that it can go on from your summary alone."


@dataclass(frozen=True, slots=True)
class SummaryTask:
    """What a summarizer gets.

    ``messages`` are to be summarized in at most ``tokens`` tokens. ``request`` is ready to be sent to a model whose reply
    is the summary; with ``own-prefix`` it extends the conversation's last request, so that a cache serves nearly all of
    it, with ``fresh`` it holds the messages as text behind a system prompt of its own, and all of it is new.
    """

    messages: tuple[Message, ...]
    tokens: int
    request: Request
    asking: Asking
    count: CountTokens


Summarizer = Callable[[SummaryTask], str | Awaitable[str]]


def summary_task(
    history: History, start: int, end: int, tokens: int, asking: Asking, count: CountTokens
) -> SummaryTask:
    """The task of summarizing the visible messages ``[start, end)`` of a sealed history."""
    messages = history.visible[start:end]
    instruction = _INSTRUCTION.format(tokens=tokens)
    if asking == "own-prefix":
        request = Request.model_construct(
            tools=history.tools,
            messages=(*history.visible, Message(role="user", content=instruction)),
            pinned=len(history.pinned),
            params=history.params,
        )
    else:
        text = "\n\n".join(_as_text(message) for message in messages)
        request = Request(
            messages=(
                Message(role="system", content=_FRESH_SYSTEM),
                Message(role="user", content=f"{instruction}\n\n{text}"),
            ),
            params=history.params,
        )
    return SummaryTask(messages, tokens, request, asking, count)


def _as_text(message: Message) -> str:
    calls = [f"{call.name}({call.arguments})" for call in message.tool_calls]
    return "\n".join(
        [f"[{message.role}]", *([message.text_with_notes] if message.text_with_notes else []), *calls]
    )


_FILLERS = (" …", " .", " -", " a", "\n", " the")


class ExtractiveStandIn:
    """Deterministic summary of exactly the tokens that are asked for, made of the first lines of the messages.

    It says nothing about how well a model would summarize; it has a summary's length and place, which is what the
    accounting needs. Where the tokenizer can't hit the length exactly the text is the longest that was found below it.
    """

    is_stand_in = True

    def __call__(self, task: SummaryTask) -> str:
        # A model's summary of more messages is another text from its beginning on; so is this one's.
        digest = hashlib.sha256(b"".join(message.digest for message in task.messages)).hexdigest()[:8]
        head = f"Summary {digest} of {len(task.messages)} messages:".split()
        words = head + list(itertools.islice(_words(task.messages), task.tokens * 2 + 16))
        low, high = 0, len(words)
        while low < high:  # the most words that fit
            middle = (low + high + 1) // 2
            if task.count(" ".join(words[:middle])) <= task.tokens:
                low = middle
            else:
                high = middle - 1
        return _filled(" ".join(words[:low]), task.tokens, task.count)


def _filled(text: str, tokens: int, count: CountTokens) -> str:
    missing = tokens - count(text)
    while missing > 0:
        for filler in _FILLERS:
            longer = text + filler * missing
            if count(longer) == tokens:
                return longer
        # No filler is one token here: add a little and try to finish behind it.
        step = next((f for f in _FILLERS if count(text) < count(text + f) <= tokens), None)
        if step is None:
            break
        text += step
        missing = tokens - count(text)
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
