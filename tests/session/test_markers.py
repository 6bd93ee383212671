"""A session predicts by the cache markers that are sent: those that the adapter places, or those that the request has."""

from __future__ import annotations

import json

import pytest

from agentctx.backends.anthropic import AnthropicMessages
from agentctx.backends.backend import Completion, Options
from agentctx.backends.http import HttpBackend
from agentctx.caches.registry import parse_cache
from agentctx.history import History
from agentctx.interchange import read_request
from agentctx.messages import Message, Request
from agentctx.rendering import load_renderer
from agentctx.session import Session, SessionParts
from agentctx.usage import Usage

LONG = "word " * 3000


def request(*marked: str) -> Request:
    """A conversation of three messages; ``marked`` of its texts carry a marker of their own."""

    def block(text: str) -> dict[str, object]:
        return {"type": "text", "text": text} | (
            {"cache_control": {"type": "ephemeral"}} if text in marked else {}
        )

    return read_request(
        "anthropic.messages",
        {
            "model": "m",
            "system": [block(LONG)],
            "messages": [
                {"role": "user", "content": [block("one")]},
                {"role": "assistant", "content": "yes"},
                {"role": "user", "content": [block("two")]},
            ],
        },
    )


@pytest.mark.parametrize(
    ("places", "marked", "expected"),
    [(False, (), 0), (False, (LONG, "two"), 2), (True, (), 3), (True, ("one",), 3)],
)
def test_what_is_predicted_is_what_the_markers_allow(
    places: bool, marked: tuple[str, ...], expected: int
) -> None:
    adapter = AnthropicMessages("claude-sonnet-4-5", markers=places)
    with HttpBackend(adapter, "http://127.0.0.1:1") as backend:
        session = Session(SessionParts(History(), load_renderer("chatml"), parse_cache("anthropic")), backend)
        prepared = session.check(request(*marked))
        sent = json.dumps(adapter.call(prepared.prompt, Options(), stream=False).body).count("cache_control")
        assert len(prepared.arrival.markers) == sent == expected
        session.observe(prepared, Completion(Message(role="assistant", content="fine"), Usage()))
        again = session.check(request(*marked)).report
        assert (again.predicted > 3000) == (expected > 0)
