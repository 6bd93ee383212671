"""Entry: one message as a recorder wrote it, with what the recorder said about it."""

from __future__ import annotations

from dataclasses import dataclass

from agentctx.messages import Message
from agentctx.usage import Usage


@dataclass(frozen=True, slots=True)
class Entry:
    """One recorded message.

    ``call`` names the model call that generated the message; recorders that write one reply in pieces give the
    pieces the same name. ``None`` for messages that no model call of this session generated. ``at`` is seconds
    since 1970. ``usage`` stands on the last piece of a call. ``line`` is the 1-based line of the file. ``extra_json``
    holds what the recorder wrote beside the message, as canonical JSON.
    """

    message: Message
    call: str | None = None
    at: float | None = None
    usage: Usage | None = None
    line: int | None = None
    extra_json: str | None = None
