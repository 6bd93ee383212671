"""Files and images as message parts, known by the hash of their bytes."""

from __future__ import annotations

import base64
import hashlib
import mimetypes
from pathlib import Path

from agentctx.errors import UsageError
from agentctx.messages import MediaPart, Part, TextPart, canonical_json

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"OggS", "audio/ogg"),
    (b"ID3", "audio/mpeg"),
)


def attachment(data: bytes | Path, *, media_type: str | None = None, name: str | None = None) -> Part:
    """A part that holds ``data``, or the bytes of the file at a path, read once.

    Images, audio and binary files become a ``MediaPart`` whose ``source_json`` is
    ``{"type", "media_type", "name", "data"}`` with the bytes in base64; text becomes a ``TextPart`` under a line
    that names the file and its hash. The type is taken from the first bytes, then from the name.

    Raises ``UsageError`` when the file can't be read or its type can't be told.
    """
    if isinstance(data, Path):
        name = name or data.name
        try:
            data = data.read_bytes()
        except OSError as error:
            raise UsageError(f"can't attach {name}: {error.strerror}") from error
    media_type = media_type or _media_type(data, name)
    digest = hashlib.sha256(data).hexdigest()
    if media_type is None or media_type.startswith("text/") or media_type == "application/json":
        try:
            text = data.decode()
        except UnicodeDecodeError:
            raise UsageError(f"can't tell the type of {name or 'the attachment'}; give media_type") from None
        return TextPart(text=f"[file {name or 'without a name'}, sha256 {digest[:16]}]\n{text}")
    kind = media_type.partition("/")[0]
    source = {"type": kind if kind in ("image", "audio") else "file", "media_type": media_type}
    if name:
        source["name"] = name
    source["data"] = base64.b64encode(data).decode()
    return MediaPart(
        type="image" if kind == "image" else "audio" if kind == "audio" else "file",
        sha256=digest,
        media_type=media_type,
        source_json=canonical_json(source),
    )


def _media_type(data: bytes, name: str | None) -> str | None:
    for magic, media_type in _MAGIC:
        if data.startswith(magic):
            return media_type
    if data[:4] == b"RIFF":
        return {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(data[8:12])
    return mimetypes.guess_type(name)[0] if name else None
