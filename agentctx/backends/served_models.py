"""Which model an OpenAI-style server serves, asked of the server itself."""

from __future__ import annotations

from agentctx.backends.backend import BadResponse, Refused
from agentctx.backends.llama_server import Endpoints
from agentctx.backends.secrecy import NO_ACCESS


def first_model(base_url: str, api_key: str | None = None) -> str:
    """The id of the first model that ``base_url``/models lists.

    Raises ``ConnectionFailed`` when nobody answers, ``TimedOut`` after 30 s of silence, ``Refused`` where a key is wanted, and
    ``BadResponse`` for an answer that lists no model.
    """
    with Endpoints(base_url, api_key=api_key) as server:
        try:
            return str(server.ask("GET", "/models")["data"][0]["id"])
        except (Refused, BadResponse, LookupError, TypeError) as error:
            if isinstance(error, Refused) and error.status in NO_ACCESS:
                raise
            raise BadResponse(
                f"{server.address}/models did not list a model; is this the address of an OpenAI-style server or a llama-server?"
            ) from error
