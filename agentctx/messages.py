"""Messages, tool calls, tools and requests: frozen values whose bytes are fixed at entry.

The rule behind this module is that bytes are identity. A tool schema, a tool call's arguments, an id and
a content are kept exactly as first seen; the canonical JSON of a structured value is made once, when the
value enters, and never again. Everything here is immutable, so a value that was sent can't change later.
What has no bytes is made safe at entry: a surrogate, which UTF-8 can't hold, is U+FFFD from then on.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, NoReturn, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from agentctx.surrogates import clean_text, replace_surrogates

Role = Literal["system", "developer", "user", "assistant", "tool"]


def canonical_json(value: Any) -> str:
    """Compact JSON text of ``value``: key order kept, no ASCII escapes, no NaN, no surrogates.

    Key order is kept because the order of a schema's properties is part of what the model reads; sorting it
    would change the prompt of an agent that already runs.

    Raises ``ValueError`` for NaN and infinities and ``TypeError`` for values that JSON doesn't have.
    """
    return replace_surrogates(json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:20]} is too large")
    return value


_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")


class _Decoder(json.JSONDecoder):
    def decode(self, s: str, *more: Any) -> Any:
        value = super().decode(s, *more)
        return clean_text(value) if _SURROGATE_ESCAPE.search(s) else value


JSON_DECODER = _Decoder(parse_constant=_refuse_constant, parse_float=_finite)
"""Reads JSON as RFC 8259 has it: no NaN, no infinities, none made of a number that is too large either.

``decode`` gives no surrogates: a text that spells half a pair holds U+FFFD there.
"""


def _safe(value: Any) -> Any:
    if isinstance(value, str):
        return replace_surrogates(value)
    if isinstance(value, tuple) and value and isinstance(value[0], str):
        return tuple(replace_surrogates(item) for item in value)
    return value


Text = Annotated[str, BeforeValidator(_safe)]
"""A text as first seen, its surrogates made safe."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with other values in some fields, which are not validated; texts are made safe like all others."""
        safe = {key: _safe(value) for key, value in update.items()} if update else None
        return super().model_copy(update=safe, deep=deep)


class TextPart(_Frozen):
    """A piece of text in a message that has several parts."""

    type: Literal["text"] = "text"
    text: Text
    extra_json: Text | None = None


class MediaPart(_Frozen):
    """An image, file or audio part, known by the SHA-256 of its bytes (or of its URL when only that is known).

    ``source_json`` is the part as the provider's API takes it, canonical JSON, kept byte for byte.
    """

    type: Literal["image", "file", "audio"]
    sha256: Text
    media_type: Text | None = None
    source_json: Text


Part = TextPart | MediaPart
Content = str | tuple[Part, ...]


class ToolCall(_Frozen):
    """One call that the model made. ``arguments`` is the raw string that the model produced, never re-serialised."""

    id: Text
    name: Text
    arguments: Text
    extra_json: Text | None = None

    @field_validator("arguments", mode="before")
    @classmethod
    def _arguments_once(cls, value: Any) -> Any:
        # A provider that delivers arguments as an object leaves us no raw string: this is the one moment
        # at which the text may be made, and it is kept from here on.
        return value if isinstance(value, str) else canonical_json(value)


class Message(_Frozen):
    """One message of a conversation.

    ``notes`` is volatile text (time, cwd, budget) that belongs to the message and follows its content; it is
    frozen with the message. ``reasoning`` is what the model thought before its answer. ``extra_json`` holds
    the fields of the source that agentctx has no name for, as one canonical JSON object.
    """

    role: Role
    content: Annotated[Content, BeforeValidator(_safe)] = ""
    reasoning: Text | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: Text | None = None
    name: Text | None = None
    notes: tuple[Text, ...] = ()
    extra_json: Text | None = None

    @property
    def text(self) -> str:
        """The text of the content: parts joined by newlines, media left out, notes not included."""
        if isinstance(self.content, str):
            return self.content
        return "\n".join(part.text for part in self.content if isinstance(part, TextPart))

    @property
    def text_with_notes(self) -> str:
        """The text as it is sent: the content, then each note after a blank line."""
        if not self.notes:
            return self.text
        text = self.text
        return "\n\n".join((text, *self.notes) if text else self.notes)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over the message's bytes: equal digests mean equal messages."""
        return hashlib.sha256(self.model_dump_json().encode()).digest()


class Tool(_Frozen):
    """A tool that the model may call.

    ``parameters_json`` is the JSON schema of the arguments: canonical JSON, made once at entry, key order kept.
    ``source`` is the class of the tool (``builtin`` before ``discovered`` before ``mcp``) and ``server`` the MCP
    server it came from; together with the name they give the canonical order.
    """

    name: Text = Field(min_length=1)
    description: Text = ""
    parameters_json: Text = "{}"
    source: Literal["builtin", "discovered", "mcp"] = "builtin"
    server: Text = ""
    extra_json: Text | None = None

    @classmethod
    def of(
        cls, name: str, description: str = "", parameters: Mapping[str, Any] | None = None, **more: Any
    ) -> Tool:
        """Build a tool from a schema given as a mapping."""
        return cls(
            name=name, description=description, parameters_json=canonical_json(parameters or {}), **more
        )

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """The schema as a mapping (parsed from ``parameters_json``; don't change it)."""
        value = json.loads(self.parameters_json)
        return value if isinstance(value, dict) else {}

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 over the tool's bytes, key order included."""
        return hashlib.sha256(self.model_dump_json().encode()).digest()

    @cached_property
    def meaning(self) -> tuple[str, str, str, str, str]:
        """What makes two declarations the same tool: all fields, with the schema's key order ignored."""
        schema = json.dumps(json.loads(self.parameters_json), sort_keys=True)
        return (self.name, self.description, schema, self.source, self.server)


_SOURCE_ORDER = {"builtin": 0, "discovered": 1, "mcp": 2}


def canonical_tool_order(tools: Iterable[Tool]) -> tuple[Tool, ...]:
    """Tools sorted by source class, server and name: the same set gives the same order, however it arrives."""
    return tuple(sorted(tools, key=lambda tool: (_SOURCE_ORDER[tool.source], tool.server, tool.name)))


class Params(_Frozen):
    """Parameters of a request that are not part of the message list."""

    model: Text | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    tool_choice_json: Text | None = None
    template_kwargs_json: Text | None = None
    extra_json: Text | None = None


class Request(_Frozen):
    """What one turn asks: tools, messages and parameters, in the order in which the model reads them.

    ``messages`` begins with the system message, if there is one, then ``pinned`` messages of pinned context,
    then the log. The tail is the ``notes`` of the newest message.
    """

    tools: tuple[Tool, ...] = ()
    messages: tuple[Message, ...] = ()
    pinned: int = Field(default=0, ge=0)
    params: Params = Params()
