"""Errors of agentctx: each one says what is wrong, where, and what to do about it.

Exit codes of the command line: 0 clean, 1 findings, 2 usage, 3 could not evaluate.
"""

from __future__ import annotations

from typing import ClassVar


class AgentctxError(Exception):
    """Base of every error that agentctx raises on purpose.

    ``exit_code`` is what the command line returns when the error ends a command.
    """

    exit_code: ClassVar[int] = 3


class UsageError(AgentctxError):
    """The call itself is wrong: an unknown name, an option out of range, a missing file argument."""

    exit_code: ClassVar[int] = 2


class InputError(AgentctxError):
    """Data from outside can't be used. Names file, line and field, and the remedy.

    ``line`` is 1-based; ``field`` is a path such as ``messages[3].content``.
    """

    def __init__(
        self,
        problem: str,
        *,
        file: str | None = None,
        line: int | None = None,
        field: str | None = None,
        remedy: str | None = None,
    ) -> None:
        self.problem = problem
        self.file = file
        self.line = line
        self.field = field
        self.remedy = remedy
        where = ":".join(str(part) for part in (file, line) if part is not None)
        text = f"{where}: {problem}" if where else problem
        if field:
            text += f" (field {field})"
        if remedy:
            text += f"; {remedy}"
        super().__init__(text)


class HistoryError(AgentctxError):
    """A step that would change what was sent, or that no chat API accepts. ``item`` names the item."""

    def __init__(self, problem: str, *, item: str | None = None, remedy: str | None = None) -> None:
        self.problem = problem
        self.item = item
        self.remedy = remedy
        text = f"{item}: {problem}" if item else problem
        if remedy:
            text += f"; {remedy}"
        super().__init__(text)


class RenderError(AgentctxError):
    """A chat template or tokenizer refused the request, or ran over its limits."""
