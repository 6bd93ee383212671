"""TemplateProfile: what a template wants its messages to look like, found by trying.

A server must decide the same things before it renders: whether tool-call arguments go in as a mapping or as the raw string, whether content is
a string or a list of parts, under which key the reasoning goes. vLLM and llama.cpp pass mappings to every template that takes them, so that is the rule
here: ``arguments`` is ``mapping`` when the template renders a call with a mapping, ``raw`` when only a string works.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from jinja2 import nodes

from agentctx.errors import RenderError
from agentctx.rendering.templates.limits import DepthError, LimitError
from agentctx.rendering.templates.template import ChatTemplate

_PROBE_TIME = datetime(2025, 1, 1)
_USER, _ANSWER, _PATH, _RESULT, _TOOL = (
    "Qprobeuser",
    "Qprobeanswer",
    "Qprobepath",
    "Qproberesult",
    "qprobetool",
)
_REASONING_KEYS = ("reasoning_content", "thinking", "reasoning", "thought")
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": _TOOL,
            "description": "Probe.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string", "description": "A path."}},
                "required": ["path"],
            },
        },
    }
]


@dataclass(frozen=True, slots=True)
class TemplateProfile:
    """The forms that a template takes.

    ``content``: plain strings, or lists of parts when it takes nothing else. ``parts``: it renders lists of text parts. ``arguments``:
    form of tool-call arguments. ``empty_content``: what stands beside tool calls when the message has no text. ``reasoning_key``: the
    message key of the reasoning; ``None`` when the template reads none. ``system``: it takes a system message.
    """

    content: Literal["string", "parts"] = "string"
    parts: bool = False
    arguments: Literal["mapping", "raw"] = "mapping"
    empty_content: str | None = ""
    reasoning_key: str | None = None
    system: bool = True
    tool_calls: bool = True


def read_profile(template: ChatTemplate) -> TemplateProfile:
    """Try the template with small conversations in each form. Raises ``LimitError`` when it runs over its limits."""
    chat: list[dict[str, Any]] = [
        {"role": "user", "content": _USER},
        {"role": "assistant", "content": _ANSWER},
        {"role": "user", "content": _USER},
    ]
    tools = None if _has(template, chat, None, _USER, _ANSWER) else _TOOLS
    as_string = tools is None or _has(template, chat, tools, _USER, _ANSWER)
    as_parts = _has(template, [_in_parts(message) for message in chat], None, _USER, _ANSWER, lacks="'type'")
    content: Literal["string", "parts"] = "parts" if as_parts and not as_string else "string"
    system = {"role": "system", "content": "Qprobesystem"}
    opening = [system] if _has(template, [system, *chat], tools) else []
    arguments, empty, calls = _call_form(template, opening, content)
    return TemplateProfile(
        content=content,
        parts=as_parts,
        arguments=arguments,
        empty_content=empty,
        reasoning_key=reasoning_key(template.syntax),
        system=bool(opening),
        tool_calls=calls,
    )


def _call_form(
    template: ChatTemplate, opening: list[dict[str, Any]], content: str
) -> tuple[Literal["mapping", "raw"], str | None, bool]:
    """The form in which a tool call comes out best: its name, its argument and its result all rendered."""
    best: tuple[int, Literal["mapping", "raw"], str | None] = (-1, "mapping", "")
    forms: tuple[tuple[Literal["mapping", "raw"], Any], ...] = (
        ("mapping", {"path": _PATH}),
        ("raw", json.dumps({"path": _PATH})),
    )
    for form, arguments in forms:
        for empty in ("", None):
            messages = [
                *opening,
                {"role": "user", "content": _USER},
                {
                    "role": "assistant",
                    "content": empty,
                    "tool_calls": [
                        {
                            "id": "callprobe",
                            "type": "function",
                            "function": {"name": _TOOL, "arguments": arguments},
                        }
                    ],
                },
                {"role": "tool", "tool_call_id": "callprobe", "name": _TOOL, "content": _RESULT},
                {"role": "assistant", "content": _ANSWER},
            ]
            if content == "parts":
                messages = [_in_parts(message) for message in messages]
            text = _text(template, messages, _TOOLS)
            if text is None:
                continue
            score = (_RESULT in text) + 2 * (_PATH in text) + 4 * (text.count(_TOOL) > 1)
            if score > best[0]:
                best = (score, form, empty)
    return best[1], best[2], best[0] >= 2


def _in_parts(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    return {**message, "content": [{"type": "text", "text": content}] if content else []}


def _text(template: ChatTemplate, messages: list[dict[str, Any]], tools: Any) -> str | None:
    try:
        return template.render_messages(messages, tools, now=_PROBE_TIME)
    except DepthError:
        return None
    except LimitError:  # no form of conversation makes this template usable
        raise
    except RenderError:
        return None


def _has(
    template: ChatTemplate, messages: list[dict[str, Any]], tools: Any, *words: str, lacks: str | None = None
) -> bool:
    text = _text(template, messages, tools)
    return text is not None and all(word in text for word in words) and (lacks is None or lacks not in text)


def reasoning_key(syntax: nodes.Template) -> str | None:
    """The first known key that the template reads from anything."""
    read: set[str] = set()
    for access in syntax.find_all(nodes.Getattr):
        read.add(access.attr)
    for constant in syntax.find_all(nodes.Const):
        if isinstance(constant.value, str):
            read.add(constant.value)
    return next((key for key in _REASONING_KEYS if key in read), None)
