"""From a Request to what a chat template reads, with the origin of every string."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from agentctx.common_ends import common_start
from agentctx.messages import MediaPart, Message, Request, TextPart, Tool
from agentctx.rendering.spans import Source
from agentctx.rendering.templates.profile import TemplateProfile
from agentctx.rendering.templates.template import Conversation
from agentctx.rendering.templates.tracing import joined, whole
from agentctx.surrogates import replace_surrogates


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request in the template's form. ``request`` is kept to find out what the next one shares with it.

    ``kept``: leading messages that are the same objects as in what it was made from.
    """

    request: Request
    conversation: Conversation
    origins: tuple[dict[int, Source], ...]  # per message, so that a shortened log forgets what it dropped
    kept: int = 0


class Converter:
    """Turns requests into template input by a template's profile.

    ``blank_descriptions``: a tool without description gets an empty one (llama.cpp) instead of none.
    """

    def __init__(self, profile: TemplateProfile, *, blank_descriptions: bool = False) -> None:
        self.profile = profile
        self.blank_descriptions = blank_descriptions

    def prepare(self, request: Request, previous: Prepared | None = None) -> Prepared:
        """Convert; what ``previous`` shares with the request is taken over as the same objects."""
        kept = common_start(previous.request.messages, request.messages) if previous is not None else 0
        messages = previous.conversation.messages[:kept] if previous is not None else []
        origins: list[dict[int, Source]] = []
        for index in range(kept, len(request.messages)):
            found: dict[int, Source] = {}
            messages.append(self._message(request.messages[index], index, found))
            origins.append(found)
        same_tools = previous is not None and (
            previous.request.tools is request.tools or previous.request.tools == request.tools
        )
        before = previous.origins[:kept] if previous is not None else ()
        every = before + tuple(origins)
        if previous is not None and same_tools:
            conversation = self._extended(previous, messages, every, kept)
        else:
            conversation = self._with_tools(request.tools, messages, every)
        return Prepared(request, conversation, every, kept)

    def _extended(
        self,
        previous: Prepared,
        messages: list[dict[str, Any]],
        origins: tuple[dict[int, Source], ...],
        kept: int,
    ) -> Conversation:
        old = previous.conversation
        if kept == len(previous.origins):
            found = old.origins  # it only grows, and what it knows stays alive with the messages
            for new in origins[kept:]:
                found.update(new)
        else:
            found = {key: source for key, source in old.origins.items() if key in old.kept}
            for each in origins:
                found.update(each)
        return Conversation(messages, old.tools, found, True, old.kept, old.json_texts)

    def _with_tools(
        self, tools: tuple[Tool, ...], messages: list[dict[str, Any]], origins: tuple[dict[int, Source], ...]
    ) -> Conversation:
        found: dict[int, Source] = {}
        made = [self._tool(tool, index, found) for index, tool in enumerate(tools)] or None
        kept: set[int] = set(found)
        for item in made or ():
            kept |= {id(item), id(item["function"])}
        if made is not None:
            kept.add(id(made))
        for each in origins:
            found.update(each)
        return Conversation(messages, made, found, True, frozenset(kept))

    def _tool(self, tool: Tool, index: int, origins: dict[int, Source]) -> dict[str, Any]:
        function: dict[str, Any] = {"name": whole(tool.name, ("tool", index, "tool_name"))}
        if tool.description or self.blank_descriptions:
            function["description"] = whole(tool.description, ("tool", index, "description"))
        function["parameters"] = _traced(json.loads(tool.parameters_json), ("tool", index, "schema"), origins)
        if tool.extra_json:
            extra = json.loads(tool.extra_json)
            function |= {key: value for key, value in extra.items() if key not in function}
        return {"type": "function", "function": function}

    def _message(self, message: Message, index: int, origins: dict[int, Source]) -> dict[str, Any]:
        profile = self.profile
        content = self._content(message, index)
        if not content and message.tool_calls and message.content == "":
            content = profile.empty_content
        made: dict[str, Any] = {"role": message.role, "content": content}
        if message.reasoning is not None and profile.reasoning_key is not None:
            made[profile.reasoning_key] = whole(message.reasoning, ("message", index, "reasoning"))
        if message.tool_calls:
            made["tool_calls"] = [
                self._call(call.id, call.name, call.arguments, index, f"tool_calls[{number}]", origins)
                for number, call in enumerate(message.tool_calls)
            ]
        if message.tool_call_id is not None:
            made["tool_call_id"] = whole(message.tool_call_id, ("message", index, "tool_call_id"))
        if message.name is not None:
            made["name"] = whole(message.name, ("message", index, "name"))
        return made

    def _call(
        self, call_id: str, name: str, arguments: str, index: int, field: str, origins: dict[int, Source]
    ) -> dict[str, Any]:
        source: Source = ("message", index, f"{field}.arguments")
        form: Any = whole(arguments, source)
        if self.profile.arguments == "mapping":
            try:
                value = json.loads(arguments)
            except ValueError:
                value = None
            if isinstance(value, dict):
                form = _traced(value, source, origins)
        return {
            "id": whole(call_id, ("message", index, f"{field}.id")),
            "type": "function",
            "function": {"name": whole(name, ("message", index, f"{field}.name")), "arguments": form},
        }

    def _content(self, message: Message, index: int) -> Any:
        source: Source = ("message", index, "content")
        plain = isinstance(message.content, str) and self.profile.content == "string"
        if plain and not message.notes:
            return whole(message.text, source)
        notes = [whole(note, ("message", index, "note")) for note in message.notes]
        if plain or not self.profile.parts:
            return joined(
                _between("\n\n", [*([whole(message.text, source)] if message.text else []), *notes])
            )
        parts: list[dict[str, Any]] = []
        if isinstance(message.content, str):
            parts.extend(
                [{"type": "text", "text": whole(message.content, source)}] if message.content else []
            )
        else:
            parts.extend(self._part(part, source) for part in message.content)
        parts.extend({"type": "text", "text": joined(("\n\n", note)) if parts else note} for note in notes)
        return parts

    def _part(self, part: TextPart | MediaPart, source: Source) -> dict[str, Any]:
        if isinstance(part, TextPart):
            return {"type": "text", "text": whole(part.text, source)}
        return {"type": part.type}


def _between(separator: str, texts: list[str]) -> list[str]:
    """The texts with the separator between them."""
    out: list[str] = []
    for text in texts:
        out.extend((separator, text) if out else (text,))
    return out


def _traced(value: Any, source: Source, origins: dict[int, Source]) -> Any:
    """A copy of a JSON value in which every string knows its source, and so does every container.

    JSON can spell surrogates, which no prompt can hold: they become U+FFFD.
    """
    made: Any
    if isinstance(value, str):
        return whole(replace_surrogates(value), source)
    if isinstance(value, dict):
        made = {
            whole(replace_surrogates(key), source): _traced(item, source, origins)
            for key, item in value.items()
        }
    elif isinstance(value, list):
        made = [_traced(item, source, origins) for item in value]
    else:
        return value
    origins[id(made)] = source
    return made
