"""LogRecord: one request to a model, as a log holds it, with what came back.

This is the streaming side of traces: a log may be larger than memory, so records come one at a time and each
stands alone. Whole conversations are in ``agentctx.traces.shape``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentctx.interchange.body_api import Api


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One logged request.

    ``index`` counts the file's requests from 0, ``line`` its lines from 1 (the line on which the record begins).
    ``at`` is when the request was sent, in seconds since 1970, or ``None`` where the log doesn't say.
    ``endpoint_hint`` is what the log says of the server (a URL, a server's name and switches).
    ``request`` is the request body and ``response`` the response body as JSON; of a streamed response it is the
    body put together from the stream's events. ``None``: not logged. Treat both as read-only.
    ``raw`` is the text of the value that holds the record, byte for byte (empty for ``session``). ``extra`` holds the record's remaining fields (headers,
    status, ids of the log), so that request, response and extra together are the whole record.
    ``session_hint`` is the conversation that the log itself names, if it names one. ``container`` is how the log
    holds its requests: ``body``, ``wrapped``, ``text``, ``har``, ``litellm``, ``otel`` or ``session``; of the last two the
    request is put together from what was logged, not the body that went over the wire.
    """

    file: str
    line: int
    index: int
    api: Api
    request: Mapping[str, Any]
    response: Mapping[str, Any] | None = None
    at: float | None = None
    endpoint_hint: str | None = None
    session_hint: str | None = None
    container: str = "body"
    raw: bytes = field(default=b"", repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def as_sent(self) -> bool:
        """Whether ``request`` is the body that went over the wire."""
        return self.container not in ("session", "otel")
