"""The metadata of a GGUF file: its key-value part, without the tensors.

The package ``gguf`` reads it too, but makes an array object for each token, which takes it 12 s on a vocabulary of 262,144; this takes
0.3 s. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian).
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np

from agentctx.errors import InputError

_STRING, _ARRAY = 8, 9
_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_MOST_KEYS = 1 << 16
_MOST_DEPTH = 4


class _Reader:
    def __init__(self, data: mmap.mmap, name: str) -> None:
        self.data = data
        self.name = name
        self.at = 0

    def fail(self, problem: str) -> InputError:
        return InputError(f"not a usable GGUF file: {problem}", file=self.name, field=f"byte {self.at}")

    def take(self, form: str) -> Any:
        try:
            (value,) = struct.unpack_from(form, self.data, self.at)
        except struct.error:
            raise self.fail("it ends in the middle of its metadata") from None
        self.at += struct.calcsize(form)
        return value

    def text(self) -> str:
        size = self.take("<Q")
        end = self.at + size
        if end > len(self.data):
            raise self.fail(f"a text of {size} bytes reaches over the end")
        value = self.data[self.at : end]
        self.at = end
        return value.decode("utf-8", errors="surrogateescape")

    def texts(self, count: int) -> list[str]:
        if count * 8 > len(self.data) - self.at:
            raise self.fail(f"a list of {count} texts reaches over the end")
        return [self.text() for _ in range(count)]

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind in _SCALARS:
            return self.take(_SCALARS[kind])
        if kind == _STRING:
            return self.text()
        if kind != _ARRAY or depth > _MOST_DEPTH:
            raise self.fail(f"unknown value type {kind}")
        inner, count = self.take("<I"), self.take("<Q")
        if inner == _STRING:
            return self.texts(count)
        if inner not in _SCALARS:
            return [self.value(inner, depth + 1) for _ in range(min(count, len(self.data)))]
        dtype = np.dtype(np.bool_ if inner == 7 else _SCALARS[inner])
        end = self.at + count * dtype.itemsize
        if end > len(self.data):
            raise self.fail(f"a list of {count} numbers reaches over the end")
        values = np.frombuffer(self.data, dtype=dtype, count=count, offset=self.at).copy()
        self.at = end
        return values


def read_gguf_metadata(path: Path) -> dict[str, Any]:
    """All keys and values. Texts are ``str``, lists of numbers numpy arrays, lists of texts lists.

    Raises ``InputError`` for a file that is no GGUF file or is cut off.
    """
    name = str(path)
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _read(_Reader(data, name))
    except (OSError, ValueError) as error:
        raise InputError(f"can't be read: {error}", file=name) from error


def _read(reader: _Reader) -> dict[str, Any]:
    if reader.data[:4] != b"GGUF":
        raise reader.fail("it doesn't begin with GGUF")
    reader.at = 4
    version = reader.take("<I")
    if version not in (2, 3):
        raise reader.fail(f"version {version} is not known (a big-endian file, or a newer format)")
    reader.take("<Q")  # tensors
    keys = reader.take("<Q")
    if keys > _MOST_KEYS:
        raise reader.fail(f"it claims to have {keys} keys")
    found: dict[str, Any] = {}
    for _ in range(keys):
        key = reader.text()
        found[key] = reader.value(reader.take("<I"))
    return found
