"""Prompts to be continued: ten openings of everyday kinds of text, as token ids of a model's own vocabulary."""

from __future__ import annotations

from pathlib import Path

from agentctx.rendering.load import load_tokenizer

OPENINGS = (
    "This is a short guide to Paris, the capital of France. The first place that every visitor should see is",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "Once upon a time, in a small village by the sea, there lived an old fisherman who",
    "To make a simple tomato soup, first chop the onions and the garlic. Then",
    "Water boils at 100 degrees Celsius at sea level. On a high mountain, however,",
    '{"name": "Ada Lovelace", "born": 1815, "died": 1852, "known_for": "',
    "The difference between a list and a tuple in Python is that a list can be changed, while",
    "Dear Sir or Madam,\n\nI am writing to complain about the service that I received",
    "1, 1, 2, 3, 5, 8, 13, 21, 34,",
    "A cache keeps what was computed before, so that it need not be computed again. When the",
)


def openings(gguf: Path, *, begin: bool) -> list[list[int]]:
    """In the vocabulary of the file; ``begin``: behind its token for the beginning of a text."""
    tokenizer = load_tokenizer(str(gguf))
    return [tokenizer.encode(("<bos>" if begin else "") + text).tolist() for text in OPENINGS]
