"""HAR: what browsers and proxies save of their traffic. Entries that are no requests to a model are passed over."""

from __future__ import annotations

import base64
import binascii
from typing import Any

from agentctx.interchange.body_api import body_api
from agentctx.interchange.times import seconds
from agentctx.traces.containers.draft import Draft, as_object, as_response, get, without

_BODY = ("request", "postData", "text")
_REPLY = ("response", "content", "text")


def entry(value: Any, head: Any = None) -> Draft | None:
    """One entry of a HAR's ``log.entries``; ``None`` when it is no request to a model.

    The entry without the body is kept beside it, and ``head``, what the HAR says before its entries; a response that
    isn't plain JSON (base64, a stream) stays in it.
    """
    body = as_object(get(value, _BODY))
    if body is None:
        return None
    url = get(value, ("request", "url"))
    text = get(value, _REPLY)
    encoded = get(value, ("response", "content", "encoding")) == "base64"
    if encoded and isinstance(text, str):
        text = _decoded(text)
    reply, _ = as_response(text)
    api = body_api(body, reply, url if isinstance(url, str) else None)
    if api is None:
        return None
    plain = reply is not None and not encoded and as_object(text) is not None
    return Draft(
        api=api,
        request=body,
        response=reply,
        container="har",
        at=seconds(value.get("startedDateTime")),
        endpoint_hint=url if isinstance(url, str) else None,
        extra={
            **without(value, *((_BODY, _REPLY) if plain else (_BODY,))),
            **({"log": head} if head else {}),
        },
    )


def _decoded(text: str) -> str | None:
    try:
        return base64.b64decode(text, validate=True).decode()
    except (binascii.Error, ValueError):
        return None
