"""A file of tensors in the safetensors layout, checked to the last bit.

    8 bytes       length of the header, little-endian
    header        JSON: every tensor's dtype, shape and place, and text under ``__metadata__``
    tensors       one after the other

The metadata's ``sha256`` is of the whole file with that field filled with zeros, so that no changed bit goes unnoticed,
be it in the header. Any safetensors reader can open the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from agentctx_engine.runtime.errors import SnapshotError

VERSION = "1"
KIND = "agentctx-kv"
NamedTensors = Sequence[tuple[str, Tensor]]
_NO_DIGEST = "0" * 64
_LONGEST_HEADER = 64 * 2**20
_DTYPES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.int8: "I8",
}
_TORCH = {name: dtype for dtype, name in _DTYPES.items()}
_TEMPORARY = ".tmp"


def write_tensors(path: Path, tensors: NamedTensors, metadata: Mapping[str, str], *, durable: bool) -> int:
    """Write to a temporary file beside ``path``, then put it in its place at once: no reader ever sees half a file.

    tensors: contiguous, on the CPU. durable: have it reach the disk before it replaces what was there. Returns the
    header's bytes. Raises ``SnapshotError``.
    """
    header = _header(tensors, metadata, _NO_DIGEST)
    digest = hashlib.sha256(header)
    for _, tensor in tensors:
        digest.update(_bytes(tensor))
    header = _header(tensors, metadata, digest.hexdigest())
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}{_TEMPORARY}")
    try:
        with open(temporary, "xb") as file:
            file.write(header)
            for _, tensor in tensors:
                file.write(_bytes(tensor))
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise SnapshotError(f"{path}: can't be written ({error.strerror or error})") from error
    if durable:
        _sync_directory(path.parent)
    return len(header)


def read_tensors(path: Path, expected: Mapping[str, str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(tensors, metadata) of a file. ``SnapshotError`` names what is wrong: a changed byte, a strange file, or what of
    the ``expected`` metadata differs.
    """
    data = _read(path)
    head, metadata, end = _read_header(path, data)
    _check_digest(path, data, end, metadata)
    for field, value in expected.items():
        if metadata.get(field) != value:
            raise SnapshotError(
                f"{path}: {field} is {metadata.get(field)!r}, this engine's is {value!r}; "
                "compute the prefix anew and save it again"
            )
    # The checksum holds, so the file is as it was written; what follows is against one that was written wrongly.
    try:
        tensors = {name: _tensor(memoryview(data)[end:], entry) for name, entry in head.items()}
    except (ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        raise SnapshotError(f"{path}: its tensors can't be read ({error})") from error
    return tensors, metadata


def file_bytes(tensors: NamedTensors, metadata: Mapping[str, str]) -> int:
    """Size of the file that these would make."""
    return len(_header(tensors, metadata, _NO_DIGEST)) + sum(t.numel() * t.element_size() for _, t in tensors)


def is_temporary(path: Path) -> bool:
    """Left behind by a writer that was killed."""
    return path.name.startswith(".") and path.name.endswith(_TEMPORARY)


def _read(path: Path) -> bytearray:
    try:
        with open(path, "rb") as file:
            data = bytearray(os.fstat(file.fileno()).st_size)
            if file.readinto(data) != len(data):
                raise SnapshotError(f"{path}: the file shrank while it was read")
    except OSError as error:
        raise SnapshotError(f"{path}: can't be read ({error.strerror or error})") from error
    return data


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.view(-1).view(torch.uint8).numpy().data


def _header(tensors: NamedTensors, metadata: Mapping[str, str], digest: str) -> bytes:
    """Length and JSON, padded to 8 bytes."""
    described: dict[str, object] = {
        "__metadata__": {"kind": KIND, "version": VERSION, "sha256": digest, **metadata}
    }
    place = 0
    for name, tensor in tensors:
        end = place + tensor.numel() * tensor.element_size()
        described[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [place, end],
        }
        place = end
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _read_header(path: Path, data: bytearray) -> tuple[dict[str, object], dict[str, str], int]:
    """(tensors, metadata, where the data begin)"""
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or not 2 <= length <= min(_LONGEST_HEADER, len(data) - 8):
        raise SnapshotError(f"{path}: is no snapshot, or is cut off (a header of {length} bytes)")
    try:
        head = json.loads(data[8 : 8 + length])
        metadata = head.pop("__metadata__")
        kind, version = metadata["kind"], metadata["version"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SnapshotError(f"{path}: its header can't be read ({type(error).__name__}: {error})") from error
    if kind != KIND:
        raise SnapshotError(f"{path}: is no snapshot of this engine")
    if version != VERSION:
        raise SnapshotError(
            f"{path}: has version {version!r}, this engine reads {VERSION}; save the prefix again"
        )
    return head, metadata, 8 + length


def _check_digest(path: Path, data: bytearray, end: int, metadata: Mapping[str, str]) -> None:
    stated = metadata.get("sha256")
    if not isinstance(stated, str) or len(stated) != len(_NO_DIGEST) or not stated.isascii():
        raise SnapshotError(f"{path}: states no checksum")
    header = bytes(data[:end])
    digest = hashlib.sha256(header.replace(stated.encode(), _NO_DIGEST.encode(), 1))
    digest.update(memoryview(data)[end:])
    if digest.hexdigest() != stated:
        raise SnapshotError(
            f"{path}: is damaged, its bytes don't give the checksum that it states; delete it"
        )


def _tensor(data: memoryview, entry: object) -> Tensor:
    if not isinstance(entry, dict):
        raise ValueError("a tensor is described by an object")
    start, end = entry["data_offsets"]
    if not 0 <= start <= end <= len(data):
        raise ValueError("a tensor lies outside the file")
    shape, dtype = entry["shape"], _TORCH[entry["dtype"]]
    if any(size < 0 for size in shape) or prod(shape) * dtype.itemsize != end - start:
        raise ValueError(f"{end - start} bytes don't make a tensor of shape {shape}")
    if start == end:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data[start:end], dtype=dtype).view(shape)


def _sync_directory(path: Path) -> None:
    """So that the name survives a power failure too."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        pass  # some file systems can't
    finally:
        os.close(descriptor)
