"""A tokenizer that knows how long it took, and words for the texts of benches."""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time
from typing import Any

WORDS = (
    "def",
    "class",
    "return",
    "import",
    "path",
    "value",
    "index",
    "token",
    "message",
    "request",
    "history",
    "policy",
    "cache",
    "block",
    "tree",
)


class TimedTokenizer:
    """A tokenizer, with the seconds spent in it by ``clock``."""

    def __init__(self, inner: Any, clock: Callable[[], float] = thread_time) -> None:
        self.seconds = 0.0
        self.inner = inner
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.inner, name)
        if not callable(value):
            return value

        def timed(*arguments: Any, **more: Any) -> Any:
            start = self._clock()
            try:
                return value(*arguments, **more)
            finally:
                self.seconds += self._clock() - start

        return timed
