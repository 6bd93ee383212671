"""Raw request bodies as ``agentctx.messages.Request``, item by item, with the way back from each message to its item."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agentctx.diagnosis.views import Item, View, role_of
from agentctx.errors import InputError
from agentctx.interchange import read_request
from agentctx.messages import Message, Request


@dataclass(frozen=True, slots=True)
class Mapped:
    """A request and, for each of its messages, the item of the body that it came from (-1: the system prompt).

    ``paths`` are the names of the items and of the system prompt in the body.
    """

    request: Request
    origins: tuple[int, ...]
    paths: tuple[str, str]


def request_of(view: View, previous: Mapped | None = None, shared: int = 0) -> Mapped:
    """The request that a view stands for.

    ``shared`` leading items give the same prompt as in ``previous``: their messages are taken over, not read again.
    Raises ``InputError`` for a body that is none of its API.
    """
    head = _head(view)
    messages: list[Message] = list(head.messages)
    origins: list[int] = [-1] * len(messages)
    start = 0
    if previous is not None and shared > 0:
        start = _taken_over(view, previous, shared, messages, origins)
    for origin, unit in _units(view, start):
        read = _read(view.api, {view.path: unit}).messages
        messages.extend(read)
        origins.extend([origin] * len(read))
    tools = head.tools
    if previous is not None and previous.request.tools == tools:
        tools = previous.request.tools
    request = Request(tools=tools, messages=tuple(messages), params=head.params)
    return Mapped(request, tuple(origins), (view.path, view.system_path))


def _read(api: str, body: dict[str, object]) -> Request:
    try:
        return read_request(api, body)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        # A log may hold anything; a body that no API would take must not end the diagnosis of the others.
        raise InputError(f"the body is none of {api}: {error!r}") from error


def _head(view: View) -> Request:
    """Tools and system prompt alone."""
    body: dict[str, object] = {view.path: []}
    if view.tools:
        body["tools"] = list(view.tools)
    if view.system is not None and view.system_path in view.body:
        body[view.system_path] = view.system
    if view.model is not None:
        body["model"] = view.model
    return _read(view.api, body)


def _taken_over(
    view: View, previous: Mapped, shared: int, messages: list[Message], origins: list[int]
) -> int:
    """Append the messages of the shared items; the index of the first item that has to be read."""
    first = previous.origins.count(-1)
    keep = len(previous.origins)
    while keep > first and previous.origins[keep - 1] >= shared:
        keep -= 1
    if keep <= first:
        return 0
    # The last item may have been read together with items that follow it now: it is read anew, whole.
    start = previous.origins[keep - 1]
    while keep > first and previous.origins[keep - 1] >= start:
        keep -= 1
    system = messages[: origins.count(-1)]
    for old, new in zip(previous.request.messages[:first], system, strict=False):
        if old == new:
            messages[messages.index(new)] = old  # the same object, so that a renderer needn't compare it
    messages.extend(previous.request.messages[first:keep])
    origins.extend(previous.origins[first:keep])
    return start


def _units(view: View, start: int) -> Iterator[tuple[int, list[Item]]]:
    """Items to be read together: runs of what a model produced (Responses), else one by one."""
    index = start
    while index < len(view.items):
        end = index + 1
        if view.api == "openai.responses" and role_of(view.items[index]) == "assistant":
            while end < len(view.items) and role_of(view.items[end]) == "assistant":
                end += 1
        yield index, list(view.items[index:end])
        index = end


def place_of(mapped: Mapped, index: int, field: str) -> str:
    """The path in the body of a field of message ``index`` (fields as in ``agentctx.rendering.prompt.Span``)."""
    origin = mapped.origins[index] if index < len(mapped.origins) else -1
    if origin < 0:
        return mapped.paths[1]
    name = {"reasoning": "reasoning_content", "note": "content"}.get(field, field)
    return f"{mapped.paths[0]}[{origin}].{name}"


def reply_message(view: View, choices: Sequence[Sequence[Item]]) -> Message | None:
    """The server's reply as one message; None when nothing was recorded or it makes several.

    Raises ``InputError`` for a reply that is none of the API.
    """
    for items in choices[:1]:
        read = _read(view.api, {view.path: list(items)}).messages
        if len(read) == 1:
            return read[0]
    return None
