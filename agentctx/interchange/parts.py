"""Contents: a string, or a list of text and media parts, in the shape of each API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentctx.errors import InputError
from agentctx.interchange.media import Kind, media_part
from agentctx.interchange.wire import Misfit, fill, hint_of, kind_of, need_object, packed, ref, same
from agentctx.messages import Content, MediaPart, Message, Part, TextPart


@dataclass(frozen=True, slots=True)
class PartForm:
    """How an API writes parts: the type of a text part, its media types, and the writer of media parts."""

    api: str
    text: str
    media: Mapping[str, Kind]
    write_media: Callable[[MediaPart], dict[str, Any]]


def read_content(form: PartForm, value: Any, where: str) -> tuple[Content, Any]:
    """A content and its shape: a string, a list of parts, or nothing.

    Parts of a type that agentctx has no name for stay in the shape as they are. Raises ``InputError``.
    """
    if value is None:
        return "", None
    if isinstance(value, str):
        return value, ref("content")
    if not isinstance(value, list):
        raise InputError(f"a string or a list of parts is expected, not {kind_of(value)}", field=where)
    parts: list[Part] = []
    shape: list[Any] = []
    for index, item in enumerate(value):
        part = read_part(form, item, f"{where}[{index}]")
        if part is None:
            shape.append(item)
        else:
            shape.append(ref("part", len(parts)))
            parts.append(part)
    return tuple(parts), shape


def read_part(form: PartForm, item: Any, where: str) -> Part | None:
    """One part, or ``None`` for a type that agentctx has no name for."""
    item = need_object(item, where)
    kind = item.get("type")
    if kind == form.text and isinstance(item.get("text"), str):
        part = TextPart(text=item["text"])
        if same(write_part(form, part), item):
            return part
        shape = {key: ref("text") if key == "text" else value for key, value in item.items()}
        return TextPart(text=item["text"], extra_json=packed(form.api, {}, shape=shape))
    if isinstance(kind, str) and kind in form.media:
        return media_part(form.media[kind], item)
    return None


def write_part(form: PartForm, part: Part) -> dict[str, Any]:
    """One part as the API takes it."""
    if isinstance(part, MediaPart):
        return form.write_media(part)
    shape = hint_of(part, form.api).get("shape")
    if isinstance(shape, dict):
        return need_object(fill(shape, lambda _: part.text), "part")
    return {"type": form.text, "text": part.text}


def write_content(form: PartForm, message: Message) -> str | list[dict[str, Any]]:
    """The content as the API takes it, the notes at its end."""
    if isinstance(message.content, str):
        return message.text_with_notes
    return write_parts(form, message)


def write_parts(form: PartForm, message: Message) -> list[dict[str, Any]]:
    """The content as a list of parts, whatever it is; an empty text gives none."""
    if isinstance(message.content, str):
        text = message.text_with_notes
        return [{"type": form.text, "text": text}] if text else []
    parts = [write_part(form, part) for part in message.content]
    if message.notes:
        parts.append({"type": form.text, "text": "\n\n".join(message.notes)})
    return parts


def content_state(message: Message, *, absent: bool) -> int | str:
    """What a shape's content was made for: ``none``, ``text``, or a number of parts."""
    if absent:
        return "none"
    return "text" if isinstance(message.content, str) else len(message.content)


def check_state(message: Message, state: object) -> None:
    """Raise ``Misfit`` when the content is no longer of the kind that the shape was made for."""
    content = message.content
    if isinstance(content, str):
        fits = state == "text" or (state == "none" and not message.text_with_notes)
    else:
        fits = state == len(content) and not message.notes
    if not fits:
        raise Misfit


def content_value(form: PartForm, message: Message, path: list[Any]) -> Any:
    """What a reference to the content or to one of its parts stands for. Raises ``Misfit``."""
    match path:
        case ["content"] if isinstance(message.content, str):
            return message.text_with_notes
        case ["part", int(index)] if isinstance(message.content, tuple) and index < len(message.content):
            return write_part(form, message.content[index])
        case ["text", int(index)] if isinstance(message.content, tuple) and index < len(message.content):
            part = message.content[index]
            if isinstance(part, TextPart):
                return part.text
    raise Misfit
