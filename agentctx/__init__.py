"""agentctx: keep an LLM agent's prompts cache-friendly, and prove it.

The names below are the front door; everything else is in the rooms (``agentctx.policies``, ``agentctx.caches``, …).
Importing this module costs next to nothing: each name is loaded when it is first used, and none needs torch or a terminal library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from agentctx.errors import AgentctxError, HistoryError, InputError, RenderError, UsageError

if TYPE_CHECKING:
    from agentctx.compare import replay
    from agentctx.history import History
    from agentctx.messages import Message, Params, Request, Tool, ToolCall
    from agentctx.rendering import load_renderer
    from agentctx.session import AsyncSession, Session
    from agentctx.traces import read_sessions

__version__ = "0.1.0"

__all__ = [
    "AgentctxError",
    "AsyncSession",
    "History",
    "HistoryError",
    "InputError",
    "Message",
    "Params",
    "RenderError",
    "Request",
    "Session",
    "Tool",
    "ToolCall",
    "UsageError",
    "__version__",
    "load_renderer",
    "read_sessions",
    "replay",
]

_LAZY = {
    "AsyncSession": "agentctx.session",
    "History": "agentctx.history",
    "Message": "agentctx.messages",
    "Params": "agentctx.messages",
    "Request": "agentctx.messages",
    "Session": "agentctx.session",
    "Tool": "agentctx.messages",
    "ToolCall": "agentctx.messages",
    "load_renderer": "agentctx.rendering",
    "read_sessions": "agentctx.traces",
    "replay": "agentctx.compare",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'agentctx' has no attribute {name!r}")
    value = getattr(import_module(_LAZY[name]), name)
    globals()[name] = value
    return value
