"""Typed access to the settings of an untrusted model file: what is missing or of the wrong kind is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentctx_engine.models.errors import CheckpointError

_MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Fields:
    """The settings of one file, or of one section of it. ``None`` counts as absent."""

    path: Path
    values: Mapping[str, Any]
    prefix: str = ""

    def has(self, name: str) -> bool:
        return self.values.get(self.prefix + name) is not None

    def integer(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
            raise self.error(name, f"is {value!r:.80}, not a whole number from {least} to {_MOST}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e30:
            raise self.error(name, f"is {value!r:.80}, not a positive number")
        return float(value)

    def flag(self, name: str, default: bool | None = None) -> bool:
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"is {value!r:.80}, not true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.error(name, f"is {value!r:.80}, not a string")
        return value

    def section(self, name: str) -> Fields:
        """A nested object; empty if absent."""
        value = self._get(name, {})
        if not isinstance(value, Mapping):
            raise self.error(name, f"is {value!r:.80}, not an object")
        return Fields(self.path, value)

    def integers(self, name: str) -> tuple[int, ...]:
        """One whole number or a list of them; empty if absent."""
        value = self._get(name, ())
        many = value if isinstance(value, list | tuple) else [value]
        if not all(isinstance(v, int) and not isinstance(v, bool) and 0 <= v <= _MOST for v in many):
            raise self.error(name, f"is {value!r:.80}, not a list of whole numbers")
        return tuple(many)

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; empty if absent."""
        value = self._get(name, ())
        if not isinstance(value, list | tuple) or not all(isinstance(v, str) for v in value):
            raise self.error(name, f"is {value!r:.80}, not a list of strings")
        return tuple(value)

    def error(self, name: str, problem: str, remedy: str = "") -> CheckpointError:
        return CheckpointError(self.path, f"field {self.prefix + name!r} {problem}", remedy=remedy)

    def _get(self, name: str, default: Any) -> Any:
        value = self.values.get(self.prefix + name)
        if value is None:
            value = default
        if value is None:
            raise self.error(name, "is missing")
        return value
