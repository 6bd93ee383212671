"""Spans that cover a prompt."""

from __future__ import annotations

from agentctx.rendering.prompt import Prompt


def assert_tiled(prompt: Prompt) -> None:
    """Spans cover tokens and characters in order, without gap or overlap."""
    token = char = 0
    for span in prompt.spans:
        assert (span.start, span.char_start) == (token, char)
        assert span.end >= span.start
        assert span.char_end >= span.char_start
        token, char = span.end, span.char_end
    assert (token, char) == (len(prompt.token_ids), len(prompt.text))
