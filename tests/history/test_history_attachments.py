"""What an attached file becomes: its kind told by its first bytes, then by its name, and its bytes kept whole."""

from __future__ import annotations

import base64
import hashlib
import json

import pytest

from agentctx.errors import UsageError
from agentctx.history import History
from agentctx.messages import MediaPart, TextPart

REST = bytes(range(256))


@pytest.mark.parametrize(
    ("start", "name", "kind", "media_type"),
    [
        (b"\x89PNG\r\n\x1a\n", None, "image", "image/png"),
        (b"\xff\xd8\xff\xe0", None, "image", "image/jpeg"),
        (b"GIF89a", None, "image", "image/gif"),
        (b"RIFF\x10\x00\x00\x00WEBPVP8 ", None, "image", "image/webp"),
        (b"RIFF\x10\x00\x00\x00WAVEfmt ", None, "audio", "audio/wav"),
        (b"OggS\x00", None, "audio", "audio/ogg"),
        (b"ID3\x04", None, "audio", "audio/mpeg"),
        (b"%PDF-1.7\n", None, "file", "application/pdf"),
        (b"PK\x03\x04", "notes.zip", "file", "application/zip"),
        (b"\x89PNG\r\n\x1a\n", "wrong.zip", "image", "image/png"),
    ],
)
def test_binary_files_are_told_by_bytes_then_by_name(
    start: bytes, name: str | None, kind: str, media_type: str
) -> None:
    data = start + REST
    part = History().attach(data, name=name)
    assert isinstance(part, MediaPart)
    assert (part.type, part.media_type) == (kind, media_type)
    assert part.sha256 == hashlib.sha256(data).hexdigest()
    source = json.loads(part.source_json)
    assert base64.b64decode(source.pop("data")) == data
    assert source == {"type": kind, "media_type": media_type} | ({"name": name} if name else {})


def test_what_the_caller_says_goes_before_the_bytes() -> None:
    part = History().attach(b"\x89PNG\r\n\x1a\n" + REST, media_type="audio/flac")
    assert isinstance(part, MediaPart)
    assert (part.type, part.media_type) == ("audio", "audio/flac")


@pytest.mark.parametrize(
    ("name", "shown"),
    [("a.txt", "a.txt"), ("a.json", "a.json"), ("Makefile", "Makefile"), (None, "without a name")],
)
def test_texts_stand_under_a_line_that_names_them(name: str | None, shown: str) -> None:
    data = b'{"loaves": 212}'
    part = History().attach(data, name=name)
    digest = hashlib.sha256(data).hexdigest()[:16]
    assert part == TextPart(text=f"[file {shown}, sha256 {digest}]\n{data.decode()}")


@pytest.mark.parametrize("data", [b"RIFF\x10\x00\x00\x00AVI " + REST, b"RIFF\xff", b"\xff\x00\xfe"])
def test_bytes_of_no_known_kind_need_a_type(data: bytes) -> None:
    history = History()
    with pytest.raises(UsageError, match=r"can't tell the type of the attachment; give media_type"):
        history.attach(data)
    assert len(history) == 0, "nothing is half-attached"
    part = history.attach(data, media_type="video/x-msvideo")
    assert isinstance(part, MediaPart)
    assert part.type == "file"


def test_a_file_joins_the_newest_draft_and_no_other() -> None:
    history = History("s", pinned=["p"])
    history.attach(b"one", name="one.txt")
    assert [message.text for message in history.pinned] == ["p"], "the pinned context is no draft"
    history.attach(b"two", name="two.txt")
    assert [len(message.content) for message in history[2:]] == [2]
    history.request()
    history.assistant("read")
    history.attach(b"three", name="three.txt")
    assert [message.role for message in history] == ["system", "user", "user", "assistant", "user"]
