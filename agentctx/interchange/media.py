"""Images, files and audio between the shapes of the APIs.

A ``MediaPart`` keeps the part as its source had it. An API that knows that shape gets it back unchanged; another one
gets the same bytes, URL or file id in its own shape.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal

from agentctx.errors import InputError
from agentctx.messages import MediaPart, canonical_json

Kind = Literal["image", "file", "audio"]

# The part types of each API that hold media.
CHAT_TYPES: dict[str, Kind] = {"image_url": "image", "input_audio": "audio", "file": "file"}
RESPONSES_TYPES: dict[str, Kind] = {"input_image": "image", "input_file": "file", "input_audio": "audio"}
ANTHROPIC_TYPES: dict[str, Kind] = {"image": "image", "document": "file"}
PLAIN_TYPES: dict[str, Kind] = {
    "file": "file",
    "audio": "audio",
    **CHAT_TYPES,
    **RESPONSES_TYPES,
    **ANTHROPIC_TYPES,
}


@dataclass(frozen=True, slots=True)
class Media:
    """What a part holds: base64 ``data``, or a ``url``, or a ``file_id``."""

    kind: Kind
    media_type: str | None = None
    data: str | None = None
    url: str | None = None
    file_id: str | None = None
    name: str | None = None


def media_part(kind: Kind, part: dict[str, Any]) -> MediaPart:
    """A provider's part as a ``MediaPart``, kept byte for byte."""
    media = _media(kind, part)
    if media.data is not None:
        try:
            identity = base64.b64decode(media.data, validate=True)
        except (binascii.Error, ValueError):
            identity = media.data.encode()
    else:
        identity = (media.url or media.file_id or canonical_json(part)).encode()
    return MediaPart(
        type=kind,
        sha256=hashlib.sha256(identity).hexdigest(),
        media_type=media.media_type,
        source_json=canonical_json(part),
    )


def for_chat(part: MediaPart) -> dict[str, Any]:
    """The part for OpenAI chat: ``image_url``, ``input_audio`` or ``file``."""
    source = _source(part)
    if source.get("type") in CHAT_TYPES and source["type"] in source:
        return source
    media = _media(part.type, source)
    if media.kind == "image":
        return {"type": "image_url", "image_url": {"url": _url(media, part)}}
    if media.kind == "audio":
        audio = {"data": _data(media, part), "format": (media.media_type or "audio/wav").rpartition("/")[2]}
        return {"type": "input_audio", "input_audio": audio}
    if media.file_id is not None:
        return {"type": "file", "file": {"file_id": media.file_id}}
    return {"type": "file", "file": {"filename": media.name or "file", "file_data": _url(media, part)}}


def for_responses(part: MediaPart) -> dict[str, Any]:
    """The part for OpenAI Responses: ``input_image``, ``input_file`` or ``input_audio``."""
    source = _source(part)
    if source.get("type") in RESPONSES_TYPES:
        return source
    media = _media(part.type, source)
    if media.kind == "image":
        return {"type": "input_image", "detail": "auto", "image_url": _url(media, part)}
    if media.kind == "audio":
        audio = {"data": _data(media, part), "format": (media.media_type or "audio/wav").rpartition("/")[2]}
        return {"type": "input_audio", "input_audio": audio}
    if media.file_id is not None:
        return {"type": "input_file", "file_id": media.file_id}
    if media.url is not None:
        return {"type": "input_file", "file_url": media.url}
    return {"type": "input_file", "filename": media.name or "file", "file_data": _url(media, part)}


def for_plain(part: MediaPart) -> dict[str, Any]:
    """The part as it came."""
    return _source(part)


def for_anthropic(part: MediaPart) -> dict[str, Any]:
    """The part for Anthropic: an ``image`` or ``document`` block."""
    source = _source(part)
    if source.get("type") in ANTHROPIC_TYPES and "source" in source:
        return source
    media = _media(part.type, source)
    if media.kind == "audio":
        raise InputError("Anthropic Messages takes no audio", field=f"media {part.sha256[:12]}")
    origin: dict[str, Any]
    if media.data is not None:
        default = "image/png" if media.kind == "image" else "application/pdf"
        origin = {"type": "base64", "media_type": media.media_type or default, "data": media.data}
    elif media.url is not None:
        origin = {"type": "url", "url": media.url}
    else:
        origin = {"type": "file", "file_id": media.file_id}
    return {"type": "image" if media.kind == "image" else "document", "source": origin}


def _source(part: MediaPart) -> dict[str, Any]:
    value = json.loads(part.source_json)
    return value if isinstance(value, dict) else {}


def _media(kind: Kind, part: dict[str, Any]) -> Media:
    """Read any of the shapes: chat, Responses, Anthropic, and that of ``history.attachment``."""
    inner = part.get("source", part.get(str(part.get("type")), part))
    if not isinstance(inner, dict):
        inner = {"url": inner}
    name = inner.get("filename") or inner.get("name") or inner.get("title")
    url = inner.get("url") or inner.get("image_url") or inner.get("file_url") or inner.get("file_data")
    data, media_type = inner.get("data"), inner.get("media_type")
    if isinstance(url, str) and url.startswith("data:"):
        head, _, data = url.partition(",")
        media_type, url = head[5:].removesuffix(";base64") or None, None
    if media_type is None and isinstance(inner.get("format"), str):
        media_type = f"audio/{inner['format']}"
    return Media(
        kind,
        media_type if isinstance(media_type, str) else None,
        data if isinstance(data, str) else None,
        url if isinstance(url, str) else None,
        inner.get("file_id") if isinstance(inner.get("file_id"), str) else None,
        name if isinstance(name, str) else None,
    )


def _url(media: Media, part: MediaPart) -> str:
    if media.url is not None:
        return media.url
    default = {"image": "image/png", "audio": "audio/wav", "file": "application/octet-stream"}[media.kind]
    return f"data:{media.media_type or default};base64,{_data(media, part)}"


def _data(media: Media, part: MediaPart) -> str:
    if media.data is None:
        raise InputError(
            "the other API needs the bytes, and only a file id or URL is known",
            field=f"media {part.sha256[:12]}",
            remedy="attach the file itself",
        )
    return media.data
