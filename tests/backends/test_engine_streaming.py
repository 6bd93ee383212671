"""Streaming from the engine: a character whose bytes come in several tokens arrives whole, or not yet."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentctx.backends.backend import Options
from agentctx.backends.engine import AsyncEngineBackend, EngineBackend
from agentctx.messages import Message, Request
from agentctx.rendering import Prompt, load_renderer
from agentctx.rendering.chatml_reply import read_reply
from agentctx_engine.runtime import GenerationHandle, GenerationResult
from agentctx_engine.runtime.request import FinishReason
from agentctx_engine.runtime.results import SampleResult, TokenEvent

TOKENIZER = load_renderer("chatml").tokenizer
END = TOKENIZER.special_tokens["<|im_end|>"]
BYTES = [TOKENIZER.encoding.encode_single_token(bytes([byte])) for byte in range(256)]  # type: ignore[attr-defined]
PROMPT = Prompt(np.zeros(1, np.int32), "", (), Request(messages=(Message(role="user", content="hi"),)))


class Dictated:
    """Stands where the engine stands and writes the ids that it is given, through the engine's own handle."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids

    def submit(self, *_: Any, **__: Any) -> GenerationHandle:
        handle = GenerationHandle(1, lambda: None)
        for token in self.ids:
            handle.push(TokenEvent(1, 0, token, None, None, None))
        sample = SampleResult(0, tuple(self.ids), FinishReason.STOP, None, None, None)
        handle.finish(
            GenerationResult(1, (sample,), 1, 0, 1, 0, (), 0, 0, 0.0, 0.0, 0.0, 0.0),
            None,
        )
        return handle


async def pieces(ids: list[int], face: str) -> list[str]:
    arguments: tuple[Any, ...] = (Dictated(ids), lambda ids: read_reply(TOKENIZER, ids), (END,))
    if face == "sync":
        deltas = list(EngineBackend(*arguments).stream(PROMPT, Options()))
    else:
        deltas = [delta async for delta in AsyncEngineBackend(*arguments).stream(PROMPT, Options())]
    assert deltas[-1].completion is not None
    return [delta.text for delta in deltas[:-1]]


@pytest.mark.parametrize("face", ["sync", "async"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
async def test_no_character_is_torn(face: str, text: str) -> None:
    found = await pieces([BYTES[byte] for byte in text.encode()] + [END], face)
    assert "".join(found) == text
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in found)


@pytest.mark.parametrize("face", ["sync", "async"])
async def test_a_whole_character_does_not_wait(face: str) -> None:
    assert await pieces([BYTES[byte] for byte in "aé漢".encode()], face) == ["a", "é", "漢"]


@pytest.mark.parametrize("face", ["sync", "async"])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=20))
async def test_bytes_that_are_no_text_come_as_in_the_whole_reply(face: str, data: bytes) -> None:
    """A reply may end inside a character, or hold bytes that make none."""
    ids = [BYTES[byte] for byte in data]
    assert "".join(await pieces(ids, face)) == TOKENIZER.decode(np.array(ids, np.int32))
