"""Which model an OpenAI-style server serves, asked of the server itself."""

from __future__ import annotations

from collections.abc import Mapping

import httpx

from agentctx.backends.backend import BadResponse, ConnectionFailed


def first_model(base_url: str, headers: Mapping[str, str]) -> str:
    """The id of the first model that ``base_url``/models lists.

    Raises ``ConnectionFailed`` when nobody answers, ``BadResponse`` for an answer that lists no model.
    """
    try:
        answer = httpx.get(f"{base_url}/models", headers=dict(headers), timeout=30.0)
        model = answer.raise_for_status().json()["data"][0]["id"]
    except httpx.TransportError as error:
        raise ConnectionFailed(f"can't connect to {base_url}: {error}; is the server running?") from error
    except (httpx.HTTPStatusError, ValueError, LookupError, TypeError) as error:
        raise BadResponse(
            f"{base_url}/models did not list a model; is this the address of an OpenAI-style server or a llama-server?"
        ) from error
    return str(model)
