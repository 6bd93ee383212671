"""The model calls of any file: a log's requests as they are, a recorded session call by call."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import islice
from os import fspath

from agentctx.errors import InputError, UsageError
from agentctx.traces.containers import own
from agentctx.traces.reading import UnknownFormat, begins_request_log, read_sessions
from agentctx.traces.records import LogRecord
from agentctx.traces.request_log import Doubt, Skipped, read_records, record_of
from agentctx.traces.source import PathType
from agentctx.traces.values import json_values


def read_calls(
    path: PathType,
    *,
    on_skip: Callable[[Skipped], None] | None = None,
    on_doubt: Callable[[Doubt], None] | None = None,
) -> Iterator[LogRecord]:
    """The model calls of a log (see ``read_records``) or of recorded sessions (see ``read_sessions``), in the file's order.

    Calls of a session are put together from what was recorded (``container`` is ``session``). A log is read as a
    stream; sessions are read one at a time. ``on_skip`` and ``on_doubt`` as in ``read_records``.

    Raises ``InputError`` naming file and line.
    """
    file = fspath(path)
    if os.path.exists(file) and not os.path.isfile(file):
        # It is opened more than once: what was read of a pipe to tell its kind would be gone.
        raise InputError("not a regular file", file=file, line=1, remedy="save it to a file first")
    first = next(json_values(file), None)
    is_log = first is None or first.layout == "har" or begins_request_log(first.value)
    if is_log or (on_skip is not None and not _holds_sessions(file)):
        yield from read_records(file, on_skip=on_skip, on_doubt=on_doubt)
        return
    index = 0
    for session in read_sessions(file):
        for draft, line in own.session_calls(session):
            yield record_of(draft, file, line, index)
            index += 1


def read_call(place: str) -> LogRecord:
    """One model call: the only one of a file, or that which begins on a line (``FILE:LINE``).

    Raises ``InputError`` for what can't be read, ``UsageError`` when it isn't clear which call is meant.
    """
    file, colon, digits = place.rpartition(":")
    if not (colon and digits.isdigit()) or os.path.exists(place):
        calls = list(islice(read_calls(place), 2))
        if not calls:
            raise InputError(
                "no request to a model in this file",
                file=place,
                line=1,
                remedy="name a recording with at least one reply",
            )
        if len(calls) > 1:
            raise UsageError(f"{place} holds several requests; name one by its line: {place}:{calls[1].line}")
        return calls[0]
    line = int(digits)
    for call in read_calls(file):
        if call.line == line:
            return call
    raise UsageError(f"no request begins on line {line} of {file}")


def _holds_sessions(file: str) -> bool:
    """Whether the file begins with a recorded session. A log may begin with what is no request, too."""
    try:
        return next(read_sessions(file), None) is not None
    except UnknownFormat:
        return False
    except InputError:
        return True
