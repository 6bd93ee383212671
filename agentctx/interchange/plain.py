"""Plain dictionaries: ``{"messages": [...], "tools": [...], ...}`` with agentctx's own field names.

A message is ``{"role", "content", "reasoning", "tool_calls": [{"id", "name", "arguments"}], "tool_call_id", "name"}``. Fields
that agentctx has no name for are kept where they stand, and calls nested under ``function`` are understood too.
"""

from __future__ import annotations

from agentctx.interchange.dialect import Dialect
from agentctx.interchange.media import PLAIN_TYPES, for_plain
from agentctx.interchange.parts import PartForm

API = "plain"
_DIALECT = Dialect(API, PartForm(API, "text", PLAIN_TYPES, for_plain), ("reasoning",))

read = _DIALECT.read
write = _DIALECT.write
read_message = _DIALECT.read_message
write_message = _DIALECT.write_message
