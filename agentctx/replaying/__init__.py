"""Replay: recorded sessions turn by turn, predicted on a cache model and, where there is a server, run for real."""

from agentctx.replaying.live import Live, connect
from agentctx.replaying.replay import Replay

__all__ = ["Live", "Replay", "connect"]
