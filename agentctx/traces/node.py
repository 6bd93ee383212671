"""Node: a JSON value from outside together with its place, so that a wrong shape is an error that names the place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from agentctx.errors import InputError
from agentctx.messages import canonical_json

_REMEDY = "repair this record, or leave it out"


class Node:
    """A value, the file and line it came from, and its path inside the record (``messages[3].content``)."""

    __slots__ = ("file", "line", "path", "value")

    def __init__(self, value: Any, file: str, line: int, path: str = "") -> None:
        self.value = value
        self.file = file
        self.line = line
        self.path = path

    def error(self, problem: str, remedy: str = _REMEDY) -> InputError:
        """An error about this value."""
        return InputError(problem, file=self.file, line=self.line, field=self.path or None, remedy=remedy)

    def _expected(self, what: str) -> InputError:
        return self.error(f"expected {what}, found {type(self.value).__name__}")

    def obj(self) -> dict[str, Any]:
        """The value as an object. Raises ``InputError``."""
        if not isinstance(self.value, dict):
            raise self._expected("an object")
        return self.value

    def items(self) -> Iterator[Node]:
        """The elements of a list. Raises ``InputError``."""
        if not isinstance(self.value, list):
            raise self._expected("a list")
        for index, item in enumerate(self.value):
            yield Node(item, self.file, self.line, f"{self.path}[{index}]")

    def text(self) -> str:
        """The value as a string. Raises ``InputError``."""
        if not isinstance(self.value, str):
            raise self._expected("a string")
        return self.value

    def __getitem__(self, key: str) -> Node:
        """A field of an object; a missing one is ``None``."""
        path = f"{self.path}.{key}" if self.path else key
        return Node(self.obj().get(key), self.file, self.line, path)

    def __contains__(self, key: str) -> bool:
        return key in self.obj()

    def __bool__(self) -> bool:
        return self.value is not None

    def maybe_text(self) -> str | None:
        """The value as a string, ``None`` when it is missing. Raises ``InputError`` for another type."""
        return None if self.value is None else self.text()

    def json(self) -> str:
        """The value as canonical JSON."""
        return canonical_json(self.value)


def rest_json(record: Mapping[str, Any], *taken: str) -> str | None:
    """Canonical JSON of the fields of ``record`` that are not ``taken``; ``None`` when nothing is left."""
    rest = {key: value for key, value in record.items() if key not in taken}
    return canonical_json(rest) if rest else None
