"""What can go wrong with a checkpoint: always which file, which tensor or field, and what to do."""

from __future__ import annotations

from pathlib import Path


class CheckpointError(ValueError):
    """A model file can't be used. The message names the file and the tensor or field."""

    def __init__(
        self, path: Path | str, problem: str, *, tensor: str | None = None, remedy: str = ""
    ) -> None:
        self.path = Path(path)
        self.tensor = tensor
        where = f"{self.path}, tensor {tensor!r}" if tensor else str(self.path)
        super().__init__(f"{where}: {problem}" + (f"; {remedy}" if remedy else ""))
