"""View: one raw request body as the parts that a prompt is made of, whatever the API.

A view refers to the body, it copies nothing. ``system`` is what stands before all messages, ``items`` the messages
(of the Responses API: the input items), in the order in which the model reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentctx.diagnosis.exchange import RecordedCall

Item = Mapping[str, Any]
PROMPT_APIS = frozenset({"llama.completion", "text"})
"""APIs whose request is one finished text (or token ids), not messages."""

_SYSTEM_ROLES = frozenset({"system", "developer"})
_NO_ITEM: Item = {}


@dataclass(frozen=True, slots=True)
class View:
    """The parts of one request. ``path`` names the items in the body: ``messages``, ``input`` or ``prompt``.

    ``lead`` counts the leading items that are system messages. ``prompt`` is the finished text or the list of
    token ids for APIs that take one, else None.
    """

    api: str
    body: Mapping[str, Any]
    model: str | None
    tools: Sequence[Item]
    system: Any
    system_path: str
    items: Sequence[Item]
    path: str
    lead: int
    prompt: str | Sequence[int] | None = None

    @property
    def talk(self) -> Sequence[Item]:
        """The items behind the leading system messages."""
        return self.items[self.lead :] if self.lead else self.items


def view_of(exchange: RecordedCall) -> View:
    """The view of an exchange's request. Fields of the wrong type count as absent."""
    body = exchange.request
    model = body.get("model")
    tools = body.get("tools")
    if not tools:
        # The older form of OpenAI declares bare functions.
        tools = body.get("functions")
    prompt: str | Sequence[int] | None = None
    items: Sequence[Item] = ()
    system: Any = None
    system_path, path = "system", "messages"
    if exchange.api in PROMPT_APIS:
        path = "input" if exchange.api == "text" else "prompt"
        raw = body.get(path)
        prompt = raw if isinstance(raw, (str, list)) else ""
    elif exchange.api == "openai.responses":
        path, system_path = "input", "instructions"
        system = body.get("instructions")
        raw = body.get("input")
        items = ({"role": "user", "content": raw},) if isinstance(raw, str) else _items(raw)
    else:
        items = _items(body.get("messages"))
        if exchange.api == "anthropic.messages":
            system = body.get("system")
    return View(
        api=exchange.api,
        body=body,
        model=model if isinstance(model, str) else None,
        tools=_items(tools),
        system=system,
        system_path=system_path,
        items=items,
        path=path,
        lead=_lead(items),
        prompt=prompt,
    )


def _lead(items: Sequence[Item]) -> int:
    lead = 0
    while lead < len(items) and role_of(items[lead]) in _SYSTEM_ROLES:
        lead += 1
    return lead


def is_linked(view: View) -> bool:
    """Whether the request goes on from a response whose history the server keeps."""
    return bool(view.body.get("previous_response_id"))


def behind(view: View, history: Sequence[Item]) -> View:
    """The view with items in front that the server keeps and the body doesn't repeat (``previous_response_id``)."""
    items = (*history, *view.items)
    return replace(view, items=items, lead=_lead(items))


def _items(raw: Any) -> Sequence[Item]:
    if not isinstance(raw, list):
        return ()
    if all(isinstance(item, Mapping) for item in raw):
        return raw
    return [item if isinstance(item, Mapping) else _NO_ITEM for item in raw]


def reply_items(exchange: RecordedCall) -> tuple[tuple[Item, ...], ...]:
    """What the server generated, as items of the next request: one tuple for each choice, usually one.

    Empty when nothing was recorded or the response is an error.
    """
    response = exchange.response
    if not response or response.get("error"):
        return ()
    if exchange.api == "openai.chat":
        return tuple(_chat_choices(response))
    if exchange.api == "anthropic.messages":
        content = response.get("content")
        if isinstance(content, (list, str)) and content:
            return (({"role": "assistant", "content": content},),)
    elif exchange.api == "openai.responses":
        output = _items(response.get("output"))
        if output:
            return (tuple(output),)
    return ()


def _chat_choices(response: Mapping[str, Any]) -> Iterator[tuple[Item, ...]]:
    choices = response.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        message = choice.get("message") if isinstance(choice, Mapping) else None
        if isinstance(message, Mapping):
            yield (message if "role" in message else {"role": "assistant", **message},)


def reply_text(exchange: RecordedCall) -> str | list[int]:
    """What was generated behind a finished prompt: text, or token ids when the prompt was token ids."""
    response = exchange.response
    if not response or response.get("error") or exchange.api == "text":
        return ""
    tokens = response.get("tokens")
    if isinstance(exchange.request.get("prompt"), list):
        return tokens if isinstance(tokens, list) else []
    content = response.get("content")
    if isinstance(content, str):
        return content
    choices = response.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
        text = choices[0].get("text")
        return text if isinstance(text, str) else ""
    return ""


def role_of(item: Item) -> str:
    """The item's role; items of the Responses API without one go by their type."""
    role = item.get("role")
    if isinstance(role, str):
        return role
    kind = item.get("type")
    if kind in ("function_call", "reasoning", "custom_tool_call", "local_shell_call", "web_search_call"):
        return "assistant"
    if isinstance(kind, str) and kind.endswith("_output"):
        return "tool"
    return kind if isinstance(kind, str) else ""


def texts_of(value: Any) -> Iterator[str]:
    """Every text that a model reads in a content: of strings, parts, results and reasoning, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from texts_of(part)
    elif isinstance(value, Mapping):
        for key in ("thinking", "text", "content", "output", "summary"):
            inner = value.get(key)
            if inner:
                yield from texts_of(inner)


def text_of(item: Item) -> str:
    """All text of an item in one string: reasoning, content, names and arguments of calls."""
    pieces = [piece for key in ("reasoning_content", "reasoning") if isinstance(piece := item.get(key), str)]
    pieces.extend(texts_of(item))
    for name, arguments in calls_of(item):
        pieces.append(name)
        pieces.append(arguments if isinstance(arguments, str) else repr(arguments))
    return "\n".join(pieces)


def calls_of(item: Item) -> Iterator[tuple[str, Any]]:
    """Name and arguments of each tool call in an item, of any API."""
    if item.get("type") in ("function_call", "custom_tool_call"):
        yield str(item.get("name", "")), item.get("arguments", item.get("input", ""))
    calls = item.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            yield str(function.get("name", "")), function.get("arguments", "")
    content = item.get("content")
    for part in content if isinstance(content, list) else ():
        if isinstance(part, Mapping) and part.get("type") == "tool_use":
            yield str(part.get("name", "")), part.get("input", "")


def call_ids(item: Item) -> list[str]:
    """The identifiers of the tool calls in an item."""
    calls, content = item.get("tool_calls"), item.get("content")
    found = [item.get("call_id")] if item.get("type") in ("function_call", "custom_tool_call") else []
    found += [
        call.get("id") for call in (calls if isinstance(calls, list) else ()) if isinstance(call, Mapping)
    ]
    found += [
        part.get("id")
        for part in (content if isinstance(content, list) else ())
        if isinstance(part, Mapping) and part.get("type") == "tool_use"
    ]
    return [value for value in found if isinstance(value, str)]


def answered_ids(item: Item) -> list[str]:
    """The identifiers of the calls whose results an item holds."""
    content = item.get("content")
    found = [item.get("tool_call_id")]
    if str(item.get("type", "")).endswith("_output"):
        found.append(item.get("call_id"))
    found += [
        part.get("tool_use_id")
        for part in (content if isinstance(content, list) else ())
        if isinstance(part, Mapping)
    ]
    return [value for value in found if isinstance(value, str)]


def key_of(item: Item) -> int:
    """A number that equal items share, identifiers, shape and outer white space left out; only good inside this process.

    Used to line up messages: items that differ in identifiers, markers or in string against list are one key.
    """
    content = item.get("content")
    if isinstance(content, str) and not item.get("tool_calls"):
        return hash((role_of(item), content.strip()))
    pieces = list(texts_of(content))
    if not pieces:
        pieces.extend(texts_of(item))
    for name, arguments in calls_of(item):
        pieces.append(name)
        pieces.append(arguments if isinstance(arguments, str) else repr(arguments))
    if not pieces:
        pieces.append(repr(item.get("encrypted_content") or item.get("type") or ""))
    # One text in a list and the same text as a string are one key.
    return hash((role_of(item), pieces[0].strip() if len(pieces) == 1 else tuple(pieces)))
