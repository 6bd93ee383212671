"""Large results go to files before they are ever sent; the model reads a stub that names the file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from agentctx.errors import UsageError
from agentctx.history import History, Splice
from agentctx.messages import Message
from agentctx.policies.base import EditingPolicy
from agentctx.policies.shape import results
from agentctx.policies.tokens import TokenCounts

# Keeps a text under a name and returns how the model can refer to it.
Store = Callable[[str, str], str]


class DirectoryStore:
    """Keeps texts as files of one directory. A name stands for one text, so a file is written once."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)

    def __call__(self, name: str, text: str) -> str:
        """Write the file, whole or not at all, and return its path. Raises ``OSError``."""
        path = self.directory / name
        if not path.exists():
            self.directory.mkdir(parents=True, exist_ok=True)
            part = path.with_suffix(".part")
            part.write_text(text, encoding="utf-8", newline="")
            part.replace(path)
        return str(path)


def name_only(name: str, text: str) -> str:
    """Keeps nothing: for replays, which need the stub and its length but nobody who reads the file."""
    return f"results/{name}"


class OffloadResults(EditingPolicy):
    """A result of more than ``limit`` tokens that was not sent yet gives way to its first lines and the file's name.

    What the model has read is never touched, so no prefix breaks. A result that can't be kept stays in the prompt.
    """

    def __init__(self, limit: int, preview: int = 10, *, store: Store = name_only) -> None:
        super().__init__()
        if limit < 1 or preview < 0:
            raise UsageError(f"limit {limit}, preview {preview}: need limit >= 1 and preview >= 0")
        self.limit, self.preview, self.store = limit, preview, store

    @property
    def name(self) -> str:
        return f"offload:{self.limit},{self.preview}"

    def edit(self, history: History, counts: TokenCounts) -> str | None:
        """Offload what came since the last request."""
        splices: list[Splice] = []
        problem = None
        for position in results(history, history.sent):
            message = history.visible[position]
            tokens = counts.message(message)
            if tokens <= self.limit or not isinstance(message.content, str):
                continue
            digest = hashlib.sha256(message.content.encode()).hexdigest()
            try:
                reference = self.store(f"result-{digest[:16]}.txt", message.content)
            except OSError as error:
                problem = f"a result of {tokens} tokens could not be offloaded: {error}"
                continue
            stub = message.model_copy(update={"content": self._stub(message, tokens, reference)})
            if counts.message(stub) < tokens:
                splices.append(Splice(position, position + 1, (stub,)))
        if splices:
            history.compact("offloaded", splices)
        return problem

    def _stub(self, message: Message, tokens: int, reference: str) -> str:
        lines = message.text.splitlines()
        head = "\n".join(line[:200] for line in lines[: self.preview])
        return f"{head}\n[{len(lines)} lines, {tokens} tokens: the whole result is in {reference}]".lstrip(
            "\n"
        )
