"""Token in, token out: what was generated stays a prefix, and where the next prompt leaves it, the report says where."""

from __future__ import annotations

import pytest

from agentctx.backends.backend import Backend
from agentctx.caches.registry import parse_cache
from agentctx.history import History
from agentctx.rendering.prompt import Renderer
from agentctx.session import PrefixBroken, Session, SessionParts
from tests.history.renderings import renderers

from .dictated import Dictated


def begun(name: str, *, takes_tokens: bool, strict: bool = False) -> tuple[Session, Dictated]:
    renderer = renderers()[name]
    history = History("Be kind. " * 20)
    history.user("May I?")
    backend: Dictated = Dictated(renderer, takes_tokens=takes_tokens)
    checked: Backend = backend
    return Session(SessionParts(history, renderer, parse_cache("slot"), strict=strict), checked), backend


def letters(renderer: Renderer, text: str, end: str) -> list[int]:
    """A text letter by letter: tokens that no tokenizer would choose, and the end token."""
    ids = [int(token) for letter in text for token in renderer.tokenizer.encode_ordinary(letter)]
    return [*ids, renderer.tokenizer.special_tokens[end]]


ENDS = {"chatml": "<|im_end|>", "qwen-style": "<|im_end|>", "llama3-style": "<|eot_id|>"}


@pytest.mark.parametrize("name", sorted(ENDS))
def test_a_backend_of_tokens_keeps_what_was_generated(name: str) -> None:
    session, backend = begun(name, takes_tokens=True)
    renderer = backend.renderer
    for turn in range(4):
        backend.replies = [("certainly", letters(renderer, "certainly", ENDS[name]))]
        report = session.complete().report
        assert report.matches_prediction
        assert report.broken == 0
        assert report.divergence is None
        session.history.user(f"And {turn}?")


@pytest.mark.parametrize("name", sorted(ENDS))
def test_a_backend_of_texts_loses_it_and_the_report_says_so(name: str) -> None:
    """The server's tokens aren't known: the next prompt re-tokenizes the reply, and the count shows it."""
    session, backend = begun(name, takes_tokens=False)
    backend.replies = [("certainly", letters(backend.renderer, "certainly", ENDS[name])), ("no", [1])]
    first = session.complete().report
    session.history.user("And now?")
    second = session.complete().report
    assert second.cached == first.prompt  # everything up to the reply
    assert second.predicted > first.prompt
    assert second.matches_prediction is False
    assert second.mismatch is not None
    assert second.server == second.predicted - second.cached


def test_drift_has_a_place() -> None:
    """The template trims what the model wrote: the prompt leaves what was sent inside the reply."""
    session, backend = begun("llama3-style", takes_tokens=True)
    renderer = backend.renderer
    backend.replies = [("  yes", letters(renderer, "  yes", "<|eot_id|>")), ("no", [1])]
    first = session.complete().report
    session.history.user("And now?")
    second = session.complete().report
    assert second.divergence is not None
    assert second.divergence.token == first.prompt  # the first token of the reply
    assert (second.divergence.item, second.divergence.field) == ("messages[2]", "content")
    assert second.broken > 0
    assert second.matches_prediction


def test_strict_sessions_stop_at_drift() -> None:
    session, backend = begun("llama3-style", takes_tokens=True, strict=True)
    backend.replies = [("  yes", letters(backend.renderer, "  yes", "<|eot_id|>"))]
    session.complete()
    session.history.user("And now?")
    with pytest.raises(PrefixBroken, match=r"messages\[2\]"):
        session.complete()
    assert session.history[-1].text == "And now?"
