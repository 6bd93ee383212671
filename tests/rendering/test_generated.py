"""Generated ids in later prompts: the text stays, the spans follow the ids, and drift has a place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentctx.history import History
from agentctx.messages import Message, Request
from agentctx.rendering.generated import Sent, continued
from agentctx.rendering.prompt import Prompt, TokenIds
from tests.history.renderings import renderers

RENDERERS = renderers()
WORDS = st.text("ab \né漢", min_size=1, max_size=12)
replies = st.lists(st.tuples(WORDS, st.booleans(), WORDS, st.booleans()), min_size=1, max_size=6)


def as_written(name: str, ids: TokenIds) -> TokenIds:
    """The same text in other tokens: the first one letter by letter."""
    tokenizer = RENDERERS[name].tokenizer
    letters = [tokenizer.encode_ordinary(letter) for letter in tokenizer.decode(ids[:1])]
    return np.concatenate([*letters, ids[1:]])


@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("name", sorted(RENDERERS))
@given(turns=replies)
def test_ids_stay_and_spans_cover_them(name: str, turns: list[tuple[str, bool, str, bool]]) -> None:
    renderer = RENDERERS[name]
    history = History("Be kind.")
    rendered: Prompt | None = None
    sent: Sent | None = None
    for reply, other_tokens, question, noted in turns:
        history.user(question)
        if noted:
            history.note("late")
        rendered = renderer.render(history.request(), rendered)
        prompt = rendered
        if sent is not None:
            found = continued(rendered, sent, renderer.tokenizer)
            prompt = found.prompt
            assert prompt.text == rendered.text
            if found.drift is None:
                assert prompt.token_ids[: len(sent.token_ids)].tolist() == sent.token_ids.tolist()
            assert renderer.tokenizer.decode(prompt.token_ids) == prompt.text
            # What is taken over from the prompt before is what would be found anew.
            anew = continued(rendered, replace(sent, rendered=(), spans=()), renderer.tokenizer).prompt
            assert prompt.spans == anew.spans
        assert [span.start for span in prompt.spans[1:]] == [span.end for span in prompt.spans[:-1]]
        assert prompt.spans[-1].end == len(prompt)
        message = Message(role="assistant", content=reply)
        ids = renderer.reply_ids(rendered, message)
        sent = Sent.of(rendered, prompt, as_written(name, ids) if other_tokens else ids, renderer.tokenizer)
        history.append(message)


def test_drift_names_the_character() -> None:
    """A template that trims what the model wrote: the text that comes back is another one from there on."""
    renderer = RENDERERS["llama3-style"]
    asked = Message(role="user", content="hi")
    first = renderer.render(Request(messages=(asked,)))
    wrote = renderer.tokenizer.encode("  yes<|eot_id|>")
    sent = Sent.of(first, first, wrote, renderer.tokenizer)
    reply = Message(role="assistant", content="  yes")
    second = renderer.render(Request(messages=(asked, reply, asked)), first)
    found = continued(second, sent, renderer.tokenizer)
    assert found.drift == len(first.text)
    assert found.prompt is second
