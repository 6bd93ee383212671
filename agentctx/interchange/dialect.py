"""Message lists in the manner of OpenAI chat, where every dictionary is one message.

A dialect says what the API names its things; OpenAI chat and plain dictionaries are two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from agentctx.errors import InputError
from agentctx.interchange.calls import read_call, write_call
from agentctx.interchange.parameters import read_params, write_params
from agentctx.interchange.parts import (
    PartForm,
    check_state,
    content_state,
    content_value,
    read_content,
    write_content,
)
from agentctx.interchange.tools import read_tool, write_tool
from agentctx.interchange.wire import (
    Misfit,
    fill,
    hint_of,
    need_list,
    need_object,
    packed,
    ref,
    same,
    unknown_of,
    without,
)
from agentctx.messages import Message, Request, Role


@dataclass(frozen=True, slots=True)
class Dialect:
    """``reasoning``: fields that hold the model's thoughts, the first of them for writing."""

    api: str
    form: PartForm
    reasoning: tuple[str, ...]

    def read(self, body: Mapping[str, Any]) -> Request:
        """A request body as a Request; :meth:`write` gives an equal body. Raises ``InputError`` naming the field."""
        messages = need_list(body.get("messages"), "messages")
        tools = need_list(body.get("tools") or [], "tools")
        request = Request(
            tools=tuple(read_tool(self.api, tool, f"tools[{i}]") for i, tool in enumerate(tools)),
            messages=tuple(self.read_message(item, f"messages[{i}]") for i, item in enumerate(messages)),
        )
        return request.model_copy(update={"params": read_params(self.api, body, self._own(request))})

    def write(self, request: Request) -> dict[str, Any]:
        """The request body: model, messages, tools, parameters."""
        return write_params(self.api, self._own(request), request.params)

    def _own(self, request: Request) -> dict[str, Any]:
        own: dict[str, Any] = {"messages": [self.write_message(message) for message in request.messages]}
        if request.tools:
            own["tools"] = [write_tool(self.api, tool) for tool in request.tools]
        return own

    def read_message(self, item: Any, where: str = "message") -> Message:
        """One message of a request, or of a response's choice. Raises ``InputError`` naming the field."""
        item = need_object(item, where)
        role = item.get("role")
        if role not in get_args(Role):
            raise InputError(
                f"{role!r} is no role", field=f"{where}.role", remedy=f"use one of {get_args(Role)}"
            )
        content, content_shape = read_content(self.form, item.get("content"), f"{where}.content")
        reasoning = next((key for key in self.reasoning if isinstance(item.get(key), str)), None)
        calls = need_list(item.get("tool_calls") or [], f"{where}.tool_calls")
        known = {key for key in ("tool_call_id", "name") if isinstance(item.get(key), str)}
        fields = {key: item[key] for key in known}
        known |= {"role", "content"}
        if reasoning:
            known.add(reasoning)
            fields["reasoning"] = item[reasoning]
        if calls:
            known.add("tool_calls")
            fields["tool_calls"] = tuple(
                read_call(self.api, call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)
            )
        unknown = without(item, *known)
        message = Message(
            role=role, content=content, **fields, extra_json=packed(self.api, unknown) if unknown else None
        )
        if same(self.write_message(message), item):
            return message
        shape: dict[str, Any] = {key: ref(key) if key in known else ref("unknown", key) for key in item}
        shape["role"] = role
        if "content" in shape:
            shape["content"] = content_shape
        if reasoning:
            shape[reasoning] = ref("reasoning")
        state = content_state(message, absent=item.get("content") is None)
        return message.model_copy(
            update={"extra_json": packed(self.api, unknown, shape=shape, content=state)}
        )

    def write_message(self, message: Message) -> dict[str, Any]:
        """One message as the self.api takes it; its notes stand at the end of the content."""
        hint = hint_of(message, self.api)
        if "shape" in hint:
            try:
                check_state(message, hint.get("content"))
                return need_object(fill(hint["shape"], lambda path: self._value(message, path)), "message")
            except Misfit:
                pass
        content = write_content(self.form, message)
        # The self.api itself answers a call without a text with null.
        item: dict[str, Any] = {
            "role": message.role,
            "content": content or None if message.tool_calls else content,
        }
        if message.reasoning is not None:
            item["reasoning_content"] = message.reasoning
        if message.tool_calls:
            item["tool_calls"] = [write_call(self.api, call) for call in message.tool_calls]
        if message.tool_call_id is not None:
            item["tool_call_id"] = message.tool_call_id
        if message.name is not None:
            item["name"] = message.name
        return item | unknown_of(message, self.api)

    def _value(self, message: Message, path: list[Any]) -> Any:
        match path:
            case ["unknown", key]:
                return unknown_of(message, self.api)[key]
            case ["tool_calls"] if message.tool_calls:
                return [write_call(self.api, call) for call in message.tool_calls]
            case ["tool_call_id" | "name" | "reasoning" as field] if getattr(message, field) is not None:
                return getattr(message, field)
        return content_value(self.form, message, path)
