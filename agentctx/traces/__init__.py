"""Traces: recorded conversations in, one format of ours out."""

from agentctx.interchange.body_api import Api
from agentctx.traces.calls import read_call, read_calls
from agentctx.traces.conversation import Conversation
from agentctx.traces.entry import Entry
from agentctx.traces.logged_calls import record_reply, record_request
from agentctx.traces.reading import expand, load, read_sessions
from agentctx.traces.recording import TraceWriter
from agentctx.traces.records import LogRecord
from agentctx.traces.request_log import Doubt, LogWriter, Skipped, read_records
from agentctx.traces.shape import LoggedRequest, Session

__all__ = [
    "Api",
    "Conversation",
    "Doubt",
    "Entry",
    "LogRecord",
    "LogWriter",
    "LoggedRequest",
    "Session",
    "Skipped",
    "TraceWriter",
    "expand",
    "load",
    "read_call",
    "read_calls",
    "read_records",
    "read_sessions",
    "record_reply",
    "record_request",
]
