"""Affinity: what keeps a conversation on the replica that holds its prefix.

A router that spreads requests over replicas sees only the request. Each of these fields is stable over a
conversation, so that consistent hashing on it sends every turn to the same place. docs/many-servers.md names the
switches that each router needs.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

_IN_HEADERS = string.ascii_letters + string.digits + string.punctuation


@dataclass(frozen=True, slots=True)
class Affinity:
    """Names of the body fields and headers that carry the conversation's name. None of them changes the prompt."""

    body: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()

    def fields(self, conversation: str | None) -> tuple[dict[str, Any], dict[str, str]]:
        """Body fields and headers for a conversation; empty when it has no name.

        In headers, whatever isn't a visible ASCII character is percent-encoded: a header can't carry it.
        """
        if conversation is None:
            return {}, {}
        header = quote(conversation, safe=_IN_HEADERS, errors="surrogatepass")
        return dict.fromkeys(self.body, conversation), dict.fromkeys(self.headers, header)


OPENAI = Affinity(body=("prompt_cache_key",))
"""OpenAI's and Mistral's routing key; servers that don't know it ignore it."""

SESSION_HEADER = Affinity(headers=("X-Session-Id",))
"""For routers with session affinity and reverse proxies that hash a header."""

SGLANG_GATEWAY = Affinity(headers=("X-SMG-Routing-Key",))
"""SGLang's model gateway with ``--routing-key-override`` or the policy ``manual``."""

VLLM_ROUTER = Affinity(headers=("x-user-id",))
"""vLLM's production-stack router with ``--routing-logic session --session-key x-user-id``; name the header that yours is told."""

NO_AFFINITY = Affinity()
