"""The key of a server: from the environment, so that it stands in no command line and no shell history."""

from __future__ import annotations

import os

from agentctx.backends.secrecy import KEY_VARIABLE


def server_key(variable: str = KEY_VARIABLE) -> str | None:
    """The key, or ``None`` where there is none."""
    return os.environ.get(variable) or None
