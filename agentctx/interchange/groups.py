"""Where one item of a provider's list stands for several messages, or several items for one message.

A group is a run of wire items and the run of messages that they make. Items in their default form leave nothing
behind; otherwise the first message of the group keeps the shape of all items, and every message its place in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from agentctx.interchange.parts import PartForm, check_state, content_state, content_value
from agentctx.interchange.wire import Misfit, extras_of, fill, hint_of, packed, ref, unknown_of
from agentctx.messages import Message


def kept(api: str, messages: Sequence[Message], shape: list[Any], absent: Sequence[bool]) -> list[Message]:
    """The messages of one group with its shape. ``absent[i]``: message ``i`` had no content field or a null one."""
    result = []
    for index, message in enumerate(messages):
        hint: dict[str, Any] = {
            "of": len(messages),
            "at": index,
            "content": content_state(message, absent=absent[index]),
            "calls": len(message.tool_calls),
        }
        if index == 0:
            hint["shape"] = shape
        extra = packed(api, unknown_of(message, api), **hint)
        result.append(message.model_copy(update={"extra_json": extra}))
    return result


def groups(api: str, messages: Sequence[Message], start: int) -> Iterator[tuple[list[Message], Any]]:
    """Runs of messages from ``start`` on, each with its shape; runs without one have length 1 and shape ``None``."""
    index = start
    while index < len(messages):
        hint = hint_of(messages[index], api)
        length = hint.get("of", 1)
        run = list(messages[index : index + length])
        whole = [(other.get("of"), other.get("at")) for other in (hint_of(message, api) for message in run)]
        if "shape" in hint and whole == [(length, at) for at in range(length)]:
            yield run, hint["shape"]
            index += length
        else:
            yield [messages[index]], None
            index += 1


def filled(
    api: str,
    form_of: Callable[[Message], PartForm],
    run: Sequence[Message],
    shape: Any,
    call_of: Callable[[Any], Any],
) -> list[Any]:
    """The items of a group. Raises ``Misfit`` when its messages are no longer those that the shape was made for."""
    for message in run:
        hint = hint_of(message, api)
        check_state(message, hint.get("content"))
        if hint.get("calls") != len(message.tool_calls):
            raise Misfit

    def value(path: list[Any]) -> Any:
        at, *rest = path
        message = run[at]
        match rest:
            case ["call", int(index)]:
                return call_of(message.tool_calls[index])
            case ["tool_call_id" | "reasoning" as field] if getattr(message, field) is not None:
                return getattr(message, field)
            case ["unknown", key]:
                return extras_of(message)[key]
        return content_value(form_of(message), message, rest)

    items = fill(shape, value)
    if not isinstance(items, list):
        raise Misfit
    return items


def addressed(shape: Any, at: int) -> Any:
    """A content's shape with its references made to point into message ``at`` of the group."""
    return fill(shape, lambda path: ref(at, *path))
