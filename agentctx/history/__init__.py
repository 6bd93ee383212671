"""The append-only log that an agent keeps, and what may happen to it."""

from agentctx.history.attachments import attachment
from agentctx.history.events import Compaction, Event, How, Splice, ToolAdded
from agentctx.history.history import History
from agentctx.history.journal import TornLineWarning
from agentctx.history.legality import check_sequence
from agentctx.history.records import ToolOrder

__all__ = [
    "Compaction",
    "Event",
    "History",
    "How",
    "Splice",
    "ToolAdded",
    "ToolOrder",
    "TornLineWarning",
    "attachment",
    "check_sequence",
]
