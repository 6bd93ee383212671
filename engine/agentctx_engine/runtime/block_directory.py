"""BlockDirectory: blocks of KV memory as files, each named by the hash of the prefix that it ends."""

from __future__ import annotations

import contextlib
import hashlib
import re
import stat
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from agentctx_engine.runtime.errors import SnapshotError
from agentctx_engine.runtime.tensor_file import file_bytes, is_temporary, read_tensors, write_tensors

_NAME = re.compile(r"(\d+)-([0-9a-f]{64})\.kv")


class BlockDirectory:
    """Files of one kind of model in a directory of their own, so that engines of different models may share ``root``.

    The name of a file says the layer group and the hash (which the salt is part of); what else must be equal stands in
    it. Files are written atomically, not durably: after a power failure some may be damaged, which is noticed.
    """

    def __init__(
        self,
        root: Path,
        identity: Mapping[str, str],
        shapes: Mapping[int, tuple[int, ...]],
        dtype: torch.dtype,
    ) -> None:
        """``shapes``: of a block's tensor, by layer group. Makes the directory and clears away what a killed writer left.

        Raises ``SnapshotError`` if that can't be done.
        """
        self.identity = dict(identity)
        self._groups = set(map(str, shapes))  # as they stand in the names
        described = repr(sorted(self.identity.items())).encode()
        self.path = root / hashlib.sha256(described).hexdigest()[:16]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for file in list(self.path.iterdir()):
                if is_temporary(file):
                    file.unlink(missing_ok=True)
        except OSError as error:
            raise SnapshotError(f"{self.path}: can't be used ({error.strerror or error})") from error
        self.block_bytes = max(
            file_bytes([("kv", torch.empty(shape, dtype=dtype))], self._metadata(bytes(32), group))
            for group, shape in shapes.items()
        )

    def files(self) -> list[tuple[bytes, int]]:
        """(hash, group) of every file, the least recently used first. Passes over what is no block's: it stays as it is."""
        found = []
        for file in self.path.iterdir():
            name = _NAME.fullmatch(file.name)
            if name is None or name[1] not in self._groups:
                continue
            with contextlib.suppress(FileNotFoundError):  # another engine has just deleted it
                status = file.stat()
                if stat.S_ISREG(status.st_mode):
                    found.append((status.st_mtime_ns, file.name, bytes.fromhex(name[2]), int(name[1])))
        return [(digest, group) for _, _, digest, group in sorted(found)]

    def trim(self, most: int) -> list[tuple[bytes, int]]:
        """Delete the least recently used files but ``most`` of them; what is left, as ``files``."""
        files = self.files()
        for digest, group in files[: max(0, len(files) - most)]:
            self.delete(digest, group)
        return files[max(0, len(files) - most) :]

    def write(self, digest: bytes, group: int, kv: Tensor) -> None:
        """``SnapshotError`` if it can't be written."""
        write_tensors(self._file(digest, group), [("kv", kv)], self._metadata(digest, group), durable=False)

    def read(self, digest: bytes, group: int) -> Tensor:
        """The block, having noted its use. ``SnapshotError`` if the file is damaged or missing.

        The use is noted, and a damaged file removed, where the directory lets us.
        """
        file = self._file(digest, group)
        try:
            tensors, _ = read_tensors(file, self._metadata(digest, group))
            kv = tensors["kv"]
        except (SnapshotError, KeyError) as error:
            self.delete(digest, group)
            raise SnapshotError(f"{file}: can't be reused ({error})") from error
        with contextlib.suppress(OSError):
            file.touch()
        return kv

    def delete(self, digest: bytes, group: int) -> None:
        """As far as the directory lets us: nobody but who looks for it by its hash reads a file that stays."""
        with contextlib.suppress(OSError):
            self._file(digest, group).unlink(missing_ok=True)

    def _file(self, digest: bytes, group: int) -> Path:
        return self.path / f"{group}-{digest.hex()}.kv"

    def _metadata(self, digest: bytes, group: int) -> dict[str, str]:
        return {**self.identity, "prefix": digest.hex(), "group": str(group)}
