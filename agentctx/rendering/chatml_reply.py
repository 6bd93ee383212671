"""Reading a reply in the built-in layout: generated token ids back into the message that they spell."""

from __future__ import annotations

import json
from collections.abc import Iterator

from agentctx.messages import Message, ToolCall
from agentctx.rendering.chatml import CALL, END, END_CALL, END_THINK, NOTE, SEP, START, THINK
from agentctx.rendering.prompt import TokenIds
from agentctx.rendering.tokenizer import Tokenizer

_MARKS = (START, SEP, END, NOTE, THINK, END_THINK, CALL, END_CALL)


def _pieces(tokenizer: Tokenizer, ids: TokenIds) -> Iterator[tuple[str | None, str]]:
    """Runs of plain text as ``(None, text)`` and special tokens as ``(mark, mark)``, up to the end token."""
    marks = {tokenizer.special_tokens[mark.text]: mark.text for mark in _MARKS}
    run = 0
    for index, token in enumerate(ids.tolist()):
        mark = marks.get(token)
        if mark is None:
            continue
        if index > run:
            yield None, tokenizer.decode(ids[run:index])
        run = index + 1
        if mark == END.text:
            return
        yield mark, mark
    if len(ids) > run:
        yield None, tokenizer.decode(ids[run:])


def _call(text: str, index: int) -> ToolCall | None:
    """The tool call that a model wrote, its arguments as the raw string that it wrote; ``None`` when it is none."""
    try:
        name = json.loads(text)["name"]
    except (ValueError, KeyError, TypeError):
        return None
    _, found, rest = text.partition('"arguments": ')
    if not isinstance(name, str) or not found:
        return None
    return ToolCall(id=f"call_{index}", name=name, arguments=rest.rstrip()[:-1])


def read_reply(tokenizer: Tokenizer, ids: TokenIds, *, first_call: int = 1) -> Message:
    """The assistant message that ``ids`` spell, the end token and what follows it left out.

    Marks that do not open what they should (a lone ``</think>``, a call that is no JSON) are kept as text: a model may
    write anything, and nothing that it wrote is lost. Calls get the ids ``call_N`` from ``first_call`` on.
    """
    content: list[str] = []
    reasoning: str | None = None
    calls: list[ToolCall] = []
    pieces = list(_pieces(tokenizer, ids))
    index = 0
    while index < len(pieces):
        mark, text = pieces[index]
        opened = [piece[1] for piece in pieces[index + 1 : index + 2] if piece[0] is None]
        close = index + 1 + len(opened)
        closed = pieces[close][0] if close < len(pieces) else None
        body = opened[0] if opened else ""
        if mark == THINK.text and closed == END_THINK.text and index == 0:
            reasoning = body
            index = close + 1
            continue
        if mark == CALL.text and closed == END_CALL.text:
            call = _call(body, first_call + len(calls))
            if call is not None:
                calls.append(call)
                index = close + 1
                continue
        content.append(text)
        index += 1
    return Message(role="assistant", content="".join(content), reasoning=reasoning, tool_calls=tuple(calls))
