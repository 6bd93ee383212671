"""OpenAI chat completions: request bodies in and out without loss.

``read(body)`` makes a Request, ``write(request)`` a body that is equal to it; ``read_message`` and ``write_message`` do
the same for one message, such as that of a response's choice.
"""

from __future__ import annotations

from agentctx.interchange.dialect import Dialect
from agentctx.interchange.media import CHAT_TYPES, for_chat
from agentctx.interchange.parts import PartForm

API = "openai.chat"
_DIALECT = Dialect(API, PartForm(API, "text", CHAT_TYPES, for_chat), ("reasoning_content", "reasoning"))

read = _DIALECT.read
write = _DIALECT.write
read_message = _DIALECT.read_message
write_message = _DIALECT.write_message
