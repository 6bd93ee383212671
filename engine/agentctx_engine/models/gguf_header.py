"""The header of a GGUF file: settings, and where each tensor lies.

The ``gguf`` package's own reader makes several Python objects for each of a vocabulary's hundred thousand entries and
trusts the counts in the file. This one walks the header once inside its bounds, skips the arrays that a model
doesn't need, and leaves block formats to ``gguf.quants``.

Layout (little-endian, version 2 or 3)::

    "GGUF" version:u32 tensors:u64 settings:u64
    settings × ( key:string type:u32 value )             string = length:u64 bytes
    tensors  × ( name:string dims:u32 dims×u64 type:u32 offset:u64 )
    padding to the alignment, then the tensors' data
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from agentctx_engine.models.errors import CheckpointError

Value = int | float | bool | str | tuple[int, ...] | tuple[float, ...]

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LONGEST_STRING = 2**20
_LONGEST_KEPT_ARRAY = 4096  # per-layer settings are kept, vocabularies are not
_MOST_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """shape: rows last to first as numpy has them (the file stores them the other way round)."""

    name: str
    shape: tuple[int, ...]
    type: GGMLQuantizationType
    start: int  # in the file
    size: int  # bytes


class _Cursor:
    """Reads forward through the file's bytes; every read is checked against the end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path, self.data, self.at = path, data, 0

    def skip(self, size: int) -> int:
        start = self.at
        if size > len(self.data) - start:
            raise CheckpointError(self.path, f"ends inside its header, at byte {len(self.data):,}")
        self.at = start + size
        return start

    def scalar(self, code: str) -> int | float | bool:
        layout = "<" + code
        value: int | float | bool = struct.unpack_from(layout, self.data, self.skip(struct.calcsize(layout)))[
            0
        ]
        return value

    def count(self, code: str = "Q") -> int:
        return int(self.scalar(code))

    def string(self) -> str:
        length = self.count()
        if length > _LONGEST_STRING:
            raise CheckpointError(
                self.path, f"has a string of {length:,} bytes at byte {self.at:,} of its header"
            )
        start = self.skip(length)
        return self.data[start : start + length].decode("utf-8", "replace")

    def value(self, kind: int, key: str) -> Value | None:
        """A setting's value; ``None`` for an array that isn't kept."""
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self._text(key)
        if kind != _ARRAY:
            raise CheckpointError(self.path, f"field {key!r} has the unknown type {kind}")
        item, length = self.count("I"), self.count()
        if item == _STRING:
            for _ in range(length):
                self.skip(self.count())
            return None
        if item not in _SCALARS:
            raise CheckpointError(self.path, f"field {key!r} is an array of the unknown type {item}")
        start = self.skip(length * struct.calcsize("<" + _SCALARS[item]))
        if length > _LONGEST_KEPT_ARRAY:
            return None
        return struct.unpack_from(f"<{length}{_SCALARS[item]}", self.data, start)

    def _text(self, key: str) -> str | None:
        length = self.count()
        start = self.skip(length)
        if length > _LONGEST_STRING:
            return None
        return self.data[start : start + length].decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class GgufHeader:
    path: Path
    data: mmap.mmap
    settings: dict[str, Value]
    tensors: dict[str, TensorInfo]


def read_header(path: Path) -> GgufHeader:
    """Map the file and read its header. Raises ``CheckpointError`` for anything that isn't a whole GGUF file."""
    try:
        with path.open("rb") as file:
            # A private copy-on-write mapping: torch wants writable memory, and the file must stay as it is.
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:  # ValueError: an empty file
        raise CheckpointError(path, f"can't be mapped: {error}") from error
    cursor = _Cursor(path, data)
    if data[:4] != b"GGUF":
        raise CheckpointError(path, "is not a GGUF file: it doesn't start with the bytes GGUF")
    cursor.skip(4)
    version = cursor.count("I")
    if version not in (2, 3):
        raise CheckpointError(path, f"has GGUF version {version}; the engine reads 2 and 3, little-endian")
    tensors, settings = cursor.count(), cursor.count()
    values: dict[str, Value] = {}
    for _ in range(settings):
        key = cursor.string()
        value = cursor.value(cursor.count("I"), key)
        if value is not None:
            values[key] = value
    alignment = values.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0:
        raise CheckpointError(path, f"field 'general.alignment' is {alignment!r}")
    return GgufHeader(path, data, values, _tensor_table(cursor, tensors, alignment))


def _tensor_table(cursor: _Cursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    raw: list[tuple[str, tuple[int, ...], int, int]] = []
    for _ in range(count):
        name, dimensions = cursor.string(), cursor.count("I")
        if dimensions > _MOST_DIMENSIONS:
            raise CheckpointError(cursor.path, f"has {dimensions} dimensions", tensor=name)
        shape = tuple(cursor.count() for _ in range(dimensions))[::-1]
        raw.append((name, shape, cursor.count("I"), cursor.count()))
    start = -(-cursor.at // alignment) * alignment
    table: dict[str, TensorInfo] = {}
    for name, shape, kind, offset in raw:
        if name in table:
            raise CheckpointError(cursor.path, "is there twice", tensor=name)
        table[name] = _tensor_info(cursor, name, shape, kind, start + offset)
    return table


def _tensor_info(cursor: _Cursor, name: str, shape: tuple[int, ...], kind: int, start: int) -> TensorInfo:
    try:
        quantization = GGMLQuantizationType(kind)
    except ValueError as error:
        raise CheckpointError(cursor.path, f"has the unknown type {kind}", tensor=name) from error
    block, block_bytes = GGML_QUANT_SIZES[quantization]
    if not all(shape) or not shape or shape[-1] % block:
        raise CheckpointError(
            cursor.path, f"has shape {list(shape)}: rows aren't whole {quantization.name} blocks", tensor=name
        )
    size = block_bytes
    for length in (*shape[:-1], shape[-1] // block):
        size *= length
    if start + size > len(cursor.data):
        raise CheckpointError(
            cursor.path,
            f"ends at byte {start + size:,}, the file has {len(cursor.data):,}",
            tensor=name,
            remedy="the file is cut off: fetch it again",
        )
    return TensorInfo(name, shape, quantization, start, size)
