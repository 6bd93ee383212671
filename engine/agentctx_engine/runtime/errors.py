"""What can go wrong in the engine, each with what to do next. After any of these the engine stays usable,
except after ``EngineClosedError``."""

from __future__ import annotations


class EngineError(Exception):
    """Base of every error that the engine raises on purpose."""


class RequestError(EngineError, ValueError):
    """A request that can never run: a parameter out of range, an unknown token id. Raised before anything is queued."""


class PromptTooLongError(RequestError):
    """The prompt leaves no room for a token of answer, in the model's context or in the pool of KV blocks."""


class EngineMemoryError(EngineError, MemoryError):
    """The KV pool can't be made, or a step ran out of memory. Names what was asked for and what would fit."""


class RequestFailedError(EngineError):
    """A step, or the request's own stop hook, raised. The cause is chained; the request's blocks are free again."""


class RequestCancelledError(EngineError):
    """The request was cancelled; raised to those who wait for its whole result."""


class EngineClosedError(EngineError):
    """The engine was closed before or while the request ran."""


class SnapshotError(EngineError):
    """A snapshot can't be written, read or used: names the file, what is wrong with it, and what to do."""
