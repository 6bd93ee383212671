"""Reading the session files that a command is given."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentctx.commands.terminal import complain
from agentctx.errors import InputError

if TYPE_CHECKING:
    from agentctx.traces import Session

SESSIONS_HELP = (
    "Recorded sessions of agents (Claude Code, Codex, SWE-agent, OpenHands, request logs, …), plain, gzip or zstd; "
    "folders are walked."
)


def read_all(files: list[str]) -> tuple[list[Session], int]:
    """The sessions of all files, and how many files could not be read: why is said on standard error."""
    from agentctx.traces import expand, read_sessions

    sessions: list[Session] = []
    failed = 0
    for path in expand(files):
        try:
            sessions.extend(read_sessions(path))
        except InputError as error:
            complain(error)
            failed += 1
    return sessions, failed
