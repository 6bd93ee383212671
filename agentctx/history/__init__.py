"""The append-only log that an agent keeps, and what may happen to it."""

from agentctx.history.events import Compaction, Event, How, Splice, ToolAdded
from agentctx.history.legality import check_sequence
from agentctx.history.log import History, ToolOrder

__all__ = ["Compaction", "Event", "History", "How", "Splice", "ToolAdded", "ToolOrder", "check_sequence"]
